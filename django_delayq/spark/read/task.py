"""Run a read inside the site: cut it into parts, and read one part in each task."""

from collections.abc import Iterator, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from django_delayq.brokers import get_backend
from django_delayq.conf import Alias
from django_delayq.spark.errors import SparkError
from django_delayq.spark.read import tables, waiting
from django_delayq.spark.read.filters import Wanted
from django_delayq.spark.read.options import ReadOptions
from django_delayq.spark.read.parts import EndedBetween, KeyRange, Part, WaitSets
from django_delayq.spark.read.shapes import TABLES, WAITING
from django_delayq.spark.read.stream_options import StreamOptions
from django_delayq.store.database import Database


def parts(options: ReadOptions, wanted: Wanted, alias: Alias) -> Sequence[Part]:
    """Return a part for each task. Raises `SparkError` if a table is to be read and the alias has no store."""
    backend = get_backend(alias.name)
    if backend.store is not None:
        return tables.key_ranges(backend.store.database, _query(options, wanted), options.partitions, options.page_rows)
    if options.source != WAITING:
        raise SparkError(f"{alias.name!r} has no store, so there is no table {options.source!r}; read 'waiting'.")
    return waiting.parts(waiting.scanner_of(backend.queue, alias), wanted)


def read(
    part: Part, options: ReadOptions, wanted: Wanted, schema: StructType, alias: Alias
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a part, a page at a time."""
    # Spark compares the schema with its own, time zone included.
    arrow = to_arrow_schema(schema, timezone="UTC")
    backend = get_backend(alias.name)
    if backend.store is not None:
        return tables.read(
            backend.store.database, _query(options, wanted), cast(KeyRange, part), options.page_rows, arrow
        )
    part = cast(WaitSets, part)
    return waiting.read(waiting.scanner_of(backend.queue, alias), part, wanted, options.page_rows, arrow)


def _query(options: ReadOptions, wanted: Wanted) -> tables.Query:
    only_free = options.source == WAITING
    return tables.Query(TABLES["ready" if only_free else options.source], wanted, only_free)


def settled(alias: Alias) -> int:
    """Return the lowest number of a transaction of the alias's database that may still run, as `tables.settled` does.

    Raises `SparkError` unless the store is on PostgreSQL.
    """
    database = _followed(alias)
    try:
        with database.available():
            return tables.settled(database)
    finally:
        database.connection.close()


def read_ended(part: Part, options: StreamOptions, schema: StructType, alias: Alias) -> Iterator[pa.RecordBatch]:
    """Yield, in batches, the rows that the transactions of `part` have put into a table."""
    query = tables.Query(TABLES[options.source], Wanted(), only_free=False, ended=cast(EndedBetween, part))
    arrow = to_arrow_schema(schema, timezone="UTC")
    database = _followed(alias)
    for part_of_table in tables.key_ranges(database, query, 1, options.page_rows):
        yield from tables.read(database, query, part_of_table, options.page_rows, arrow)


def _followed(alias: Alias) -> Database:
    store = get_backend(alias.name).store
    if store is None or store.database.vendor != "postgresql":
        raise SparkError(
            f"{alias.name!r} can't be followed as a stream: only PostgreSQL tells in which order transactions commit. "
            "Use a store there, or read the table again and again."
        )
    database: Database = store.database
    return database
