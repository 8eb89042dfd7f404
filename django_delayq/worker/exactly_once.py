"""Exactly once: a handler runs in a transaction whose last statement ends its message.

Whatever dies, and whenever, both took effect or neither did. A worker that lost its lease finds no row to end, and
rolls back.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed
from django_delayq.conf import get_alias
from django_delayq.core.errors import LeaseLost
from django_delayq.core.message import Message
from django_delayq.store.database import Database
from django_delayq.store.settle import is_finished
from django_delayq.support.logging import logger
from django_delayq.worker import failure
from django_delayq.worker.left_open import POSTGRESQL_IDLE, LeavingNothingOpen, postgresql_status


def run_and_finish(run: Callable[[], None], message: Message[Any], pk: int, database: Database) -> None:
    """Run a handler and finish the row of its message, in one transaction.

    Raises the error of the handler or of the commit, or `LeaseLost` where another holds the message. A commit may have
    taken place although it raised: the connection was lost before its answer, or an `on_commit` callback failed. Then
    the message counts as finished if its row is in delayq_finish.
    """
    connection = database.connection
    ended = False
    try:
        with LeavingNothingOpen(), transaction.atomic(using=database.using):
            with staying_in_it(database.using):
                run()
            if not database.dialect.finish_here(database, pk, message.token, message.started_ms):
                raise LeaseLost(
                    f"Message {message.id!r} (key {message.key!r}) is another's by now: all is rolled back."
                )
            ended = True
    except Exception as error:
        if not ended or connection.in_atomic_block or not _is_finished(database, pk):
            raise
        logger.warning(
            "Message %r (%s) is finished: its transaction was committed, then %s was raised.",
            message.id, message.key, type(error).__name__,
            exc_info=error, extra={"id": message.id, "key": message.key, "token": message.token},
        )  # fmt: skip


def staying_in_it(using: str) -> AbstractContextManager[None]:
    """Raise `TransactionManagementError` if the transaction in which the block began is over before its end."""
    connection = connections[using]
    return _watching_status(connection) if connection.vendor == "postgresql" else _holding_savepoint(connection)


@contextmanager
def _watching_status(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Watch the status that the driver knows. After an error PostgreSQL refuses all statements but those that end it.

    A driver is idle before the first statement, with which it begins the transaction, and after the end.
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
    """Hold a savepoint, which is gone if the transaction is.

    MySQL rolls back the victim of a deadlock, SQLite a transaction that finds its disk full. They run the statements
    that follow all the same, in another transaction or in none.
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
    """Return whether an atomic handler's transaction was committed, although its process died before it could tell."""
    if not (handler.atomic and claimed.pk):
        return False
    return _is_finished(Database(handler.using, get_alias(handler.using).database), int(claimed.pk))


def _is_finished(database: Database, pk: int) -> bool:
    try:
        return is_finished(database, pk)
    except (DatabaseError, InterfaceError):
        return False  # away: the end of the lease asks again, until it knows
