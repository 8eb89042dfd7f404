"""Clocks that are off: a broker's, since the embedded Redis can't be given another time, and a database's."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias

_time_ns = time.time_ns  # the machine's own, also where a test puts a process's clock off


class Skew:
    """How far ahead it is."""

    ms = 0


class SkewedBroker(MemoryBroker):
    """BROKER of the tests of two clocks."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias, lambda: _time_ns() / 1_000_000 + Skew.ms)


class DatabaseClock:
    """The clock of a database as each of its statements reads it, which `jump` moves."""

    _TEXTS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "postgresql": ("statement_timestamp()", "(statement_timestamp() + {ms} * interval '1 ms')"),
        "mysql": ("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) + INTERVAL {ms} * 1000 MICROSECOND)"),
        "sqlite": ("julianday('now')", "(julianday('now') + {ms} / 86400000.0)"),
    }

    def __init__(self, using: str) -> None:
        self.using = using
        self.ahead_ms = 0

    def jump(self, ms: int) -> None:
        """Put it ahead, or back."""
        self.ahead_ms += ms

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have every connection to the database go by it, those that are there and those that are made meanwhile."""
        connections[self.using].execute_wrappers.append(self._execute)
        connection_created.connect(self._wrap)
        try:
            yield
        finally:
            connection_created.disconnect(self._wrap)
            connections[self.using].execute_wrappers.remove(self._execute)

    def _wrap(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == self.using and self._execute not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._execute)

    def _execute(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        real, moved = self._TEXTS[connections[self.using].vendor]
        return execute(sql.replace(real, moved.format(ms=self.ahead_ms)), *rest)


class FastClock:
    """A clock of PostgreSQL that passes `rate` times as fast for every process that reads it from a file.

    It shows the start of the file's time when that was written, and may be put ahead or back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, at: datetime, rate: int) -> None:
        """Let it show `at` from now on."""
        self._write({"began_s": _time_ns() / 1e9, "at_s": at.timestamp(), "rate": rate, "ahead_s": 0.0})

    def jump(self, by: timedelta) -> None:
        """Put it ahead, or back."""
        told = self._read()
        self._write({**told, "ahead_s": told["ahead_s"] + by.total_seconds()})

    def now(self) -> datetime:
        """Return the time that it shows."""
        told = self._read()
        passed_s = (_time_ns() / 1e9 - told["began_s"]) * told["rate"]
        return datetime.fromtimestamp(told["at_s"] + passed_s + told["ahead_s"], UTC)

    def use(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        """Have the statements of a connection read it."""
        if self._execute not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._execute)

    def _execute(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        moved = (
            "(to_timestamp({at_s}) + (statement_timestamp() - to_timestamp({began_s})) * {rate}"
            " + {ahead_s} * interval '1 s')"
        )
        return execute(sql.replace("statement_timestamp()", moved.format(**self._read())), *rest)

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = json.loads(self.path.read_bytes())
        return found

    def _write(self, told: Mapping[str, float]) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(self.path)  # no process reads half of it
