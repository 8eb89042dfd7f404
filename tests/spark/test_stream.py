"""Streams: what ends is read once, also what commits late; what is sent from a stream is sent once."""

import json
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from django_delayq import cancel_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import FinishMessage
from django_delayq.spark.errors import SparkError
from django_delayq.spark.read.shapes import schema_of
from django_delayq.spark.read.stream_options import StreamOptions
from django_delayq.spark.stream.reader import StreamReader
from tests.spark.ended import finish
from tests.spark.killed_stream import KilledSource
from tests.spark.support import EMBEDDED, STORED, waiting


class Follower:
    """A stream that is read batch by batch, as Spark reads it."""

    def __init__(self, using: str) -> None:
        given = {"settings": "tests.spark.settings", "using": using, "table": "finish", "columns": "pk"}
        self._reader = StreamReader(StreamOptions.of(given), schema_of("finish", ("pk",)))
        self._at = self._reader.initialOffset()

    def next(self) -> list[int]:
        """Return what the next batch has."""
        end = self._reader.latestOffset()
        parts = self._reader.partitions(self._at, end)
        self._at = end
        return [row["pk"] for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]


def insert(connection: BaseDatabaseWrapper, pk: int) -> None:
    """A message ends, in the transaction of a connection: as one that ended before, but for its pk."""
    columns = ", ".join(f'"{field.column}"' for field in FinishMessage._meta.fields)
    copied = columns.replace('"id"', str(pk), 1)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO delayq_finish ({columns}) SELECT {copied} FROM delayq_finish WHERE id = 1")  # noqa: S608


@pytest.mark.usefixtures("spark")
def test_what_commits_late_is_read_late_and_never_missed() -> None:
    finish(STORED, [1])
    follower = Follower(STORED)
    assert follower.next() == []  # it begins with what ends from now on
    finish(STORED, [2])
    assert follower.next() == [2]
    # The one that began first commits last.
    late = connections.create_connection(get_alias(STORED).database)
    late.set_autocommit(False)
    insert(late, 3)
    finish(STORED, [4])
    assert follower.next() == []
    late.commit()
    late.close()
    assert sorted(follower.next()) == [3, 4]
    assert follower.next() == []


@pytest.mark.usefixtures("spark")
def test_only_postgresql_is_followed() -> None:
    with pytest.raises(SparkError, match="can't be followed as a stream"):
        Follower(EMBEDDED)


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    read: list[tuple[int, str]] = []
    columns = {"using": STORED, "table": "finish", "startingFrom": "earliest", "columns": "pk,outcome"}

    def run() -> None:
        rows = spark.readStream.format("delayq").options(**columns).load()
        writer = rows.writeStream.foreachBatch(lambda batch, number: read.extend(map(tuple, batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()

    finish(STORED, [1, 2])
    run()
    assert sorted(read) == [(1, "finished"), (2, "finished")]
    finish(STORED, [3])
    run()
    assert sorted(read) == [(1, "finished"), (2, "finished"), (3, "finished")]


def test_messages_are_sent_from_a_stream_once_though_it_is_killed_between_its_write_and_its_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    checkpoint = tmp_path / "checkpoint"
    spark.dataSource.register(KilledSource)

    def add(number: int) -> None:
        lines = [json.dumps({"id": f"m{number}{n}", "data": "{}", "delay": "1h"}) for n in range(3)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))

    def run(format: str) -> None:
        options = {"using": STORED, "key": "note", "checkpointLocation": str(checkpoint)}
        rows = spark.readStream.schema("id string, data string, delay string").json(str(tmp_path / "in"))
        query = rows.writeStream.format(format).outputMode("append").options(**options).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def committed() -> set[str]:
        return {path.name for path in (checkpoint / "commits").glob("[0-9]*")}

    add(1)
    run("delayq")
    assert (waiting(STORED), committed()) == (3, {"0"})
    add(2)
    with pytest.raises(StreamingQueryException):
        run("killed")
    assert (waiting(STORED), committed()) == (6, {"0"})  # it was sent, and nothing says so
    cancel_delay_messages("m20", using=STORED)
    run("delayq")
    assert (waiting(STORED), committed()) == (5, {"0", "1"})
    assert get_backend(STORED).queue.audit().differences == []
