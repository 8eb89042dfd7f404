"""Keep names in the order of their times."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

Name = TypeVar("Name", str, tuple[str, str, str])


class Schedule(Generic[Name]):
    """Names, each with a time in ms, in the order of the times and then of the names, like a sorted set of Redis."""

    def __init__(self) -> None:
        self._times: dict[Name, int] = {}
        self._order: list[tuple[int, Name]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._times

    def __iter__(self) -> Iterator[tuple[int, Name]]:
        return iter(self._order)

    def put(self, name: Name, time_ms: int) -> None:
        """Add the name, or give it this time."""
        self.drop(name)
        self._times[name] = time_ms
        insort(self._order, (time_ms, name))

    def put_earlier(self, name: Name, time_ms: int) -> None:
        """Add the name, or give it this time if it is earlier than its own."""
        if time_ms < self._times.get(name, time_ms + 1):
            self.put(name, time_ms)

    def drop(self, name: Name) -> bool:
        """Remove the name. Return False if it was not there."""
        time_ms = self._times.pop(name, None)
        if time_ms is None:
            return False
        del self._order[bisect_left(self._order, (time_ms, name))]
        return True

    def time_of(self, name: Name) -> int | None:
        """Return the time of the name; None if it is not there."""
        return self._times.get(name)

    def first(self) -> int | None:
        """Return the earliest time; None if there are no names."""
        return self._order[0][0] if self._order else None

    def up_to(self, now_ms: int) -> int:
        """Return how many names have a time of `now_ms` or before."""
        return bisect_right(self._order, now_ms, key=lambda entry: entry[0])

    def due(self, now_ms: int, most: int) -> list[tuple[int, Name]]:
        """Return at most `most` pairs (time, name) with a time of `now_ms` or before, earliest first."""
        return list(islice(self._order, min(self.up_to(now_ms), max(most, 0))))
