"""The transactions and connections of handlers.

- Exactly once: an atomic handler runs in a transaction whose last statement ends its message. Whatever dies, and
  whenever, the handler's writes and that end take effect together or not at all. A worker that lost its lease finds
  no row to end, and rolls back.
- A transaction that a handler leaves open is rolled back, and the attempt fails. Otherwise later transactions in the
  same thread would run inside it, and have no effect. A transaction in which the handler was called, as in a
  TestCase, is left alone.
- Connections that broke or are too old are closed, because a worker's threads run for days.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, Error, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.dispatch import receiver

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, SettleAction, Tables, Transition
from django_delayq.conf import get_alias
from django_delayq.core.errors import LeaseLost, Snooze
from django_delayq.core.message import Message
from django_delayq.store.database import Database, takes_no_writes
from django_delayq.store.settle import is_finished
from django_delayq.support.logging import logger
from django_delayq.worker import failure

POSTGRESQL_IDLE = 0
_POSTGRESQL_BUSY = (1, 2, 3)
"""The states of a connection in which a transaction is open, or may be: ACTIVE, INTRANS and INERROR.

ACTIVE means that a statement runs. Only another thread can see that.
"""
_MYSQL_IN_TRANS = 1
_MYSQL_AUTOCOMMIT = 2
LEAST_AGE_S = 60
"""The age in seconds below which no connection is closed for its age, even if CONN_MAX_AGE is less."""
IDLE_S = 60.0
"""How long a thread that runs no message keeps its connections, in seconds."""
Blocks = Mapping[BaseDatabaseWrapper, int]
"""Connections in a transaction, each with its number of `atomic()` blocks; 0 if it was begun in another way."""
NONE: Blocks = {}
EndLeftOpen = Callable[[], Awaitable[str]]
"""A function that rolls back what an async handler left open, and returns an error text about it; '' if nothing was."""


def run_and_finish(run: Callable[[], None], message: Message[Any], pk: int, store: Tables) -> None:
    """Run a handler and finish the row of its message, in one transaction. What follows it is put in that, too.

    Raises the error of the handler or of the commit, `LeaseLost` if this worker no longer holds the message, or
    `TransactionManagementError` if the handler ended this transaction or left another one open. A commit can raise
    although it took place, if the connection is lost before its answer or an `on_commit` callback fails. So if the row
    is in delayq_finish after an error of the commit, the message counts as finished and only a warning is logged.
    """
    database: Database = store.database
    connection = database.connection
    ended = False
    try:
        with LeavingNothingOpen(), transaction.atomic(using=database.using):
            with staying_in_it(database.using):
                run()
            if not store.finish_here(message.id, pk, message.token, message.started_ms):
                raise LeaseLost(f"Message {message.id!r} (key {message.key!r}) is another's now: all is rolled back.")
            ended = True
    except Exception as error:
        if not ended or connection.in_atomic_block or not _is_finished(database, pk):
            raise
        logger.warning(
            "Message %r (%s) is finished: its transaction was committed, then %s was raised.",
            message.id, message.key, type(error).__name__,
            exc_info=error, extra={"id": message.id, "key": message.key, "token": message.token},
        )  # fmt: skip


class BatchLost(LeaseLost):
    """This worker no longer holds the messages with these `ids`, so the transaction of their batch was rolled back."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(f"Messages {', '.join(map(repr, ids))} are another's now: all is rolled back.")
        self.ids = ids


def run_and_settle(run: Callable[[], list[Transition]], store: Tables) -> list[Transition]:
    """Run a handler of many messages, and write how they end, in one transaction. Return the transitions, as written.

    `run` runs the handler, and returns the transitions. Raises like `run_and_finish`, but `BatchLost` in place of
    `LeaseLost`.
    """
    database: Database = store.database
    ended: list[Transition] = []
    try:
        with LeavingNothingOpen(), transaction.atomic(using=database.using):
            with staying_in_it(database.using):
                transitions = run()
            if lost := store.settle_here(transitions):
                raise BatchLost([one.id for one in lost])
            ended = transitions
    except Exception as error:
        finished = next((one for one in ended if one.action is SettleAction.FINISH), None)
        if finished is None or database.connection.in_atomic_block or not _is_finished(database, int(finished.pk)):
            raise
        logger.warning(
            "%d messages (%s) have ended: their transaction was committed, then %s was raised.",
            len(ended), finished.key, type(error).__name__, exc_info=error, extra={"key": finished.key},
        )  # fmt: skip
    for one in ended:
        one.is_written = True
    return ended


def staying_in_it(using: str) -> AbstractContextManager[None]:
    """Return a `with` block that raises `TransactionManagementError` if its transaction ends before the block does."""
    connection = connections[using]
    return _watching_status(connection) if connection.vendor == "postgresql" else _holding_savepoint(connection)


@contextmanager
def _watching_status(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Watch the driver's transaction status, on PostgreSQL.

    The driver is idle before the first statement, which begins the transaction, and again after the transaction has
    ended. An error does not end it: PostgreSQL refuses every statement after an error except those that end the
    transaction.
    """
    is_begun = is_over = False

    def look() -> None:
        nonlocal is_over
        is_over = is_over or (is_begun and postgresql_status(connection) == POSTGRESQL_IDLE)

    def look_before(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        nonlocal is_begun
        look()
        result = execute(sql, params, many, context)
        is_begun = is_begun or not many  # an executemany() of no rows begins none
        return result

    with connection.execute_wrapper(look_before):
        yield
    look()
    if is_over:
        raise TransactionManagementError(
            "Its transaction was ended while it ran, by a COMMIT or ROLLBACK of its own. What it did is not one "
            "commit: leave these out."
        )


@contextmanager
def _holding_savepoint(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Hold a savepoint, on MySQL, MariaDB and SQLite. If it is gone at the block's end, the transaction has ended.

    MySQL and MariaDB roll back the victim of a deadlock, and SQLite rolls back a transaction when the disk is full.
    They run the statements that follow all the same, in another transaction or in none.
    """
    errors: list[DatabaseError] = []

    def note_error(execute: Callable[..., Any], *query: Any) -> Any:
        try:
            return execute(*query)
        except DatabaseError as error:
            errors[:] = [error]
            raise

    mark = connection.savepoint()
    with connection.execute_wrapper(note_error):
        yield
    if mark is None:
        return
    try:
        connection.savepoint_commit(mark)
    except DatabaseError as error:
        cause = errors[-1] if errors else error
        raise TransactionManagementError(
            f"Its transaction was ended while it ran: {failure.line(cause)}. What it did is not one commit: let an "
            "error through that rolls back, and leave out what commits (on MySQL, a change of tables)."
        ) from cause


def was_committed(claimed: Claimed, handler: Handler[Any, Any]) -> bool:
    """Return whether an atomic handler's transaction was committed, although its process died before saying so."""
    if not (handler.atomic and claimed.pk):
        return False
    return _is_finished(Database(handler.using, get_alias(handler.using).database), int(claimed.pk))


def _is_finished(database: Database, pk: int) -> bool:
    try:
        return is_finished(database, pk)
    except (DatabaseError, InterfaceError):
        return False  # the database is away: settling the lease will ask again


class _Opened(threading.local):
    """The connections that a thread has opened.

    They are kept here because looking through all aliases would cost as much as a small handler.
    """

    def __init__(self) -> None:
        self.connections = list(connections.all(initialized_only=True))


_opened = _Opened()


@receiver(connection_created)
def _note(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if connection not in _opened.connections:
        _opened.connections.append(connection)


def blocks_open() -> Blocks:
    """Return this thread's connections that are in a transaction, each with its number of `atomic()` blocks."""
    blocks = NONE
    for one in _opened.connections:
        if _is_open(one):
            blocks = {**blocks, one: len(one.atomic_blocks)}
    return blocks


def end_left_open(before: Blocks = NONE) -> str:
    """Roll back the transactions and `atomic()` blocks of this thread that were not open `before`.

    `before` is what `blocks_open` returned before the handler ran. A connection that was not in a transaction before
    is closed too. Return an error text that names the databases; '' if nothing was left open.
    """
    left = _left_open(before)
    if not left:
        return ""
    text = _text_of(left)
    _roll_back(left, before)
    return text


def _left_open(before: Blocks = NONE) -> list[BaseDatabaseWrapper]:
    open_now = blocks_open()
    if open_now == before:
        return []
    return [one for one, blocks in open_now.items() if blocks > before.get(one, -1)]


def _text_of(left: list[BaseDatabaseWrapper]) -> str:
    text = ", ".join(f"{one.alias!r} ({_what_is_open(one)})" for one in left)
    return (
        f"It left a transaction open on database {text}. What it did there is rolled back: write `with atomic():`, or "
        "end by hand what began by hand."
    )


def _roll_back(left: list[BaseDatabaseWrapper], before: Blocks = NONE) -> None:
    for connection in left:
        _leave_blocks(connection, before.get(connection, 0))
        if connection not in before:
            _close(connection)


class LeavingNothingOpen:
    """A `with` block that rolls back the transactions that its code leaves open in this thread.

    If there are any, it raises `TransactionManagementError`. If the code raised an error other than `Snooze`, it adds a
    note to that instead. Each message runs in such a block. With `@contextmanager` it would cost three times as much.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = blocks_open()

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        _report(end_left_open(self._before), error)


@asynccontextmanager
async def aleaving_nothing_open(end: EndLeftOpen) -> AsyncIterator[None]:
    """Do what `LeavingNothingOpen` does, for an async handler.

    Its sync code runs in another thread, so `end` rolls back what was left open there, and returns the error text.
    """
    try:
        yield
    except BaseException as error:
        _report(await end(), error)
        raise
    _report(await end())


class SyncThread:
    """The one thread in which the sync code of all async handlers runs, one call at a time.

    When a handler leaves a transaction open there, the calls of other handlers run inside it until it is found. So
    every attempt that ran meanwhile fails.
    """

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] | None = None
        self._found = 0
        self._text = ""

    def watch(self) -> EndLeftOpen:
        """Begin an attempt. Return the function to call at its end."""
        found_before = self._found

        async def end() -> str:
            opened = self._connections
            if opened is None:
                opened = self._connections = await sync_to_async(lambda: _opened.connections)()
            if any(map(_is_open, opened)):  # perhaps for a call that is under way: only the thread knows
                await sync_to_async(self.end_left_open)()
            return "" if self._found == found_before else self._text

        return end

    def end_left_open(self) -> None:
        """Roll back the transactions that handlers left open. Call it in the thread of the sync code."""
        if left := _left_open():
            self._text = _text_of(left)
            self._found += 1  # first: an attempt that ends beside this may already see nothing open
            _roll_back(left)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    if connection.connection is None:
        return False
    # Not get_autocommit(), which would connect again where the server is gone.
    if connection.in_atomic_block or connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    return connection.autocommit and (_is_begun_by_hand(connection) or _is_autocommit_off_by_hand(connection))


def _is_begun_by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the driver says that a transaction is open; False if it can't say (mysqlclient, some pools).

    The server is not asked.
    """
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
    """Return the transaction status that came with the server's last answer; None if the driver does not show it."""
    raw = connection.connection
    teller = getattr(raw, "pgconn", None) or getattr(raw, "info", None)  # of psycopg 3, made once; of psycopg2
    return getattr(teller, "transaction_status", None)


def _is_autocommit_off_by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a handler ran `SET autocommit=0` as SQL, which Django does not notice.

    The next statement begins a transaction that the driver may not notice either: PyMySQL learns of transactions only
    from statements that return no rows, and Django's INSERT … RETURNING on MariaDB returns some.
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
    """Leave all `atomic()` blocks but the outermost `blocks`, as if an error had been raised in them."""
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


def _report(text: str, error: BaseException | None = None) -> None:
    """Raise `TransactionManagementError` with `text`, or add it as a note to an error that fails the attempt anyway.

    Do nothing if `text` is empty.
    """
    if not text:
        return
    if error is not None and not isinstance(error, Snooze):
        error.add_note(text)
    else:
        raise TransactionManagementError(text) from error


def health_checks_are_on() -> bool:
    """Return whether any database sets CONN_HEALTH_CHECKS, which has its connections checked before each handler."""
    return any(database["CONN_HEALTH_CHECKS"] for database in connections.settings.values())


def close_stale_connections() -> None:
    """Close this thread's connections that broke, or are older than both CONN_MAX_AGE and a minute.

    Also close those with another autocommit than in the settings: a handler left a transaction open. This costs a query
    only for a connection on which one has failed. With CONN_HEALTH_CHECKS the next use of a connection checks whether
    it works. Django's own `close_old_connections` would reconnect for each message at the default CONN_MAX_AGE of 0. A
    connection inside a transaction, as in a TestCase, is left alone.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block and connection.connection is not None:
            _close_if_stale(connection)


def close_read_only_connections(exception: BaseException) -> None:
    """Close this thread's connections if a handler's error says that its database takes no writes.

    They are usable, but may lead to the old primary. The next statement connects again, and finds the new one.
    """
    if takes_no_writes(exception):
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


def _close_if_stale(connection: BaseDatabaseWrapper) -> None:
    if connection.errors_occurred:
        if not connection.is_usable():
            connection.close()
            return
        connection.errors_occurred = False
    else:  # as `close_if_unusable_or_obsolete` does at the start of a request
        connection.health_check_done = False  # type: ignore[attr-defined]  # the stubs lack it
    # Not get_autocommit(), which would connect again where the server is gone.
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        connection.close()  # a handler left its transaction open
        return
    if connection.close_at is not None:
        opened_at = connection.close_at - connection.settings_dict["CONN_MAX_AGE"]
        if monotonic() >= max(connection.close_at, opened_at + LEAST_AGE_S):
            connection.close()
