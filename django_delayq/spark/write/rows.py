"""Rows of Arrow into messages, a batch at a time. Each row is checked as a send would be; nothing is sent here."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from django_delayq import codec
from django_delayq.brokers.base import Header, Put
from django_delayq.conf import Alias
from django_delayq.durations import LONGEST_MS, to_ms
from django_delayq.errors import DelayqError
from django_delayq.sending.prepare import prepare
from django_delayq.sends import Send
from django_delayq.spark.write.options import WriteOptions
from django_delayq.values import MAX_NAME, shown


class Bad(NamedTuple):
    """A row that can't be sent, by its place in the batch, and why."""

    row: int
    reason: str


def puts_of(batch: pa.RecordBatch, options: WriteOptions, alias: Alias) -> tuple[list[Put], list[Bad]]:
    """The messages of the good rows, and the bad rows."""
    columns = _Columns(batch, options)
    latest_ms = time.time_ns() // 1_000_000 + LONGEST_MS
    puts: list[Put] = []
    bad: list[Bad] = []
    headers: dict[tuple[str, str | None, str | None], Header] = {}
    for row, (key, data, due_ms, delay, id, tag, queue) in enumerate(columns.rows()):
        try:
            put = prepare(Send(key, columns.read_data(data), id=id(), tag=tag, queue=queue), alias)
            put.delay_ms, put.at_ms = _due(due_ms, delay, latest_ms)
            put.header = headers.setdefault((key, queue, tag), put.header)  # what is shared is packed once
        except (TypeError, ValueError, DelayqError) as error:
            bad.append(Bad(row, str(error)))
        else:
            puts.append(put)
    return puts, bad


def _due(due_ms: int | None, delay: Any, latest_ms: int) -> tuple[int, int | None]:
    if due_ms is None:
        return (0 if delay is None else _delay_ms(delay)), None
    if delay is not None:
        raise ValueError(f"due_at and delay={shown(delay)} are both given; leave one of them null.")
    if due_ms > latest_ms:
        raise ValueError(f"due_at is over 100 years from now ({due_ms} ms); give an earlier time.")
    return 0, due_ms


@lru_cache(maxsize=1024)
def _delay_ms(delay: Any) -> int:
    return to_ms(delay, "delay")


class _Columns:
    """The columns of a batch as Python values."""

    def __init__(self, batch: pa.RecordBatch, options: WriteOptions) -> None:
        self._batch = batch
        self._options = options
        self.read_data = _reader_of_data(batch)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """key, data, due time in ms, delay, a function that gives the id, tag and queue of each row."""
        keys = self._values("key", self._options.key)
        return zip(
            keys,
            self._values("data"),
            self._instants_ms(),
            self._values("delay"),
            self._ids(keys),
            self._values("tag", self._options.tag),
            self._values("queue", self._options.queue),
            strict=True,
        )

    def _values(self, name: str, default: str | None = None) -> list[Any]:
        if name not in self._batch.schema.names:
            return [default] * self._batch.num_rows
        values = self._batch.column(name).to_pylist()
        return values if default is None else [default if value is None else value for value in values]

    def _instants_ms(self) -> list[int | None]:
        """Rounded up: never early."""
        if "due_at" not in self._batch.schema.names:
            return [None] * self._batch.num_rows
        column = self._batch.column("due_at")
        if pa.types.is_null(column.type):
            return [None] * self._batch.num_rows
        microseconds = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if value is None else -(-value // 1000) for value in microseconds]

    def _ids(self, keys: Sequence[Any]) -> list[Callable[[], str]]:
        if not self._options.id_columns:
            return [_given(id) for id in self._values("id")]
        paths = self._options.id_columns
        parts = zip(*(_at(self._batch, path) for path in paths), strict=True)
        return [_derived(key, paths, values) for key, values in zip(keys, parts, strict=True)]


def _given(id: str | None) -> Callable[[], str]:
    def read() -> str:
        if id is None:
            raise ValueError("id is null; give each row its own, which stays the same when the job is run again.")
        return id

    return read


def _derived(key: object, paths: Sequence[str], values: Sequence[Any]) -> Callable[[], str]:
    def read() -> str:
        for path, value in zip(paths, values, strict=True):
            if value is None:
                raise ValueError(f"{path} is null, of which the id is made; fill it in, or leave the row out.")
        id = ":".join([str(key), *map(_part, values)])
        if len(id) > MAX_NAME:
            raise ValueError(f"id={shown(id)} has {len(id)} characters; give idColumns with shorter values.")
        return id

    return read


def _part(value: object) -> str:
    """A value in an id. Colons part values, so those inside are written otherwise: two rows never share an id."""
    if isinstance(value, datetime):
        value = value.astimezone(UTC).strftime("%Y-%m-%dT%H.%M.%S.%fZ")
    return str(value).replace("%", "%25").replace(":", "%3A")


def _at(batch: pa.RecordBatch, path: str) -> list[Any]:
    name, *fields = path.split(".")
    column = batch.column(name)
    for field in fields:
        column = pa.compute.struct_field(column, field)
    return column.to_pylist()  # type: ignore[no-any-return]


def _reader_of_data(batch: pa.RecordBatch) -> Callable[[Any], Any]:
    """What makes data of a value of the column: text is JSON, maps come as pairs."""
    if "data" not in batch.schema.names:
        return _same
    kind = batch.schema.field("data").type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_json
    return _plain_reader(kind)


def _same(value: Any) -> Any:
    return value


def _from_json(text: str | None) -> Any:
    try:
        return None if text is None else codec.loads(text)
    except ValueError as error:
        raise ValueError(f"data={shown(text)} is no JSON ({error}); use to_json() for text.") from error


def _plain_reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_map(kind):
        item = _plain_reader(kind.item_type)
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _plain_reader(kind.value_type)
        return _same if item is _same else lambda items: None if items is None else [item(value) for value in items]
    if pa.types.is_struct(kind):
        readers = {field.name: _plain_reader(field.type) for field in kind}
        if all(reader is _same for reader in readers.values()):
            return _same
        return lambda fields: None if fields is None else {name: readers[name](fields[name]) for name in readers}
    return _same
