"""Read the waiting messages of a broker that carries messages, in bounded pages.

It is no snapshot. A message that waits unchanged all the while is read exactly once. A message that comes, goes or
gets another due time meanwhile may be read or not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from django_delayq.brokers.base import Place, Queue, Scanner, Waiting
from django_delayq.conf import Alias
from django_delayq.spark.errors import SparkError
from django_delayq.spark.read.filters import Wanted
from django_delayq.spark.read.parts import WaitSets

_LAST_MS = 2**53  # the most that a score holds exactly


def scanner_of(queue: Queue, alias: Alias) -> Scanner:
    """Return the queue as a scanner. Raises `SparkError` if it can't be read page by page."""
    if not isinstance(queue, Scanner):
        raise SparkError(
            f"The broker of {alias.name!r} ({alias.broker}) can't be read from Spark; use the Redis broker."
        )
    return queue


def parts(scanner: Scanner, wanted: Wanted) -> list[WaitSets]:
    """Return a part for each shard that has a wait set of a wanted queue and key."""
    wanted_of = ([name for name in names if _is_wanted(name, wanted)] for names in scanner.wait_sets())
    return [WaitSets(shard, names) for shard, names in enumerate(wanted_of) if names]


def _is_wanted(name: str, wanted: Wanted) -> bool:
    queue, _, key = name.partition(":")
    return all(value in wanted.names.get(column, (value,)) for column, value in (("queue", queue), ("key", key)))


def read(
    scanner: Scanner, part: WaitSets, wanted: Wanted, page_rows: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some wait sets, each in the order of due times."""
    first_ms, last_ms = wanted.first.get("due_at", 0), wanted.last.get("due_at", _LAST_MS)
    for name in part.names:
        place: Place | None = Place(first_ms)
        while place is not None:
            messages, place = scanner.scan(part.shard, name, place, last_ms, page_rows)
            rows = [row for row in map(_row, messages) if _has_all(row, wanted)]
            if rows:
                yield _batch(rows, schema)


def _row(message: Waiting) -> dict[str, Any]:
    header = message.header
    return {
        "id": message.id,
        "key": header.key,
        "queue": header.queue,
        "data": message.body.decode(errors="replace"),
        "due_at": message.due_ms,
        "scheduled_at": header.scheduled_ms,
        "sent_at": header.sent_ms,
        "tag": header.tag,
        "trace_id": header.trace_id,
        "failures": message.failures,
        "version": header.version,
    }


def _has_all(row: dict[str, Any], wanted: Wanted) -> bool:
    return (
        all(row[column] in names for column, names in wanted.names.items())
        and all(row[column] >= first for column, first in wanted.first.items())
        and all(row[column] <= last for column, last in wanted.last.items())
    )


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for each in schema:
        values = [row[each.name] for row in rows]
        if pa.types.is_timestamp(each.type):
            columns.append(pa.array(values, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(each.type))
        else:
            columns.append(pa.array(values, each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
