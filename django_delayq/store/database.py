"""The database of an alias: its connection, its clock, and what each vendor says differently."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_delayq.errors import BrokerRefused, StoreUnavailable

Row = tuple[Any, ...]
_NOT_THERE = ("42P01", "42703", 1146, 1054)  # a table, a column: the codes of PostgreSQL, then those of MySQL


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fragments of SQL. `now` and `now_up` are the statement's time in epoch ms, rounded down and up: one time, however
    often a statement names them."""

    now: str
    now_up: str
    greatest: str
    least: str
    skip_locked: str

    def due(self, delay_ms: int, at_ms: int | None) -> tuple[str, int]:
        """The due time by the clock of the statement, and its one parameter."""
        if at_ms is None:
            return f"({self.now_up} + %s)", delay_ms
        return f"{self.greatest}({self.now}, %s)", at_ms


_DIALECTS = {
    "postgresql": Dialect(
        now="floor(extract(epoch from statement_timestamp()) * 1000)::bigint",
        now_up="ceil(extract(epoch from statement_timestamp()) * 1000)::bigint",
        greatest="GREATEST",
        least="LEAST",
        skip_locked=" FOR UPDATE OF r SKIP LOCKED",
    ),
    "sqlite": Dialect(  # its clock counts whole ms, rounded down; it has one writer, so nothing is locked to skip
        now="CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        now_up="CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + 1",
        greatest="max",
        least="min",
        skip_locked="",
    ),
}


class Database:
    """Runs the statements of one alias on the calling thread's connection, and in its transaction."""

    def __init__(self, alias: str, using: str) -> None:
        self.alias = alias
        self.using = using

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The calling thread's connection."""
        return connections[self.using]

    @property
    def dialect(self) -> Dialect:
        """What this database says its own way. Raises `ImproperlyConfigured` for one that the store can't use."""
        vendor = self.connection.vendor
        if vendor not in _DIALECTS:
            raise ImproperlyConfigured(
                f'DELAYQ["{self.alias}"]["DATABASE"]={self.using!r} is {vendor}; the store needs one of '
                f'{", ".join(sorted(_DIALECTS))}. Name another DATABASE, or write "STORE": None.'
            )
        return _DIALECTS[vendor]

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and give its rows."""
        with self._cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement and give how many rows it changed."""
        with self._cursor() as cursor:
            cursor.execute(sql, parameters)
            return int(cursor.rowcount)

    def now_ms(self) -> int:
        """The clock that decides."""
        ((now,),) = self.rows(f"SELECT {self.dialect.now}")
        return int(now)

    def lacks(self, what: str) -> str:
        """What to say of tables or columns that are not there."""
        return f"Database {self.using!r} lacks {what}: run `manage.py migrate --database {self.using}`."

    @contextmanager
    def _cursor(self) -> Iterator[CursorWrapper]:
        try:
            with self.connection.cursor() as cursor:
                yield cursor
        except DatabaseError as error:
            if is_about_tables(error):
                raise BrokerRefused(self.lacks(f"what the store needs ({_first_line(error)})")) from error
            raise

    @contextmanager
    def available(self) -> Iterator[None]:
        """Raise `StoreUnavailable` for a database that is away, and have the next statement connect anew."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            connection = self.connection
            if not connection.in_atomic_block:
                connection.close()
            raise StoreUnavailable(f"Database {self.using!r}: {_first_line(error)}") from error


def marks(count: int, one: str = "%s") -> str:
    """`count` placeholders for a list."""
    return ", ".join([one] * count)


def is_about_tables(error: DatabaseError) -> bool:
    """Whether a table or column is not there."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return re.match(r"no such (table|column)|table \S+ has no column", str(cause)) is not None
    return getattr(cause, "sqlstate", None) in _NOT_THERE or bool(error.args and error.args[0] in _NOT_THERE)


def _first_line(error: Exception) -> str:
    # What follows the first line may quote a statement with its data.
    return str(error).strip().partition("\n")[0]
