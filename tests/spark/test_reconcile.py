"""What should be against what is: each kind of difference is found, and nothing else."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq import Send, send_delay_messages
from django_delayq.spark.jobs.archive import archive
from django_delayq.spark.jobs.lake import Lake
from django_delayq.spark.jobs.reconcile import (
    ANOTHER_TIME,
    IN_BOTH,
    MISSING,
    TWICE,
    UNEXPECTED,
    differences,
    in_lake_and_table,
    known,
)
from tests.spark.ended import START, fail, finish
from tests.spark.support import CARRIED, STORED

FAR = START + timedelta(days=36_500)


def expected(spark: SparkSession, *ids: str) -> DataFrame:
    return spark.createDataFrame([(id, FAR) for id in ids], "id string, due_at timestamp")


def found(expected: DataFrame, actual: DataFrame) -> dict[str, str]:
    return {row.id: row.difference for row in differences(expected, actual).collect()}


@pytest.mark.parametrize("using", [CARRIED, STORED])
def test_each_kind_of_difference_is_told(spark: SparkSession, using: str) -> None:
    at = {"right": FAR, "late": FAR + timedelta(seconds=1), "early": FAR - timedelta(milliseconds=1), "odd": FAR}
    send_delay_messages([Send("note", at=due_at, id=id, tag="t") for id, due_at in at.items()], using=using)
    send_delay_messages([Send("note", at=FAR, id="of another tag")], using=using)
    should = expected(spark, "right", "late", "early", "missing")
    assert found(should, known(spark, using, "note", tag="t")) == {
        "late": ANOTHER_TIME,
        "early": ANOTHER_TIME,
        "missing": MISSING,
        "odd": UNEXPECTED,
    }


def test_what_has_ended_and_what_was_archived_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    finish(STORED, [1, 3])
    fail(STORED, [5])
    archive(spark, STORED, lake, "finish", FAR)
    finish(STORED, [7])
    should = spark.createDataFrame([(f"m{pk}",) for pk in (1, 3, 5, 7)], "id string")
    assert found(should, known(spark, STORED, "a", lake=lake)) == {}
    assert found(should, known(spark, STORED, "a")) == {"m1": MISSING, "m3": MISSING}
    finish(STORED, [3])  # a row that the lake has already
    assert found(should, known(spark, STORED, "a", lake=lake)) == {"m3": TWICE}
    assert [tuple(row) for row in in_lake_and_table(spark, STORED, lake).collect()] == [("m3", IN_BOTH)]


def test_what_was_due_before_it_was_sent_is_no_difference(spark: SparkSession) -> None:
    send_delay_messages([Send("note", at=START, id="past")], using=STORED)
    should = expected(spark, "past").withColumn("due_at", f.lit(START))
    assert found(should, known(spark, STORED, "note")) == {}
