"""Move rows that ended long ago from their table into a lake of Parquet.

No row is lost or doubled, whenever the job is killed. For each chunk of rows, these steps follow one another:

- The rows are written below `_unfinished`.
- A note beside them says that the files are whole, and has a digest of their pks, as read back from the files.
- The files are moved to their places.
- If the files still hold the rows of the note, exactly those are removed from the table in one transaction, or none.
- The note is removed.

The next run of the job finishes what a killed one began. Two runs at once on one lake are not supported.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from pyspark.sql import DataFrame, SparkSession, functions as f

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import BATCH, pages
from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.lake import UNFINISHED, Lake
from django_delayq.spark.read.shapes import TABLES
from django_delayq.spark.session import check_zone
from django_delayq.store.database import Database
from django_delayq.store.operations import remove
from django_delayq.store.sql.dialect import marks
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.timestamps import to_epoch_ms

ARCHIVED = ("finish", "error")
CHUNK_ROWS = 100_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Archived:
    """The counts of a run: rows and chunks moved, rows moved for a killed run, and tries of a chunk that moved none."""

    rows: int = 0
    chunks: int = 0
    recovered: int = 0
    empty_tries: int = 0


def archive(
    spark: SparkSession, using: str, lake: Lake, table: str, before: datetime, *, chunk_rows: int = CHUNK_ROWS
) -> Archived:
    """Move rows of "finish" or "error" that ended before the instant `before`.

    Raises `SparkError` if that can't be done.
    """
    if table not in ARCHIVED:
        raise SparkError(f"table={table!r} has nothing that ended: give 'finish' or 'error'.")
    check_zone(spark)
    database = database_of(using)
    recovered, empty_tries = recover(lake, database)
    rows = chunks = 0
    stayed: list[tuple[int, int]] = []
    while (span := _next_span(database, TABLES[table], before, chunk_rows)) is not None:
        if stayed.count(span) > _TRIES:
            raise SparkError(f"{table} from pk {span[0]} to {span[1]} can't be moved: does Spark see those rows?")
        found = _rows(spark, using, table, before, *span)
        taken = _move_chunk(lake, database, table, found, f"{database.alias}-{table}-{span[0]}-{span[1]}")
        rows, chunks = rows + taken, chunks + (taken > 0)
        if not taken:
            stayed.append(span)
    empty_tries += len(stayed)
    return Archived(rows, chunks, recovered, empty_tries)


def database_of(using: str) -> Database:
    """Return the database of an alias's store. Raises `SparkError` if it has none."""
    store = get_backend(using).store
    if store is None:
        raise SparkError(f"{using!r} has no store, so there are no tables.")
    database: Database = store.database
    return database


def recover(lake: Lake, database: Database) -> tuple[int, int]:
    """Finish what a killed run began. Return how many rows were moved, and how many tries moved none."""
    rows = empty_tries = 0
    for chunk, note in lake.unfinished():
        if chunk.rsplit("-", 3)[0] != database.alias:  # ALIAS-TABLE-FIRST-LAST
            continue
        if note is None:
            lake.forget(chunk)
        else:
            taken = _end(lake, database, chunk, note)
            rows, empty_tries = rows + taken, empty_tries + (not taken)
    return rows, empty_tries


def _next_span(database: Database, table: str, before: datetime, chunk_rows: int) -> tuple[int, int] | None:
    """Return the first and last pk of the next rows to move; None if there are none."""
    ((first, last),) = database.rows(
        "SELECT min(id), max(id) FROM (SELECT r.id FROM"  # noqa: S608  # a table of ours
        f" {table} r WHERE r.alias = %s AND r.ended_at < %s ORDER BY r.id LIMIT {chunk_rows:d}) AS next",
        [database.alias, to_epoch_ms(before)],
    )
    return None if first is None else (first, last)


def _rows(spark: SparkSession, using: str, table: str, before: datetime, first: int, last: int) -> DataFrame:
    rows = spark.read.format("delayq").options(using=using, table=table, pushFilters="true").load()
    return rows.where(f.col("pk").between(first, last) & (f.col("ended_at") < f.lit(before)))


def _move_chunk(lake: Lake, database: Database, table: str, rows: DataFrame, chunk: str) -> int:
    """Move the rows of one chunk, and return how many there were.

    If some of them have left the table meanwhile, move none, and return 0.
    """
    _write(lake, rows, chunk)
    note = _note(lake, table, chunk)
    lake.note(chunk, note)
    return _end(lake, database, chunk, note)


def _write(lake: Lake, rows: DataFrame, chunk: str) -> None:
    # The directories have columns of their own beside those of the rows, so that a key in a file stays the text it was.
    placed = rows.withColumn("date", f.to_date("ended_at")).withColumn("of_key", f.col("key"))
    placed = placed.repartition("date", "of_key")
    writer = placed.write.mode("overwrite").option("compression", "zstd")
    writer.partitionBy("date", "of_key").parquet(lake.uri(f"{UNFINISHED}/{chunk}"))


def _note(lake: Lake, table: str, chunk: str) -> dict[str, Any]:
    moves = {}
    for number, start in enumerate(lake.files(f"{UNFINISHED}/{chunk}")):
        place = start.removeprefix(f"{UNFINISHED}/{chunk}/").rpartition("/")[0]
        moves[start] = f"{table}/{place}/{chunk}-{number}.parquet"
    return {"table": table, "moves": moves, "rows": _digest(lake.column(list(moves), "pk"))}


def _digest(pks: Sequence[int]) -> str:
    return hashlib.sha256(",".join(sorted(map(str, pks))).encode()).hexdigest()


def _end(lake: Lake, database: Database, chunk: str, note: dict[str, Any]) -> int:
    """Finish a chunk from its note (the record of files to move and rows to remove). Return how many rows were moved.

    Each step may have been done already. If some rows have left the table, none is moved, and the files are removed.

    Raises `SparkError`, with no row removed, if the files don't hold the rows that they held when the note was written.
    """
    for start, end in note["moves"].items():
        lake.move(start, end)
    files = list(note["moves"].values())
    pks = lake.column(files, "pk")
    if _digest(pks) != note["rows"]:
        raise SparkError(
            f"The files of {lake.uri(f'{UNFINISHED}/{chunk}.json')} hold other rows than they were written with, so no "
            f"row was removed from its table. Find out who changed them; then remove them and the note."
        )
    taken = len(pks) if _take(database, TABLES[note["table"]], pks) else 0
    if taken:
        facts = {"of": note["table"], "rows": taken, "chunk": chunk}
        record(operator_of_process(), "archive", database.alias, **facts)
    else:
        for path in files:
            lake.remove(path)
    lake.forget(chunk)
    return taken


def _take(database: Database, table: str, pks: Sequence[int]) -> bool:
    """Remove exactly these rows from the table, or find that an earlier run has done so.

    Return False, with nothing changed, if only some of the rows are still in the table, or some are in another table.
    """
    with transaction.atomic(database.using):
        removed = remove(database, table, pks)
        if removed == len(pks) or (removed == 0 and not _are_anywhere(database, pks)):
            return True
        transaction.set_rollback(True, database.using)
        return False


def _are_anywhere(database: Database, pks: Sequence[int]) -> bool:
    return any(
        database.rows(f"SELECT 1 FROM {table} WHERE id IN ({marks(len(page))}) LIMIT 1", page)  # noqa: S608  # ours
        for table in TABLES.values()
        for page in pages(pks, BATCH)
    )


def read_lake(spark: SparkSession, lake: Lake, table: str) -> DataFrame | None:
    """Return the rows that the lake holds of a table, with the table's columns; None if there are none."""
    if not lake.files(table):
        return None
    return spark.read.parquet(lake.uri(table)).drop("date", "of_key")
