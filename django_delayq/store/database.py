"""The database of an alias: its connection, its clock, and its transactions.

*Two clocks*: the database's decides, the broker's times the alarms. Alarms carry waits, not points in time, so that a
difference between the two shifts nothing. The monotonic clock of this machine tells when the database's jumps: leases
then seem to have run out although their holders are alive.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property, partial, wraps
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Model, QuerySet

from django_delayq.core.errors import BrokerRefused, StoreUnavailable
from django_delayq.models.fields import database_name
from django_delayq.store.sql import DIALECTS
from django_delayq.store.sql.dialect import Dialect, Row, Sql
from django_delayq.support.logging import logger
from django_delayq.support.sanitize import keep_first_lines
from django_delayq.support.translatable import text as _
from django_delayq.support.units import to_text

FEW = 20
"""A commit notifies workers of each row if its statement wrote at most this many; see `notice_of_many` for more."""
WARN_MS = 100
JUMP = 0.1
"""The part of a lease by which the clock may be off before that counts as a jump.

A holder has far more of its lease left.
"""
RENEWED_S = 7.5
"""After this many seconds every living worker has renewed its leases; after half a lease, if that is less.

A worker renews after a third of a lease, or after 5 s if that is less.
"""
LEAST_GAP_S = 2.0
"""Only a gap between two readings of the clock that is longer than this holds reclaiming off.

That is so however short a lease is: a worker reads the clock once a second.
"""


class ClockMonitor:
    """A comparison of the database's clock with this machine's. It tells when leases that ran out may be reclaimed.

    Nothing is reclaimed for the length of a lease after the database's clock jumped ahead, so that living workers can
    renew by the new time. Nothing is reclaimed for a while after half a lease in which this process did not read the
    clock, or after the database took no writes, because workers may have been unable to renew.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._seen: tuple[int, float, float] | None = None  # the database's time, and when it was asked for and came
        self._reclaims_from = 0.0

    def start(self, lease_ms: int) -> None:
        """Let nothing be reclaimed until living workers have had time to renew: the clock may have jumped before."""
        self._hold_off(min(lease_ms / 2000, RENEWED_S))

    def wait_for_writes(self) -> None:
        """Let nothing be reclaimed until `take_writes`: the database answers, but nobody can renew."""
        self._reclaims_from = math.inf

    @property
    def waits_for_writes(self) -> bool:
        """Return whether the database took no writes when it was last asked to."""
        return self._reclaims_from == math.inf

    def take_writes(self, lease_ms: int) -> None:
        """Note that the database takes writes again. Reclaiming begins once living workers have had time to renew."""
        self._reclaims_from = 0.0
        self.start(lease_ms)

    def hear(self, now_ms: int, asked_at: float, lease_ms: int) -> int:
        """Note the database's time, and return for how many ms nothing may be reclaimed yet.

        `asked_at` is when the database was asked, by the monotonic clock.
        """
        told_at = monotonic()
        if self._seen is not None:
            seen_ms, seen_asked_at, seen_told_at = self._seen
            least_s, most_s = asked_at - seen_told_at, told_at - seen_asked_at
            jump_ms = skew(now_ms, seen_ms + int(least_s * 1000), seen_ms + int(most_s * 1000))
            if abs(jump_ms) > lease_ms * JUMP:
                self._note_jump(jump_ms, lease_ms)
            if most_s > max(lease_ms / 2000, LEAST_GAP_S):
                self.start(lease_ms)
        self._seen = now_ms, asked_at, told_at
        return max(int(min(self._reclaims_from - told_at, lease_ms / 1000) * 1000), 0)

    def _note_jump(self, jump_ms: int, lease_ms: int) -> None:
        if jump_ms < 0:
            logger.warning(
                "The clock of database %r went back by %s: what waits, and what dead workers held, is later by that.",
                self._using, to_text(-jump_ms),
            )  # fmt: skip
            return
        self._hold_off(lease_ms / 1000)
        logger.warning(
            "The clock of database %r jumped ahead by %s, or this machine stood still: no lease is taken over for %s, "
            "so that workers that are alive can renew theirs first.",
            self._using, to_text(jump_ms), to_text(lease_ms),
        )  # fmt: skip

    def _hold_off(self, seconds: float) -> None:
        self._reclaims_from = max(self._reclaims_from, monotonic() + seconds)


def skew(clock_ms: int, before_ms: int, after_ms: int) -> int:
    """Return the least by which a clock is ahead (negative: behind) of another that was read before and after it."""
    return clock_ms - min(max(clock_ms, before_ms), after_ms)


def skew_in_words(skew_ms: int) -> str:
    """Return the difference between the broker's clock and the database's, in words."""
    if not skew_ms:
        return "the broker's clock agrees with the database's"
    where = "ahead of" if skew_ms > 0 else "behind"
    return f"the broker's clock is {to_text(abs(skew_ms))} {where} the database's"


def skew_warnings(skew_ms: int) -> list[str]:
    """Return the warning about a skew above 100 ms, or none."""
    if abs(skew_ms) <= WARN_MS:
        return []
    skew = to_text(abs(skew_ms))
    if skew_ms > 0:
        return [
            _(
                "The broker's clock is %(skew)s ahead of the database's, which decides: nothing is early or lost, "
                "but keep both on time (NTP).",
                skew=skew,
            )
        ]
    return [
        _(
            "The broker's clock is %(skew)s behind the database's, which decides: nothing is early or lost, "
            "but keep both on time (NTP).",
            skew=skew,
        )
    ]


_NOT_THERE = ("42P01", "42703", 1146, 1054)  # a table, a column: the codes of PostgreSQL, then those of MySQL
_NO_WRITES = ("25006", 1290, 1792, 1836)  # a read-only transaction; a read-only server or transaction
_DENIED = ("42501", 1142, 1143)  # a table, a column
_UNFIT_TEXT = 1366
"""The code for a text that the column can't keep.

One client of MySQL calls this an operational error, another a data error.
"""
P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Model)

DEADLOCKS = 5
"""How often a transaction that was chosen as the victim of a deadlock is tried again."""


class Database:
    """The database of one alias. Statements run on the calling thread's connection, and in its transaction."""

    def __init__(self, alias: str, using: str) -> None:
        self.alias = alias
        self.using = using
        self.clock_monitor = ClockMonitor(using)
        self.unanswered: list[Sql] = []
        """SQL for FROM: rows that claims whose answer was lost may have leased. The next claim ends these leases."""
        self.notice = ""
        """SQL of one more column to select from written rows, by which the commit notifies workers; '' for none."""
        self.notice_of_many = ""
        """Like `notice`, for a statement that writes many rows: the notice does not say when each is due."""
        self.has_rules = False
        """Whether claims read the rules of their messages (rules.py), because maintenance found that there are any."""

    def noticed(self, count: int) -> str:
        """Return the column by which a commit notifies workers of a statement's `count` written rows; '' for none."""
        return self.notice if count <= FEW else self.notice_of_many

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

    def refused(self, statements: Iterable[str]) -> list[str]:
        """Run statements, and return those that fail because this user lacks a right, or a table is not there."""
        refused = []
        for one in statements:
            try:
                self.rows(one)
            except BrokerRefused:
                refused.append(one)
        return refused

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

    def transaction(self, work: Callable[[], T], begin: str | None = None) -> T:
        """Run `work` in a transaction of its own, or in the caller's without a savepoint. Return its result.

        A transaction of its own begins with the statement `begin`, if the usual one will not do, and is tried again
        after a deadlock. In the caller's transaction the error is raised, because the deadlock has rolled that
        transaction back.
        """
        connection = self.connection
        is_own = not connection.in_atomic_block and connection.get_autocommit()
        begin = self.dialect.idle_in_transaction_timeout if begin is None else begin
        tries_left = DEADLOCKS if is_own else 0
        while True:
            try:
                with transaction.atomic(self.using, savepoint=False):
                    if is_own and begin:
                        self.rows(begin)
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
        """Raise `BrokerRefused` for an error about tables or columns that are missing, or rights that this user lacks.

        Raise any other error again. Of a database error, only the first line of the text is kept.
        """
        try:
            yield
        except DatabaseError as error:
            self._tell_what_it_lacks(error)
            raise

    def _tell_what_it_lacks(self, error: DatabaseError) -> None:
        """Raise `BrokerRefused` for an error about tables or columns that are missing, or rights that this user lacks.

        Keeps only the first line of every error: the rest may quote a row, or a statement, with a message's data.
        """
        keep_first_lines(error)
        if is_about_tables(error):
            raise BrokerRefused(self.lacks(f"what the store needs ({_first_line(error)})")) from error
        if _is_denied(error):
            raise BrokerRefused(
                f"Database {self.using!r} does not let its user do what the store needs ({_first_line(error)}): "
                "GRANT it."
            ) from error

    def prove_writes(self) -> None:
        """Run an UPDATE that changes no row. It raises if the database takes no writes."""
        self.changed("UPDATE delayq_ready SET lease_until = lease_until WHERE 1 = 0")

    def begin_with_write(self) -> None:
        """Begin a transaction with a write on SQLite, where one that has read can't write once another has written."""
        if self.vendor == "sqlite":
            self.prove_writes()

    def lock_free(self, rows: QuerySet[M]) -> QuerySet[M]:
        """Return the query with a lock on its rows, without those that another transaction has locked.

        Where the database can't leave these out, it waits for them.
        """
        return rows.select_for_update(skip_locked=self.connection.features.has_select_for_update_skip_locked)

    @contextmanager
    def available(self) -> Iterator[None]:
        """Raise `StoreUnavailable` if the database is away or takes no writes; the next statement connects again.

        A database that takes no writes may be the old primary, and the next connection finds the new one.
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


def in_transaction(work: Callable[Concatenate[Database, P], T]) -> Callable[Concatenate[Database, P], T]:
    """Make a function of a database run in a transaction, by `Database.transaction`."""

    @wraps(work)
    def run(database: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return database.transaction(partial(work, database, *args, **kwargs))

    return run


def _rows_of(cursor: CursorWrapper) -> list[Row]:
    try:
        return list(cursor.fetchall())
    except ProgrammingError:  # psycopg, if the statement returns no rows; `description` would cost each one more
        return []


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


def waited_for_lock(error: OperationalError) -> bool:
    """Return whether a statement of a brief transaction gave up waiting for a lock."""
    return _has_code(error, ("55P03", 1205))


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


def _first_line(error: Exception | str) -> str:
    # The lines after the first may quote a statement with its data.
    return str(error).strip().partition("\n")[0]
