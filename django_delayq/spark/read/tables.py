"""Read the tables of a store, a page of pks at a time. No statement takes long, so none holds up vacuum."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute as pc, csv

from django_delayq.spark.read.filters import Wanted
from django_delayq.spark.read.parts import EndedBetween, KeyRange
from django_delayq.spark.read.shapes import column
from django_delayq.store.bulk_copy import can_copy
from django_delayq.store.database import Database
from django_delayq.store.sql.dialect import WAITING, Sql, marks

_PK, _BEGIN, _END = "_pk", "_begin", "_end"
_LINES = 100  # rows in one value, which holds a GB at most
_PAGES = 5  # the fewest of one task, whose start costs as much as some pages
_WRAPS = 2**31  # rows of transactions longer ago than this are frozen, and were read long ago


class Query(NamedTuple):
    """The rows to read from a table."""

    table: str
    wanted: Wanted
    only_free: bool
    """Whether to read only rows of the ready table that nobody runs."""
    ended: EndedBetween | None = None
    """If given, read only rows that these transactions wrote."""


def settled(database: Database) -> int:
    """Return the lowest number of a transaction of PostgreSQL that may still run. All lower ones have ended."""
    ((xid,),) = database.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    return int(xid)


def key_ranges(database: Database, query: Query, count: int, page_rows: int) -> list[KeyRange]:
    """Cut the present pks of the wanted rows into at most `count` ranges of equal length.

    There are fewer ranges if there are few pks, or a filter leaves few rows, because a task costs as much as some
    pages. Messages that are sent later are not read.
    """
    with database.available():
        ((first, last),) = database.rows(
            f"SELECT min(r.id), max(r.id) FROM {query.table} r WHERE r.alias = %s", [database.alias]
        )
    if first is None:
        return []
    first, last = max(first, query.wanted.first.get("pk", first)), min(last, query.wanted.last.get("pk", last))
    rows_of_task = _PAGES * page_rows
    count = min(count, -(-(last - first + 1) // rows_of_task))
    if query.wanted.narrows and count > 0:
        count = min(count, -(-_found(database, query, count * rows_of_task) // rows_of_task))
    if count <= 0:
        return []
    step = -(-(last - first + 1) // count)
    return [KeyRange(start - 1, min(start + step - 1, last)) for start in range(first, last + 1, step)]


def _found(database: Database, query: Query, most: int) -> int:
    conditions, parameters = _conditions(database, query)
    rows = f"SELECT 1 FROM {query.table} r WHERE {' AND '.join(conditions)} LIMIT {most}"
    with database.available():
        ((found,),) = database.rows(f"SELECT count(*) FROM ({rows}) AS found", parameters)
    return int(found)


def read(
    database: Database, query: Query, part: KeyRange, page_rows: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in batches of at most `page_rows`."""
    with database.available():
        fetch = _copy if can_copy(database) else _select
        if fetch is _copy:
            database.rows("SET jit = off")  # a page is read in less time than its statement is compiled
    after, width = part.after, page_rows
    try:
        while after < part.last:
            last = min(after + width, part.last)
            with database.available():
                page = fetch(database, _page(database, query, after, last, page_rows), schema)
            yield from (_as_spark_has_it(batch, schema) for batch in page.to_batches() if batch.num_rows)
            if page.num_rows == page_rows:
                after, width = pc.max(page.column(_PK)).as_py(), page_rows
            else:
                after, width = last, width if page.num_rows > page_rows // 2 else 2 * width
    finally:
        database.connection.close()


def _page(database: Database, query: Query, after: int, last: int, page_rows: int) -> Sql:
    """Return a query for the first `page_rows` rows of a span of pks.

    It is fast with any plan of the database, because the span is short.
    """
    conditions, parameters = _conditions(database, query)
    where = " AND ".join(["r.id > %s", "r.id <= %s", *conditions])
    return Sql(f"FROM {query.table} r WHERE {where} ORDER BY r.id LIMIT {page_rows}", [after, last, *parameters])


def _conditions(database: Database, query: Query) -> tuple[list[str], list[Any]]:
    # The indexes begin with the alias. If all rows of a span are wanted, the index of the pks must be used, whatever
    # the database knows of the table.
    alias = "r.alias = %s" if query.wanted.narrows else "COALESCE(r.alias, '') = %s"
    conditions: list[str] = [alias]
    parameters: list[Any] = [database.alias]
    if query.ended is not None:
        # A row has the lower half of its transaction's number. Its distance to `end` says which transaction it was.
        conditions.append("(r.xmin::text::bigint - %s + 4294967296) %% 4294967296 BETWEEN %s AND 4294967295")
        short = min(query.ended.end - query.ended.start, _WRAPS)
        parameters += [query.ended.end % 2**32, 2**32 - short]
    if query.only_free:
        conditions.append(WAITING)
    for name, names in query.wanted.names.items():
        conditions.append(f"{column(name)} IN ({marks(len(names))})" if names else "1 = 0")
        parameters += sorted(names)
    for compared, ends in ((">=", query.wanted.first), ("<=", query.wanted.last)):
        for name, end in ends.items():
            conditions.append(f"{column(name)} {compared} %s")
            parameters.append(end)
    return conditions, parameters


def _copy(database: Database, page: Sql, schema: pa.Schema) -> pa.Table:
    """Fetch a page on PostgreSQL: the database writes lines and Arrow reads them, so no value becomes a Python object.

    Many lines come as one row, because taking the rows of COPY one by one costs the client more than all the rest.
    """
    line = f"SELECT r.id AS pk, ROW(NULL, {_columns(schema)}, NULL)::text AS line"  # in parentheses, hence the nulls
    lines = f"SELECT string_agg(line, E'\\n') FROM ({line} {page.text}) AS lines GROUP BY pk / {_LINES}"
    # COPY takes no parameters.
    statement = database.connection.ops.compose_sql(lines, page.parameters)  # type: ignore[attr-defined]
    with database.copying(f"COPY ({statement}) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["bytea"])
        text = b"\n".join([line for (line,) in copy.rows()])
    raw = _raw(schema)
    if not text:
        return raw.empty_table()
    return csv.read_csv(
        BytesIO(text),
        read_options=csv.ReadOptions(column_names=[_BEGIN, *raw.names, _END], use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, escape_char="\\"),
        convert_options=csv.ConvertOptions(
            column_types=raw,
            include_columns=raw.names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # an empty text is quoted, null is not
            true_values=["t"],
            false_values=["f"],
        ),
    )


def _select(database: Database, page: Sql, schema: pa.Schema) -> pa.Table:
    raw = _raw(schema)
    rows = database.rows(f"SELECT {_columns(schema)} {page.text}", page.parameters)
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(raw)
    return pa.Table.from_arrays(
        [_array(values, each.type) for values, each in zip(columns, raw, strict=True)], schema=raw
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join([*map(column, schema.names), "r.id"])


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):  # to SQLite and MySQL they are numbers
        values = [None if value is None else bool(value) for value in values]
    return pa.array(values, kind)


def _raw(schema: pa.Schema) -> pa.Schema:
    """Return the schema as tables have it, with instants in whole milliseconds, and with the pk."""
    kinds = [pa.int64() if pa.types.is_timestamp(each.type) else each.type for each in schema]
    return pa.schema([*zip(schema.names, kinds, strict=True), (_PK, pa.int64())])


def _as_spark_has_it(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [_cast(batch.column(each.name), each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(pa.timestamp("ms", "UTC")).cast(kind) if pa.types.is_timestamp(kind) else values
