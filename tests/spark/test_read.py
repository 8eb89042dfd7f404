"""What waits and what has ended, as DataFrames: all of it, once, and as it was."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from pyspark.sql import DataFrame, SparkSession, functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from django_delayq import Message, Send, cancel_delay_messages, delay_execute, send_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage
from django_delayq.spark.errors import reason_of
from django_delayq.spark.read.filters import Wanted
from django_delayq.spark.read.shapes import schema_of
from django_delayq.spark.read.tables import Query, key_ranges, read as read_table
from django_delayq.store import DatabaseBackend
from django_delayq.store.database import Database
from django_delayq.support.timestamps import from_ms
from tests.databases import registered
from tests.spark.support import CARRIED, EMBEDDED, STORED

START = datetime(2096, 1, 1, tzinfo=UTC)
NASTY = 'a "quoted", \\backslashed\\,\nbroken\r\n line\t\N{SNOWMAN}'


def send(using: str, count: int = 50) -> None:
    """Messages that are due a minute apart."""
    send_delay_messages(
        (
            Send(
                "note",
                {"n": n, "text": NASTY},
                at=from_ms(4_000_000_000_000 + 60_000 * n),
                id=f"m{n:03}",
                tag=tag(n),
                queue="notes",
            )
            for n in range(count)
        ),
        using=using,
    )


def tag(n: int) -> str | None:
    return "even" if n % 2 == 0 else None


def read(spark: SparkSession, using: str, **options: Any) -> DataFrame:
    return spark.read.format("delayq").options(using=using, **options).load()


def test_everything_that_waits_is_read_once_and_as_it_was_sent(spark: SparkSession, using: str) -> None:
    send(using)
    rows = read(spark, using, pageRows=4, partitions=3).orderBy("id").collect()
    assert [row.id for row in rows] == [f"m{n:03}" for n in range(50)]
    row = rows[3]
    assert (row.key, row.queue, row.tag, row.failures) == ("note", "notes", None, 0)
    assert row.data == '{"n":3,"text":"a \\"quoted\\", \\\\backslashed\\\\,\\nbroken\\r\\n line\\t\N{SNOWMAN}"}'
    assert row.due_at.astimezone(UTC) == from_ms(4_000_000_000_000 + 180_000)
    assert rows[4].tag == "even"


@pytest.mark.usefixtures("registry")
def test_the_version_of_the_data_is_read(spark: SparkSession, using: str) -> None:
    handler = delay_execute("grown", using=using)(grown)
    handler.send({}, delay="1h")
    handler.upgrade(from_version=1)(grow)
    handler.send({}, delay="2h")
    assert [row.version for row in read(spark, using).orderBy("due_at").collect()] == [None, 2]


def grown(message: Message[Any]) -> None: ...


def grow(data: Any) -> Any:
    return data


def test_filters_and_columns_are_read_where_the_messages_are(spark: SparkSession, using: str) -> None:
    send(using)
    near = read(spark, using, columns="id,due_at,key", pushFilters="true").where(
        (f.col("due_at") < f.timestamp_millis(f.lit(4_000_000_000_000 + 60_000 * 3))) & (f.col("key") == "note")
    )
    assert near.columns == ["id", "due_at", "key"]
    assert sorted(row.id for row in near.collect()) == ["m000", "m001", "m002"]
    plan = near._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan  # Spark has none left to do
    assert read(spark, using, pushFilters="true").where("key = 'other'").count() == 0


@pytest.mark.usefixtures("spark")
def test_no_task_has_fewer_rows_than_some_pages() -> None:
    send(STORED, 50)
    broker = get_backend(STORED)
    assert isinstance(broker, DatabaseBackend)

    def tasks(wanted: Wanted, most: int = 8, page_rows: int = 1) -> int:
        return len(key_ranges(broker.database, Query("delayq_ready", wanted, only_free=False), most, page_rows))

    assert tasks(Wanted()) == 8
    assert tasks(Wanted(), page_rows=2) == 5
    assert tasks(Wanted(), page_rows=1000) == 1
    assert tasks(Wanted(last={"due_at": 4_000_000_000_000 + 60_000 * 9})) == 2
    assert tasks(Wanted(names={"key": frozenset(["other"])})) == 0


def test_a_filter_of_one_use_is_not_one_of_the_next(spark: SparkSession) -> None:
    send(CARRIED, 5)
    rows = read(spark, CARRIED)
    assert rows.where("id = 'm001'").count() == 1
    assert rows.count() == 5  # PySpark up to 4.3 would give 1, if such filters were pushed down


@pytest.mark.parametrize("using", [STORED, EMBEDDED])
def test_what_has_ended_is_read_from_its_table(spark: SparkSession, using: str) -> None:
    send(using, 5)
    cancel_delay_messages("m001", "m003", using=using)
    ended = read(spark, using, table="finish", columns="pk,id,outcome,ended_at,worker,trace_id,at_most_once")
    rows = ended.orderBy("id").collect()
    assert [(row.id, row.outcome) for row in rows] == [("m001", "cancelled"), ("m003", "cancelled")]
    assert (rows[0].worker, rows[0].trace_id, rows[0].at_most_once) == ("", None, False)  # empty is not null
    assert ended.where(f.col("ended_at") < f.timestamp_millis(f.lit(0))).count() == 0
    assert read(spark, using, table="ready").count() == 3
    assert read(spark, using, table="error").count() == 0


@pytest.mark.parametrize("using", [STORED, EMBEDDED])
def test_texts_of_any_kind_are_read_as_they_are(spark: SparkSession, using: str) -> None:
    database = get_alias(using).database
    row = {"alias": using, "queue": "q", "key": "k", "data": "null", "error": NASTY, "worker": "", "history": "[]"}
    instants = dict.fromkeys(("due_at", "scheduled_at", "sent_at", "ended_at"), START)
    counts = {"failures": 1, "crashes": 0, "at_most_once": True, "fingerprint": ""}
    details = ["", NASTY, "\\N", "\\", "(a, b)", " ", '""', "null", "NA", "t"]
    for pk, detail in zip(range(60, 660, 60), details, strict=True):
        ErrorMessage.objects.using(database).create(
            id=pk, message_id=str(pk), detail=detail, **row, **instants, **counts
        )
    columns = "pk,detail,error,tag,at_most_once,ended_at"
    rows = read(spark, using, table="error", columns=columns, pageRows=4, partitions=1).orderBy("pk").collect()
    assert [row.detail for row in rows] == details
    assert {(row.error, row.tag, row.at_most_once) for row in rows} == {(NASTY, None, True)}
    assert {row.ended_at.astimezone(UTC) for row in rows} == {START}


@pytest.mark.usefixtures("spark")
def test_a_site_whose_parameters_the_server_binds_is_read_too() -> None:
    send(STORED, 3)
    of_site = connections.settings[get_alias(STORED).database]
    with registered("bound_at_server", {**of_site, "OPTIONS": {"server_side_binding": True}}) as using:
        database = Database(STORED, using)
        query = Query("delayq_ready", Wanted(names={"tag": frozenset(["even"])}), only_free=True)
        schema = to_arrow_schema(schema_of("ready", ("id", "tag")), timezone="UTC")
        (part,) = key_ranges(database, query, 1, 10)
        (batch,) = read_table(database, query, part, 10, schema)
    assert batch.to_pylist() == [{"id": f"m{n:03}", "tag": "even"} for n in (0, 2)]


def test_what_can_not_be_read_is_said_with_the_fix(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="has no store") as failure:
        read(spark, CARRIED, table="finish").count()
    assert reason_of(failure.value).endswith("read 'waiting'.")
    with pytest.raises(Exception, match="did you mean 'due_at'"):
        read(spark, CARRIED, columns="id,due")
    with pytest.raises(Exception, match="did you mean 'finish'"):
        read(spark, CARRIED, table="finished")
