"""The database of an alias: its connection, its clock, and its transactions."""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_delayq.core.errors import BrokerRefused, StoreUnavailable
from django_delayq.models.fields import database_name
from django_delayq.store.clock_skew import ClockMonitor
from django_delayq.store.sql import values
from django_delayq.store.sql.dialects import DIALECTS, Dialect
from django_delayq.support.texts import text as _

Row = tuple[Any, ...]
_NOT_THERE = ("42P01", "42703", 1146, 1054)  # a table, a column: the codes of PostgreSQL, then those of MySQL
_NO_WRITES = ("25006", 1290, 1792, 1836)  # a read-only transaction; a read-only server or transaction
_DENIED = ("42501", 1142, 1143)  # a table, a column
_UNFIT_TEXT = 1366
"""The code for a text that the column can't keep.

One client of MySQL calls this an operational error, another a data error.
"""
T = TypeVar("T")

DEADLOCKS = 5
"""How often a transaction that was chosen as the victim of a deadlock is tried again."""


class Sql(NamedTuple):
    """A piece of a statement, and its parameters."""

    text: str
    parameters: Sequence[Any] = ()


class Database:
    """Runs the statements of one alias on the calling thread's connection, and in its transaction."""

    def __init__(self, alias: str, using: str) -> None:
        self.alias = alias
        self.using = using
        self.clock_monitor = ClockMonitor(using)
        self.unanswered: list[Sql] = []
        """Rows, from FROM on, that a claim whose answer was lost may have leased: the next claim ends these leases."""
        self.notice = ""
        """A last column to select of rows that become due, where a commit is to notify workers of them."""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Return the calling thread's connection."""
        return connections[self.using]

    @cached_property
    def vendor(self) -> str:
        """Return the key of `DIALECTS`. Raises `ImproperlyConfigured` for a database that the store can't use."""
        vendor = self.connection.vendor
        if vendor not in DIALECTS:
            raise ImproperlyConfigured(
                f'DELAYQ["{self.alias}"]["DATABASE"]={self.using!r} is {vendor}; the store needs one of '
                f'{", ".join(sorted(DIALECTS))}. Name another DATABASE, or write "STORE": None.'
            )
        return vendor

    @cached_property
    def dialect(self) -> Dialect:
        """Return the fragments of SQL that differ between databases."""
        return DIALECTS[self.vendor if self.vendor != "mysql" else database_name(self.connection)]

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        rows = self._executed(sql, parameters, _rows_of)
        return [tuple(map(_whole, row)) for row in rows] if self.vendor == "mysql" else rows

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""
        return self._executed(sql, parameters, _count_of)

    def _executed(self, sql: str, parameters: Sequence[Any], answer_of: Callable[[CursorWrapper], T]) -> T:
        connection = self.connection
        if connection.vendor == "mysql":
            sql = sql.replace('"', "`")  # "key" is a word of MySQL's own, which quotes names its own way
        try:
            with connection.cursor() as cursor:
                if sql.startswith("WITH"):
                    _begin_by_hand(connection, cursor)
                cursor.execute(sql, parameters)
                return answer_of(cursor)
        except DatabaseError as error:
            self._tell_what_it_lacks(error)
            raise

    def given(self, name: str, columns: values.Columns, rows: values.Rows) -> Sql:
        """Return SQL for FROM: a table `name` with these rows."""
        return Sql(*self.dialect.given(name, columns, rows))

    def joined(self, given: Sql, on: Sql, lock: str = "", table: str = "delayq_ready") -> Sql:
        """Return SQL for FROM: the table `given`, joined with the rows `r` for which `on` holds, and the lock."""
        text = self.dialect.join.format(given=given.text, on=on.text, lock=lock, table=table)
        return Sql(text, [*given.parameters, *on.parameters])

    def among(self, column: str, pks: Sequence[int]) -> Sql:
        """Return the condition that a column is one of the primary keys."""
        return Sql(*self.dialect.among(column, pks))

    def under_ids(self, ids: Iterable[str], condition: str = "", lock: str = "", table: str = "delayq_ready") -> Sql:
        """Return SQL for FROM: the rows `r` under the ids, in the order of ids, so that two locks can't deadlock."""
        given = self.given("given", {"of_id": str}, [(id,) for id in sorted(set(ids))])
        return self.joined(given, self.of_ids(condition), lock, table)

    def of_ids(self, condition: str = "") -> Sql:
        """Return the condition that a row `r` has the id `given.of_id`, and that `condition` holds, if there is one."""
        more = condition and f" AND {condition}"
        return Sql(f"{self.dialect.of_alias} AND r.message_id = given.of_id{more}", [self.alias])

    def transaction(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction, or as a part of the caller's, without a savepoint, and return its result.

        In a transaction of its own it is tried again after a deadlock. The caller's was rolled back by the deadlock, so
        that error is raised.
        """
        connection = self.connection
        is_own = not connection.in_atomic_block and connection.get_autocommit()
        tries_left = DEADLOCKS if is_own else 0
        while True:
            try:
                with transaction.atomic(self.using, savepoint=False):
                    if is_own and self.dialect.idle_in_transaction_timeout:
                        self.rows(self.dialect.idle_in_transaction_timeout)
                    return work()
            except OperationalError as error:
                if not (tries_left and _is_deadlock(error)):
                    raise
            tries_left -= 1

    def now_ms(self) -> int:
        """Return the time of the authoritative clock."""
        ((now,),) = self.rows(f"SELECT {self.dialect.now}")
        return int(now)

    def lacks(self, what: str) -> str:
        """Return the error message for tables or columns that are not there."""
        if not router.allow_migrate(self.using, "delayq"):
            return _(
                "Database %(database)r lacks %(what)s, and DATABASE_ROUTERS lets delayq have no tables there: name the "
                'database where they are in DELAYQ["%(alias)s"]["DATABASE"].',
                database=self.using,
                what=what,
                alias=self.alias,
            )
        return _(
            "Database %(database)r lacks %(what)s: run `manage.py migrate --database %(database)s`.",
            database=self.using,
            what=what,
        )

    @contextmanager
    def copying(self, sql: str) -> Iterator[Any]:
        """Run a COPY of psycopg 3, and yield the object to read from or write to. It fails as other statements do."""
        connection = self.connection
        with (
            self.telling_what_it_lacks(),
            connection.wrap_database_errors,  # Django leaves out `copy`
            connection.cursor() as cursor,
            cursor.copy(sql) as copy,
        ):
            yield copy

    @contextmanager
    def telling_what_it_lacks(self) -> Iterator[None]:
        """Raise `BrokerRefused` for an error about tables that are not there, or about rights that this user lacks."""
        try:
            yield
        except DatabaseError as error:
            self._tell_what_it_lacks(error)
            raise

    def _tell_what_it_lacks(self, error: DatabaseError) -> None:
        """Raise `BrokerRefused` for an error about tables that are not there, or about rights that this user lacks.

        Of every error only the first line is kept: the rest may quote a row, or a statement, with a message's data.
        """
        _keep_first_lines(error)
        if is_about_tables(error):
            raise BrokerRefused(self.lacks(f"what the store needs ({_first_line(error)})")) from error
        if _is_denied(error):
            raise BrokerRefused(
                f"Database {self.using!r} does not let its user do what the store needs ({_first_line(error)}): "
                "GRANT it."
            ) from error

    def prove_writes(self) -> None:
        """Run an UPDATE that changes no row, and raises if the database takes no writes."""
        self.changed("UPDATE delayq_ready SET lease_until = lease_until WHERE 1 = 0")

    @contextmanager
    def available(self) -> Iterator[None]:
        """Raise `StoreUnavailable` for a database that is away, and have the next statement connect again.

        The same for one that takes no writes: it may be the old primary, and the next connection finds the new one.
        """
        try:
            yield
        except (OperationalError, InterfaceError, InternalError) as error:
            if not is_away(error):
                raise
            if takes_no_writes(error):
                self.clock_monitor.wait_for_writes()
            connection = self.connection
            if not connection.in_atomic_block:
                connection.close()
            told = _("Database %(database)r: %(said)s", database=self.using, said=_first_line(error))
            raise StoreUnavailable(told) from error


def _rows_of(cursor: CursorWrapper) -> list[Row]:
    return list(cursor.fetchall()) if cursor.description else []


def _count_of(cursor: CursorWrapper) -> int:
    return int(cursor.rowcount)


def _begin_by_hand(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> None:
    # After set_autocommit(False) Python's sqlite3 begins a transaction before an UPDATE, but not before a WITH.
    if connection.vendor == "sqlite" and not connection.get_autocommit() and not connection.connection.in_transaction:
        cursor.execute("BEGIN")


def _whole(value: Any) -> Any:
    # MySQL returns a Decimal for sums and comparisons; all our numbers are whole.
    return int(value) if isinstance(value, Decimal) else value


def is_away(error: Exception) -> bool:
    """Return whether the database can't be used now, rather than this one statement being refused."""
    if isinstance(error, InternalError):
        return _was_stalled(error) or takes_no_writes(error)
    return isinstance(error, OperationalError | InterfaceError) and next(iter(error.args), None) != _UNFIT_TEXT


def takes_no_writes(error: BaseException) -> bool:
    """Return whether a database answers but takes no writes: it is a standby, or was made read-only."""
    return isinstance(error, DatabaseError) and _has_code(error, _NO_WRITES)


def _was_stalled(error: InternalError) -> bool:
    """Return whether PostgreSQL ended the connection because its transaction was idle for too long."""
    return getattr(error.__cause__, "sqlstate", None) == "25P03"


def _is_deadlock(error: OperationalError) -> bool:
    # Some clients of MySQL give an SQLSTATE too, but there any rollback has the same.
    return getattr(error.__cause__, "sqlstate", None) == "40P01" or next(iter(error.args), None) == 1213


def marks(count: int, one: str = "%s") -> str:
    """Return `count` placeholders for a list."""
    return ", ".join([one] * count)


def is_about_tables(error: DatabaseError) -> bool:
    """Return whether a table or column is not there."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return re.match(r"no such (table|column)|table \S+ has no column", str(cause)) is not None
    return _has_code(error, _NOT_THERE)


def _is_denied(error: DatabaseError) -> bool:
    return _has_code(error, _DENIED)


def _has_code(error: BaseException, codes: Collection[str | int]) -> bool:
    """Return whether an error has one of these codes: SQLSTATEs of PostgreSQL, and numbers of MySQL."""
    return getattr(error.__cause__, "sqlstate", None) in codes or next(iter(error.args), None) in codes


def _keep_first_lines(error: DatabaseError) -> None:
    for one in (error, error.__cause__):  # both stand in a traceback
        if one is not None:
            one.args = tuple(_first_line(arg) if isinstance(arg, str) else arg for arg in one.args)


def _first_line(error: Exception | str) -> str:
    # The lines after the first may quote a statement with its data.
    return str(error).strip().partition("\n")[0]
