"""What should be against what is: each kind of difference is found, and nothing else."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db.models import F
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import ReadyMessage
from django_delayq.spark.jobs.archive import archive
from django_delayq.spark.jobs.due import Plan
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
from django_delayq.spark.jobs.schedule import Messages, planned, schedule
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


def test_what_was_past_and_waited_for_its_window_or_was_spread_is_no_difference(spark: SparkSession) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=10)
    send_delay_messages([Send("note", at=soon, id=id) for id in ("past", "later")], using=STORED)
    should = spark.createDataFrame(
        [("past", START), ("later", soon + timedelta(minutes=5))], "id string, due_at timestamp"
    )
    actual = known(spark, STORED, "note").cache()
    windowed = Plan(zone="zone", due="due", window="window")
    spread = Plan(zone="zone", due="due", spread_ms=600_000)
    assert {row.id for row in differences(should, actual).collect()} == {"past", "later"}
    for plan in (windowed, spread):
        assert [row.id for row in differences(should, actual, plan).collect()] == ["later"]


def test_what_a_schedule_sent_late_is_no_difference(spark: SparkSession, using: str) -> None:
    rows = spark.createDataFrame([(n, "2026-03-27 12:00", "UTC") for n in range(9)], "n int, local string, zone string")
    messages = Messages("note", id_columns=["n"])
    for plan in (
        Plan(zone="zone", due="local", window="'mon-sun 00:00-24:00'"),
        Plan(zone="zone", due="local", window="'mon-sun 00:00-24:00'", spread_ms=3_600_000),
    ):
        get_backend(using).queue.purge([f"note:{n}" for n in range(9)])
        schedule(rows, messages, plan, using=using, job=str(plan.spread_ms))
        expected, _ = planned(rows, messages, plan)
        assert differences(expected, known(spark, using, "note"), plan).collect() == []


@pytest.mark.usefixtures("spark")
def test_what_tables_and_broker_do_not_agree_on_is_told_and_written_too(tmp_path: Path) -> None:
    send_delay_message("note", id="note:1", at=datetime(2096, 11, 21, tzinfo=UTC), using=STORED)
    leased = ReadyMessage.objects.using(get_alias(STORED).database)
    leased.update(lease_until=F("sent_at") + 900 * 86_400_000, token=1, worker="nobody")
    (rows := tmp_path / "rows.csv").write_text("id,on\n1,2096-11-21\n")
    plan = ["--from", str(rows), "--key", "note", "--id", "id", "--due", "on", "--zone", "UTC"]
    told = StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq_spark", "reconcile", "--using", STORED, "--out", str(tmp_path / "out"), *plan, stdout=told)
    difference, number = told.getvalue().splitlines()
    assert "note:1" in difference
    assert "leased to 'nobody'" in difference
    assert number == "1 differences."
    assert parquet.read_table(tmp_path / "out").to_pylist() == [{"id": None, "difference": difference}]
