"""Turn Arrow's rows into messages, a batch at a time. Each row is checked like a send; nothing is sent here.

A column is checked as a whole where that suffices for most batches. If it finds anything unusual, each row is checked.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import compute as pc

from django_delayq.api import registry
from django_delayq.api.send import addressed, body_of, shared
from django_delayq.brokers.base import Header, NewMessage
from django_delayq.conf import Alias
from django_delayq.core import codec
from django_delayq.core.errors import DelayqError
from django_delayq.core.message import Send
from django_delayq.spark.write.bodies import by_arrow, reader_of
from django_delayq.spark.write.ids import derived, given
from django_delayq.spark.write.options import WriteOptions
from django_delayq.support.sanitize import clean
from django_delayq.support.timestamps import wall_clock_ms
from django_delayq.support.units import LONGEST_MS, to_ms
from django_delayq.support.validation import are_names, short_repr

T = TypeVar("T")


class Bad(NamedTuple):
    """A row that can't be sent, by its place in the batch, and the reason."""

    row: int
    reason: str


def new_messages_of(batch: pa.RecordBatch, options: WriteOptions, alias: Alias) -> tuple[list[NewMessage], list[Bad]]:
    """Return the messages of the good rows, and the bad rows."""
    rows = _Rows(batch)
    keys = rows.values("key", options.key)
    choices = [rows.values(name, getattr(options, name)) for name in ("queue", "priority", "tag")]
    kinds = _kinds(rows, [keys, *choices], alias)
    ids = _ids(rows, keys, options)
    dues = _dues(rows)
    bodies = _bodies(rows, [data_type for _, data_type in kinds], alias)
    headers = _with_shares(rows, keys, [header for header, _ in kinds], bodies, alias)
    each = zip(ids, headers, bodies, dues, strict=True)
    messages = [NewMessage(id, header, body, delay_ms, at_ms) for id, header, body, (delay_ms, at_ms) in each]
    if rows.bad:
        messages = [message for row, message in enumerate(messages) if row not in rows.bad]
    return messages, [Bad(row, rows.bad[row]) for row in sorted(rows.bad)]


class _Rows:
    """The columns of a batch, and for each bad row the first reason."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.bad: dict[int, str] = {}

    def column(self, name: str) -> pa.Array:
        """Return a column, or nulls if there is none."""
        if name in self._batch.schema.names:
            return self._batch.column(name)
        return pa.nulls(self._batch.num_rows)

    def at(self, path: str) -> pa.Array:
        """Return a column, or a field of one ("data.customer_id")."""
        name, *fields = path.split(".")
        column = self._batch.column(name)
        for field in fields:
            column = pc.struct_field(column, field)
        return column

    def values(self, name: str, default: Any = None) -> list[Any]:
        """Return a column as Python values, with the default in place of null."""
        column = self.column(name)
        if column.null_count == len(column):
            return [default] * len(column)
        values: list[Any] = column.to_pylist()
        return values if default is None else [default if value is None else value for value in values]

    def each(self, make: Callable[..., T], default: T, *columns: Sequence[Any]) -> list[T]:
        """Call `make` for each row and return the results.

        A row for which `make` raises is bad: its reason is kept in `bad`, and its result is `default`.
        """
        made = []
        for row, values in enumerate(zip(*columns, strict=True)):
            try:
                made.append(make(*values))
            except (TypeError, ValueError, DelayqError) as error:
                self.bad.setdefault(row, clean(str(error)))
                made.append(default)
        return made


_NO_KIND = Header("", ""), Any


def _kinds(rows: _Rows, columns: Sequence[Sequence[Any]], alias: Alias) -> list[tuple[Header, Any]]:
    """Return the header of each row and the type of its data. Rows with equal headers share one."""

    @cache
    def kind(key: Any, queue: Any, priority: Any, tag: Any) -> tuple[Header, Any]:
        header, handler = addressed(Send(key, queue=queue, priority=priority, tag=tag), alias)
        return header, Any if handler is None else handler.data_type

    return rows.each(kind, _NO_KIND, *columns)


def _with_shares(
    rows: _Rows, keys: Sequence[Any], headers: list[Header], bodies: Sequence[bytes], alias: Alias
) -> list[Header]:
    """Return the header of each row, with the share that its data belongs to if its handler has a `share_key`."""
    handlers = registry.by_alias.get(alias.name, {})
    if not any(handler.shares for handler in handlers.values()):
        return headers

    def with_share(key: Any, header: Header, body: bytes) -> Header:
        handler = handlers.get(key)
        return header if handler is None or not body else shared(header, handler, body, alias)

    return rows.each(with_share, _NO_KIND[0], keys, headers, bodies)


def _ids(rows: _Rows, keys: Sequence[Any], options: WriteOptions) -> list[str]:
    paths = options.id_columns
    if paths:
        return rows.each(partial(derived, paths), "", keys, *(rows.at(path).to_pylist() for path in paths))
    ids = rows.values("id")
    return ids if are_names(ids) else rows.each(given, "", ids)


def _dues(rows: _Rows) -> list[tuple[int, int | None]]:
    """Return the delay and the due time (or None) of each row, in ms. Instants are rounded up, so nothing is early."""
    latest_ms = wall_clock_ms() + LONGEST_MS
    at, delay = rows.column("due_at"), rows.column("delay")
    if not pa.types.is_null(at.type):
        at = pc.ceil_temporal(at.cast(pa.timestamp("us", "UTC")), unit="millisecond")
        at = at.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        if delay.null_count == len(delay) and (pc.max(at).as_py() or 0) <= latest_ms:
            return [(0, at_ms) for at_ms in at.to_pylist()]
    return rows.each(partial(_due, latest_ms), (0, None), at.to_pylist(), delay.to_pylist())


def _due(latest_ms: int, due_ms: int | None, delay: Any) -> tuple[int, int | None]:
    if due_ms is None:
        return (0 if delay is None else _delay_ms(delay)), None
    if delay is not None:
        raise ValueError(f"due_at and delay={short_repr(delay)} are both given; leave one of them null.")
    if due_ms > latest_ms:
        raise ValueError(f"due_at is over 100 years from now ({due_ms} ms); give an earlier time.")
    return 0, due_ms


@lru_cache(maxsize=1024)
def _delay_ms(delay: Any) -> int:
    return to_ms(delay, "delay")


def _bodies(rows: _Rows, data_types: Sequence[Any], alias: Alias) -> list[bytes]:
    column = rows.column("data")
    bodies = by_arrow(column)
    if bodies is not None and max(map(len, bodies), default=0) <= alias.options.max_data and _fit(bodies, data_types):
        return bodies
    read = reader_of(column.type)

    def body(value: Any, data_type: Any) -> bytes:
        return body_of(read(value), data_type, alias)

    return rows.each(body, b"", column.to_pylist(), data_types)


def _fit(bodies: Sequence[bytes], data_types: Sequence[Any]) -> bool:
    by_type: defaultdict[Any, list[bytes]] = defaultdict(list)
    for body, data_type in zip(bodies, data_types, strict=True):
        by_type[data_type].append(body)
    return all(codec.all_fit(found, data_type) for data_type, found in by_type.items())
