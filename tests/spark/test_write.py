"""A message per row: each once, whatever Spark runs again, and each checked before it is sent."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.db import connections
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq import State, cancel_delay_messages, get_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import ClaimRequest
from django_delayq.spark.errors import reason_of
from tests.spark.support import ALONE, CARRIED, STORED, waiting, write


def reminders(spark: SparkSession, count: int = 10) -> DataFrame:
    """Rows that make good messages, each due a day after the other."""
    due_at = f.timestamp_millis(f.lit(4_000_000_000_000) + f.col("id") * 86_400_000)
    data = f.struct(f.col("id").alias("customer"), f.lit("1.50").alias("amount"))
    return spark.range(count).select(f.lit("remind").alias("key"), data.alias("data"), due_at.alias("due_at"))


def test_a_row_becomes_a_message(spark: SparkSession, using: str, tmp_path: Path) -> None:
    summary = write(reminders(spark), using, tmp_path, idColumns="data.customer", tag="november")
    assert (summary.read, summary.sent, summary.already_there, summary.quarantined) == (10, 10, 0, 0)
    message = get_delay_message("remind:7", using=using)
    assert message is not None
    assert (message.key, message.queue, message.tag) == ("remind", "default", "november")
    assert message.due_at == datetime.fromtimestamp(4_000_000_000 + 7 * 86_400, UTC)
    assert message.data == {"customer": 7, "amount": "1.50"}


def test_a_write_to_the_database_alone_notifies_of_what_is_due_soon(
    spark: SparkSession, spark_site: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    connection = connections[spark_site[ALONE]["DATABASE"]]
    with connection.copy().get_new_connection(connection.get_connection_params()) as listens:
        listens.autocommit = True
        listens.execute("LISTEN delayq")
        soon = reminders(spark).withColumn("due_at", f.current_timestamp())
        assert write(soon.coalesce(1), ALONE, tmp_path, idColumns="data.customer").sent == 10
        heard = {tuple(notice.payload.split("\x1f")[:3]) for notice in listens.notifies(timeout=1)}
    assert heard == {(ALONE, "default", "remind")}
    claims = get_backend(ALONE).queue.claim([ClaimRequest("default", "remind", 100)], lease_ms=60_000, worker="w")
    assert len(claims.messages) == 10


def test_a_job_run_again_sends_nothing_twice_though_a_message_has_ended(
    spark: SparkSession, using: str, tmp_path: Path
) -> None:
    write(reminders(spark, 3), using, tmp_path, idColumns="data.customer")
    assert cancel_delay_messages("remind:0", using=using) == 1
    again = write(reminders(spark, 4), using, tmp_path, idColumns="data.customer")
    assert (again.sent, again.already_there) == (1, 3)
    info = get_delay_message("remind:0", using=using)
    assert info is None or info.state is State.CANCELLED, "it is not sent again"


@pytest.mark.parametrize("using", [CARRIED, STORED])
def test_a_task_that_dies_halfway_and_is_run_again_sends_nothing_twice(
    spark: SparkSession, using: str, tmp_path: Path
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            context = TaskContext.get()
            if number == 2 and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("a node died")
            yield batch

    rows = reminders(spark, 2000).coalesce(1)
    summary = write(rows.mapInArrow(fail_once, rows.schema), using, tmp_path, idColumns="data.customer")
    assert summary.read == 2000
    assert summary.sent + summary.already_there == 2000
    assert waiting(using) == 2000
    assert get_backend(using).queue.audit().differences == []


def test_bad_rows_fail_the_job_and_nothing_of_their_batch_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    rows = reminders(spark).withColumn("key", f.expr("if(data.customer = 4, 'remond', key)")).coalesce(1)
    with pytest.raises(Exception, match="1 of the 10 rows of a batch are bad") as failure:
        write(rows, CARRIED, tmp_path, idColumns="data.customer")
    reason = reason_of(failure.value)
    assert "row 4: " in reason
    assert "did you mean 'remind'?" in reason
    assert "Traceback" not in reason
    assert waiting(CARRIED) == 0


def test_bad_rows_are_kept_apart_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    rows = reminders(spark).withColumn("data", f.expr("if(data.customer % 5 = 4, null, data)"))
    rows = rows.withColumn("id", f.uuid())
    apart = str(tmp_path / "apart")
    summary = write(rows, CARRIED, tmp_path, onBadRow="quarantine", quarantinePath=apart)
    assert (summary.sent, summary.quarantined) == (8, 2)
    kept = spark.read.parquet(apart).collect()
    assert [row.data for row in kept] == [None, None]
    assert all("Reminder" in row.reason for row in kept)


def test_what_can_not_work_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="did you mean 'remind'") as failure:
        write(reminders(spark).drop("key"), CARRIED, tmp_path, key="remond", idColumns="data.customer")
    assert reason_of(failure.value).startswith("key='remond' has no handler")
    with pytest.raises(Exception, match="is kept in a ledger"):
        write(reminders(spark), CARRIED, tmp_path, job="", idColumns="data.customer")
    with pytest.raises(Exception, match="MemoryBroker"):
        write(reminders(spark), "default", tmp_path, idColumns="data.customer")
