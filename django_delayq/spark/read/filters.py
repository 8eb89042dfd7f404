"""The filters that a read applies itself, where the messages are: on names, on instants (to the ms), and on pks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StringType, StructType, TimestampType

from django_delayq.support.timestamps import EPOCH

_US = timedelta(microseconds=1)
_EXACT = ("id", "key", "queue", "tag", "trace_id", "share", "worker", "fingerprint")
"""The texts that every database compares character by character. In the others MariaDB takes "A" for "a"."""

_NEVER_NULL = ("pk", "id", "key", "queue", "due_at", "ended_at")


@dataclass(slots=True)
class Wanted:
    """The conditions that rows must meet: names that a column may have, and spans of instants (in ms) or of pks."""

    names: dict[str, frozenset[str]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)

    @property
    def narrows(self) -> bool:
        """Return whether there are conditions besides a span of pks."""
        return bool(self.names) or any(name != "pk" for name in (*self.first, *self.last))

    def one_of(self, column: str, names: Sequence[str]) -> None:
        """Add the condition that a column has one of these names."""
        wanted = frozenset(names)
        self.names[column] = self.names[column] & wanted if column in self.names else wanted

    def between(self, column: str, first: int | None, last: int | None) -> None:
        """Add a condition on an instant or a pk, both ends included."""
        if first is not None:
            self.first[column] = max(first, self.first.get(column, first))
        if last is not None:
            self.last[column] = min(last, self.last.get(column, last))


def push(filters: Sequence[Filter], schema: StructType, wanted: Wanted) -> Iterator[Filter]:
    """Add to `wanted` the filters that it can express, and yield those that Spark must apply.

    These are the others, and those of which a database may take more than they ask for.
    """
    types = {each.name: each.dataType for each in schema.fields}
    for one in filters:
        name = one.attribute[0] if hasattr(one, "attribute") and len(one.attribute) == 1 else ""
        kind = types.get(name)
        if isinstance(one, IsNotNull) and name in _NEVER_NULL:
            continue
        if isinstance(kind, StringType) and _push_name(one, name, wanted) and name in _EXACT:
            continue
        if (isinstance(kind, TimestampType) or name == "pk") and _push_span(one, name, wanted):
            continue
        yield one


def _push_name(one: Filter, name: str, wanted: Wanted) -> bool:
    if isinstance(one, EqualTo) and isinstance(one.value, str):
        wanted.one_of(name, [one.value])
        return True
    if isinstance(one, In) and all(isinstance(value, str) for value in one.value):
        wanted.one_of(name, one.value)
        return True
    return False


def _push_span(one: Filter, name: str, wanted: Wanted) -> bool:
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return False
    ends = _ends(one.value)
    if ends is None:
        return False
    down, up = ends
    match one:
        case EqualTo():
            wanted.between(name, up, down)  # no instant to the millisecond equals one between two of them
        case GreaterThan():
            wanted.between(name, down + 1, None)
        case GreaterThanOrEqual():
            wanted.between(name, up, None)
        case LessThan():
            wanted.between(name, None, up - 1)
        case _:
            wanted.between(name, None, down)
    return True


def _ends(value: Any) -> tuple[int, int] | None:
    """Return the greatest whole ms (or pk) that is at most the value, and the least that is at least the value.

    Return None for a value that is neither an instant nor a number.
    """
    if type(value) is int:
        return value, value
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    us = (value - EPOCH) // _US
    return us // 1000, -(-us // 1000)
