"""Transactions that a handler leaves open: later ones in its thread would run in them, and have no effect.

They are rolled back, and the attempt fails. A transaction in which the handler was called, as in a TestCase, is left
alone.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver

from django_delayq.core.errors import Snooze

POSTGRESQL_IDLE = 0
_POSTGRESQL_BUSY = (1, 2, 3)
"""ACTIVE, which only another thread sees: the statement may be one of a transaction; INTRANS; INERROR."""
_MYSQL_IN_TRANS = 1
_MYSQL_AUTOCOMMIT = 2

Blocks = Mapping[BaseDatabaseWrapper, int]
"""Connections in a transaction, each with the number of its `atomic()` blocks: 0 where it was begun otherwise."""
NONE: Blocks = {}
EndLeftOpen = Callable[[], Awaitable[str]]
"""Rolls back what an async handler left open, and returns what to say of it; '' where there is nothing."""


class _Opened(threading.local):
    """The connections that a thread has opened. To look through all aliases costs as much as a small handler."""

    def __init__(self) -> None:
        self.connections = list(connections.all(initialized_only=True))


_opened = _Opened()


@receiver(connection_created)
def _note(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if connection not in _opened.connections:
        _opened.connections.append(connection)


def blocks_open() -> Blocks:
    """Return the connections of this thread that are in a transaction."""
    blocks = NONE
    for one in _opened.connections:
        if _is_open(one):
            blocks = {**blocks, one: len(one.atomic_blocks)}
    return blocks


def end_left_open(before: Blocks = NONE) -> str:
    """Roll back what was not open `before`, close its connections, and return what to say of it; '' for nothing."""
    left = _left_open(before)
    if not left:
        return ""
    told = _tell_of(left)
    _roll_back(left, before)
    return told


def _left_open(before: Blocks = NONE) -> list[BaseDatabaseWrapper]:
    open_now = blocks_open()
    if open_now == before:
        return []
    return [one for one, blocks in open_now.items() if blocks > before.get(one, -1)]


def _tell_of(left: list[BaseDatabaseWrapper]) -> str:
    told = ", ".join(f"{one.alias!r} ({_what_is_open(one)})" for one in left)
    return (
        f"It left a transaction open on database {told}. What it did there is rolled back: write `with atomic():`, or "
        "end by hand what began by hand."
    )


def _roll_back(left: list[BaseDatabaseWrapper], before: Blocks = NONE) -> None:
    for connection in left:
        _leave_blocks(connection, before.get(connection, 0))
        if connection not in before:
            _close(connection)


class LeavingNothingOpen:
    """Raises `TransactionManagementError` where the block left a transaction open in this thread.

    Each message runs in such a block: a generator in place of this class would cost three times as much.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = blocks_open()

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        _tell(end_left_open(self._before), error)


@asynccontextmanager
async def aleaving_nothing_open(end: EndLeftOpen) -> AsyncIterator[None]:
    """Do as `LeavingNothingOpen` does, for an async handler, whose sync code runs in another thread."""
    try:
        yield
    except BaseException as error:
        _tell(await end(), error)
        raise
    _tell(await end())


class SyncThread:
    """The one thread in which the sync code of all async handlers runs, one call at a time.

    When a handler leaves a transaction open there, the calls of other handlers run in it until it is found. So every
    attempt that ran meanwhile has failed.
    """

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] | None = None
        self._found = 0
        self._told = ""

    def watch(self) -> EndLeftOpen:
        """Begin an attempt. Returns the function to call at its end."""
        found_before = self._found

        async def end() -> str:
            opened = self._connections
            if opened is None:
                opened = self._connections = await sync_to_async(lambda: _opened.connections)()
            if any(map(_is_open, opened)):  # perhaps for a call that is under way: only the thread knows
                await sync_to_async(self.end_left_open)()
            return "" if self._found == found_before else self._told

        return end

    def end_left_open(self) -> None:
        """Roll back, in that thread, what a handler left open."""
        if left := _left_open():
            self._told = _tell_of(left)
            self._found += 1  # first: an attempt that ends beside this may already see nothing open
            _roll_back(left)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:
        return False
    # Not get_autocommit(), which would connect anew where the server is gone.
    if connection.in_atomic_block or connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    return connection.autocommit and (_is_begun_by_hand(connection) or _is_autocommit_off_by_hand(connection))


def _is_begun_by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the driver knows of a transaction. Asks no server; mysqlclient and some pools don't tell."""
    raw = connection.connection
    match connection.vendor:
        case "postgresql":
            return postgresql_status(connection) in _POSTGRESQL_BUSY
        case "sqlite":
            return bool(getattr(raw, "in_transaction", False))
        case "mysql":
            return bool(getattr(raw, "server_status", 0) & _MYSQL_IN_TRANS)
        case _:
            return False


def postgresql_status(connection: BaseDatabaseWrapper) -> int | None:
    """Return the transaction status that the driver was told with the last answer, or None where it does not tell."""
    raw = connection.connection
    teller = getattr(raw, "pgconn", None) or getattr(raw, "info", None)  # of psycopg 3, made once; of psycopg2
    return getattr(teller, "transaction_status", None)


def _is_autocommit_off_by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Return whether `SET autocommit=0` was SQL, of which Django does not know.

    The transaction that the next statement begins may not show: PyMySQL learns of one from statements without rows, and
    Django's INSERT … RETURNING on MariaDB has rows.
    """
    if connection.vendor != "mysql":
        return False
    return not getattr(connection.connection, "server_status", _MYSQL_AUTOCOMMIT) & _MYSQL_AUTOCOMMIT


def _what_is_open(connection: BaseDatabaseWrapper) -> str:
    if connection.atomic_blocks:
        return "an atomic() was not left"
    if not connection.autocommit or _is_autocommit_off_by_hand(connection):
        return "autocommit is off"
    return "a BEGIN was not ended"


def _leave_blocks(connection: BaseDatabaseWrapper, blocks: int) -> None:
    """Leave all blocks but the outermost `blocks`, as an error does."""
    error = TransactionManagementError("left open")
    while len(connection.atomic_blocks) > blocks:
        with suppress(Error):  # the server may be gone
            connection.atomic_blocks[-1].__exit__(TransactionManagementError, error, None)


def _close(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is None:
        return
    with suppress(Error):
        connection.rollback()
        connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])  # a database in memory is never closed
    with suppress(Error):
        connection.close()


def _tell(told: str, error: BaseException | None = None) -> None:
    """Raise `TransactionManagementError` with `told`, or add it as a note to an error that fails the attempt anyway."""
    if not told:
        return
    if error is not None and not isinstance(error, Snooze):
        error.add_note(told)
    else:
        raise TransactionManagementError(told) from error
