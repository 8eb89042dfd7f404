"""The tables of a store, a page of pks at a time: no statement lasts, so none holds back what vacuum may remove."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import csv

from django_delayq.spark.read.filters import Wanted
from django_delayq.spark.read.parts import Ended, KeyRange
from django_delayq.spark.read.shapes import column
from django_delayq.store.copied import can_copy
from django_delayq.store.database import Database, Sql, marks
from django_delayq.store.rows import FREE

LAST_PK = 2**63 - 1
_PK = "_pk"
_WRAPS = 2**31  # transactions: what is older is frozen, and was read long ago


class Query(NamedTuple):
    """What is read of a table."""

    table: str
    wanted: Wanted
    only_free: bool
    """Of the ready table what nobody runs."""
    ended: Ended | None = None
    """Only what these transactions have put there."""


def settled(database: Database) -> int:
    """The number of a transaction before which all have ended, on PostgreSQL."""
    ((xid,),) = database.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    return int(xid)


def key_ranges(database: Database, query: Query, count: int) -> list[KeyRange]:
    """The pks that there are now, of those wanted, in ranges of one length. What is sent later is not read."""
    with database.available():
        ((first, last),) = database.rows(
            f"SELECT min(r.id), max(r.id) FROM {query.table} r WHERE r.alias = %s", [database.alias]
        )
    if first is None:
        return []
    first, last = max(first, query.wanted.first.get("pk", first)), min(last, query.wanted.last.get("pk", last))
    step = -(-(last - first + 1) // count)
    return [KeyRange(start - 1, min(start + step - 1, last)) for start in range(first, last + 1, step)]


def read(
    database: Database, query: Query, part: KeyRange, page_rows: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in the order of their pks, in batches of at most `page_rows`."""
    fetch = _copy if can_copy(database) else _select
    after = part.after
    try:
        while True:
            with database.available():
                page = fetch(database, _page(database, query, schema, after, part.last, page_rows), schema)
            yield from (_as_spark_has_it(batch, schema) for batch in page.to_batches() if batch.num_rows)
            if page.num_rows < page_rows:
                return
            after = page.column(_PK)[-1].as_py()
    finally:
        database.connection.close()


def _page(database: Database, query: Query, schema: pa.Schema, after: int, last: int, page_rows: int) -> Sql:
    selected = ", ".join([*map(column, schema.names), f"r.id AS {_PK}"])
    conditions = ["r.alias = %s", "r.id > %s", "r.id <= %s"]
    parameters: list[Any] = [database.alias, after, last]
    if query.ended is not None:
        # A row knows the lower half of its transaction's number: what it is short of `end` says which one it was.
        conditions.append("(r.xmin::text::bigint - %s + 4294967296) %% 4294967296 BETWEEN %s AND 4294967295")
        short = min(query.ended.end - query.ended.start, _WRAPS)
        parameters += [query.ended.end % 2**32, 2**32 - short]
    if query.only_free:
        conditions.append(FREE.format(now=database.dialect.now))
    for name, names in query.wanted.names.items():
        conditions.append(f"{column(name)} IN ({marks(len(names))})" if names else "1 = 0")
        parameters += sorted(names)
    for compared, ends in ((">=", query.wanted.first), ("<=", query.wanted.last)):
        for name, end in ends.items():
            conditions.append(f"{column(name)} {compared} %s")
            parameters.append(end)
    where = " AND ".join(conditions)
    return Sql(f"SELECT {selected} FROM {query.table} r WHERE {where} ORDER BY r.id LIMIT {page_rows}", parameters)


def _copy(database: Database, page: Sql, schema: pa.Schema) -> pa.Table:
    """On PostgreSQL: the database writes CSV, Arrow reads it, and no value is ever one of Python."""
    with database.connection.cursor() as cursor:
        statement = cursor.mogrify(page.text, page.parameters)
        with cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as copy:
            text = b"".join(copy)
    raw = _raw(schema)
    if not text:
        return raw.empty_table()
    return csv.read_csv(
        BytesIO(text),
        read_options=csv.ReadOptions(column_names=raw.names, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=raw,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # an empty text is quoted, null is not
            true_values=["t"],
            false_values=["f"],
        ),
    )


def _select(database: Database, page: Sql, schema: pa.Schema) -> pa.Table:
    raw = _raw(schema)
    rows = database.rows(page.text, page.parameters)
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(raw)
    return pa.Table.from_arrays(
        [_array(values, each.type) for values, each in zip(columns, raw, strict=True)], schema=raw
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):  # to SQLite and MySQL they are numbers
        values = [None if value is None else bool(value) for value in values]
    return pa.array(values, kind)


def _raw(schema: pa.Schema) -> pa.Schema:
    """The types as tables have them: instants are whole milliseconds."""
    kinds = [pa.int64() if pa.types.is_timestamp(each.type) else each.type for each in schema]
    return pa.schema([*zip(schema.names, kinds, strict=True), (_PK, pa.int64())])


def _as_spark_has_it(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_cast(batch.column(each.name), each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(pa.timestamp("ms", "UTC")).cast(kind) if pa.types.is_timestamp(kind) else values
