"""An atomic handler and the end of its message are one commit, whatever happens around it."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError
from pytest_django import DjangoDbBlocker

from django_delayq import Message, Retry, send_delay_message
from django_delayq.brokers.base import Claimed, SettleAction, Transition
from django_delayq.core.errors import LeaseLost
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.worker import attempt
from django_delayq.worker.transactions import staying_in_it
from tests import databases
from tests.brokers.rig import settlement
from tests.servers import MariaDBServer
from tests.store.support import alarms, claim, clock_of
from tests.worker.rig import PATIENCE_S, make_handler

Run = Callable[..., tuple[BaseException | None, Transition]]

MARIADB = pytest.mark.parametrize("database", ["mariadb_database"], ids=["mariadb"], indirect=True)
POSTGRESQL = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
SQLITE = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)


@pytest.fixture
def claimed(broker: DatabaseBackend) -> Claimed:
    """A message that this process holds."""
    send_delay_message("k", 1, id="a")
    (one,) = claim(broker, "w")
    return one


@pytest.fixture
def run(claimed: Claimed, database: str) -> Iterator[Run]:
    """Runs it as a slot does: the handler writes a row, and does what is given."""

    def run(work: Callable[[], object] = lambda: None) -> tuple[BaseException | None, Transition]:
        def func(message: Message[Any]) -> None:
            Group.objects.using(database).create(name="written")
            work()

        handler = make_handler(func, atomic=True)
        message = attempt.begin(claimed, handler, claimed.due_ms, lambda: True)
        assert isinstance(message, Message)
        exception = attempt.run_sync(claimed, handler, message, database)
        return exception, attempt.after(claimed, handler, exception, message.started_ms, message.started_ms)

    yield run
    connections[database].close()


def written(database: str) -> bool:
    return Group.objects.using(database).filter(name="written").exists()


def test_what_it_wrote_and_its_end_are_committed_together(
    broker: DatabaseBackend, database: str, claimed: Claimed, run: Run
) -> None:
    def look() -> None:
        transaction.on_commit(lambda: seen.append(FinishMessage.objects.using(database).exists()), using=database)

    seen: list[bool] = []
    exception, settlement = run(look)
    assert exception is None
    assert (written(database), seen) == (True, [True])
    row = FinishMessage.objects.using(database).get()
    assert (row.pk, row.outcome, row.worker, row.history) == (int(claimed.pk), "finished", "w", "[]")
    assert row.started_at is not None
    assert clock_of(broker).queue.counts().running == 1
    assert broker.queue.apply([settlement]) == [True]  # its alarm is all that was left
    assert (clock_of(broker).queue.counts().running, alarms(broker)) == (0, 0)


def test_one_batch_may_have_both_kinds_of_ends(broker: DatabaseBackend, claimed: Claimed, run: Run) -> None:
    send_delay_message("k", 1, id="b")
    (other,) = claim(broker)
    _, settled = run()
    both = [settled, settlement(other, SettleAction.FINISH)]
    lost = settlement(replace(other, id="c", token=1), SettleAction.FINISH)
    assert broker.queue.apply([*both, lost]) == [True, True, False]


def test_a_failure_takes_back_what_it_wrote_and_is_tried_again(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    def fail() -> None:
        raise Retry("1m")

    exception, settlement = run(fail)
    assert isinstance(exception, Retry)
    assert not written(database)
    while (answers := broker.queue.apply([settlement])) == [None]:
        pass  # a server that was left holds the row for a moment more
    assert answers == [True]
    assert ReadyMessage.objects.using(database).get().failures == 1


def test_who_lost_the_lease_takes_back_what_it_wrote(broker: DatabaseBackend, database: str, run: Run) -> None:
    rows = ReadyMessage.objects.using(database)

    def lose() -> None:
        rows.update(token=7)

    # As another's claim would, but from the same connection: undone with the rest.
    exception, settlement = run(lose)
    assert isinstance(exception, LeaseLost)
    assert not written(database)
    rows.update(token=7)
    assert broker.queue.apply([settlement]) == [False]
    assert rows.get().token == 7


@pytest.fixture
def lose_answer(database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Has the next commit lose its connection: after it took place, or before."""
    connection = connections[database]
    commit = connection._commit  # type: ignore[attr-defined]

    def lose(took_place: bool) -> None:
        def commit_and_lose() -> None:
            monkeypatch.setattr(connection, "_commit", commit)
            if took_place:
                commit()
            raw = connection.connection
            getattr(raw, "_force_close", raw.close)()  # Django closes it again, which PyMySQL's own close() refuses
            raise OperationalError("the connection was lost")

        monkeypatch.setattr(connection, "_commit", commit_and_lose)

    return lose


def test_a_commit_whose_answer_was_lost_is_asked_for(
    broker: DatabaseBackend, database: str, run: Run, lose_answer: Callable[[bool], None]
) -> None:
    exception, settlement = run(lambda: lose_answer(True))
    assert exception is None
    assert written(database)
    assert broker.queue.apply([settlement]) == [True]


def test_a_commit_that_did_not_take_place_is_a_failure_of_the_attempt(
    broker: DatabaseBackend, database: str, run: Run, lose_answer: Callable[[bool], None]
) -> None:
    exception, settlement = run(lambda: lose_answer(False))
    assert isinstance(exception, OperationalError)
    assert not written(database)
    while (answers := broker.queue.apply([settlement])) == [None]:
        pass  # a server that was left holds the row for a moment more
    assert answers == [True]
    assert ReadyMessage.objects.using(database).get().failures == 1


def test_what_fails_after_the_commit_undoes_nothing_and_is_told(
    database: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_later() -> None:
        transaction.on_commit(lambda: [][0], using=database)

    with caplog.at_level(logging.WARNING, "django_delayq"):
        exception, _ = run(fail_later)
    assert exception is None
    assert "is finished: its transaction was committed, then IndexError was raised" in caplog.text


def test_a_message_without_a_row_runs_in_a_transaction_alone(
    broker: DatabaseBackend, database: str, claimed: Claimed
) -> None:
    def func(message: Message[Any]) -> None:
        assert connections[database].in_atomic_block

    handler = make_handler(func, atomic=True)
    carried = Claimed(claimed.id, claimed.token, claimed.due_ms, claimed.header, claimed.body)
    message = attempt.begin(carried, handler, claimed.due_ms, lambda: True)
    assert isinstance(message, Message)
    assert attempt.run_sync(carried, handler, message, database) is None
    assert not attempt.after(carried, handler, None, 1, 2).is_written
    assert ReadyMessage.objects.using(database).exists()


def _lock(database: str, name: str, *, nowait: bool = False) -> None:
    Group.objects.using(database).select_for_update(nowait=nowait).get(name=name)


def _deadlock(database: str) -> None:
    """Become the victim of a deadlock, and let nobody know."""

    def lock_other_way_round() -> None:
        with transaction.atomic(using=database):
            for number in range(100):  # the victim is who has written less
                Group.objects.using(database).create(name=f"of the other {number}")
            _lock(database, "second")
            meet.wait(PATIENCE_S)
            _lock(database, "first")
        connections.close_all()

    meet = threading.Barrier(2)
    other = threading.Thread(target=lock_other_way_round)
    other.start()
    _lock(database, "first")
    meet.wait(PATIENCE_S)
    with suppress(OperationalError):
        _lock(database, "second")
    other.join(PATIENCE_S)


@MARIADB
def test_a_transaction_that_a_deadlock_rolled_back_is_no_success(
    broker: DatabaseBackend, database: str, claimed: Claimed, run: Run
) -> None:
    for name in ("first", "second"):
        Group.objects.using(database).create(name=name)
    exception, settlement = run(lambda: _deadlock(database))
    assert isinstance(exception, TransactionManagementError)
    assert isinstance(exception.__cause__, OperationalError)
    assert "was ended while it ran: OperationalError: (1213, 'Deadlock found" in (settlement.error or "")
    assert not written(database)
    assert broker.queue.apply([settlement]) == [True]
    assert ReadyMessage.objects.using(database).get().failures == 1


@MARIADB
def test_so_it_is_without_a_store(broker: DatabaseBackend, database: str, claimed: Claimed) -> None:
    def func(message: Message[Any]) -> None:
        Group.objects.using(database).create(name="written")
        _deadlock(database)

    for name in ("first", "second"):
        Group.objects.using(database).create(name=name)
    message = attempt.begin(claimed, make_handler(func), claimed.due_ms, lambda: True)
    assert isinstance(message, Message)
    exception = attempt.run_sync(replace(claimed, pk=""), make_handler(func, atomic=True), message, database)
    assert isinstance(exception, TransactionManagementError)
    assert not written(database)


@SQLITE
def test_nor_is_one_that_a_statement_rolled_back(broker: DatabaseBackend, database: str, run: Run) -> None:
    def insert_twice() -> None:
        with connections[database].cursor() as cursor, suppress(IntegrityError):
            cursor.execute("INSERT OR ROLLBACK INTO auth_group (name) VALUES ('again'), ('again')")

    exception, settlement = run(insert_twice)
    assert isinstance(exception, TransactionManagementError)
    assert "IntegrityError: UNIQUE constraint failed" in (settlement.error or "")
    assert not written(database)
    assert ReadyMessage.objects.using(database).exists()


@MARIADB
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "ALTER TABLE auth_group COMMENT = 'changed'"])
def test_nor_is_one_that_it_ends_itself(broker: DatabaseBackend, database: str, run: Run, statement: str) -> None:
    def execute() -> None:
        with connections[database].cursor() as cursor:
            cursor.execute(statement)

    exception, settlement = run(execute)
    assert isinstance(exception, TransactionManagementError)
    assert "Its transaction was ended while it ran" in (settlement.error or "")
    assert ReadyMessage.objects.using(database).exists()


def _execute(database: str, *statements: str) -> None:
    with connections[database].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


_AGAIN = "INSERT INTO auth_group (name) VALUES ('again')"


@POSTGRESQL
@pytest.mark.parametrize(
    "statements",
    [
        ["ROLLBACK"],
        ["COMMIT"],
        ["ROLLBACK", _AGAIN],
        ["COMMIT", "BEGIN", _AGAIN],
        [f"{_AGAIN}; COMMIT"],
    ],
    ids="; ".join,
)
def test_postgresql_ends_it_as_told_and_it_fails(
    broker: DatabaseBackend, database: str, run: Run, statements: list[str]
) -> None:
    exception, settlement = run(lambda: _execute(database, *statements))
    assert isinstance(exception, TransactionManagementError)
    assert "Its transaction was ended while it ran" in (settlement.error or "")
    assert broker.queue.apply([settlement]) == [True]
    assert ReadyMessage.objects.using(database).get().failures == 1


@POSTGRESQL
def test_so_it_is_with_the_first_statement_and_with_what_the_driver_is_told(database: str) -> None:
    def commit() -> None:
        _execute(database, _AGAIN)
        connections[database].connection.commit()

    for end in (partial(_execute, database, f"BEGIN; {_AGAIN}; COMMIT"), commit):
        with (
            pytest.raises(TransactionManagementError, match="was ended"),
            transaction.atomic(using=database),
            staying_in_it(database),
        ):
            end()
        Group.objects.using(database).get(name="again").delete()
    connections[database].close()


@POSTGRESQL
def test_what_leaves_it_open_on_postgresql_is_no_failure(database: str) -> None:
    def fail() -> None:
        with suppress(DatabaseError), transaction.atomic(using=database):
            _execute(database, "SELECT 1 / 0")

    def send_none() -> None:
        with connections[database].cursor() as cursor:
            cursor.executemany("INSERT INTO auth_group (name) VALUES (%s)", [])

    def stream() -> None:
        with connections[database].connection.pipeline():
            for number in range(3):
                Group.objects.using(database).create(name=f"in a pipeline {number}")
                Group.objects.using(database).count()

    def nothing() -> None:
        pass

    for work in (nothing, fail, send_none, stream):
        with transaction.atomic(using=database), staying_in_it(database):
            work()
    assert Group.objects.using(database).count() == 3
    connections[database].close()


def _time_out(database: str) -> None:
    """Wait for a lock in vain, and let nobody know."""

    def hold() -> None:
        with transaction.atomic(using=database):
            _lock(database, "first")
            meet.wait(PATIENCE_S)
            meet.wait(PATIENCE_S)
        connections.close_all()

    meet = threading.Barrier(2)
    other = threading.Thread(target=hold)
    other.start()
    meet.wait(PATIENCE_S)
    with suppress(OperationalError):
        _lock(database, "first", nowait=True)
    meet.wait(PATIENCE_S)
    other.join(PATIENCE_S)


@MARIADB
def test_an_error_that_rolls_back_no_more_than_its_statement_may_be_caught(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    Group.objects.using(database).create(name="first")
    exception, settlement = run(lambda: _time_out(database))
    assert exception is None
    assert broker.queue.apply([settlement]) == [True]
    assert written(database)


@pytest.fixture
def rolling_back_database(start_mariadb: Callable[..., MariaDBServer], django_db_blocker: DjangoDbBlocker) -> Any:
    """One on a server where an error of a lock that is waited for in vain rolls back the transaction."""
    with django_db_blocker.unblock(), databases.database_on(start_mariadb(innodb_rollback_on_timeout=1)) as alias:
        yield alias


@pytest.mark.parametrize("database", ["rolling_back_database"], ids=["mariadb"], indirect=True)
def test_that_it_rolls_back_more_is_noticed(broker: DatabaseBackend, database: str, run: Run) -> None:
    Group.objects.using(database).create(name="first")
    exception, settlement = run(lambda: _time_out(database))
    assert isinstance(exception, TransactionManagementError)
    assert "OperationalError: (1205, 'Lock wait timeout exceeded" in (settlement.error or "")
    assert not written(database)


@pytest.mark.parametrize("leave", [1, 2])
def test_an_atomic_that_it_does_not_leave_fails_it(
    broker: DatabaseBackend, database: str, run: Run, leave: int
) -> None:
    def enter() -> None:
        for _ in range(leave):
            transaction.atomic(using=database).__enter__()
        Group.objects.using(database).create(name="in it")

    exception, settlement = run(enter)
    assert isinstance(exception, TransactionManagementError)
    assert f"left a transaction open on database {database!r} (an atomic() was not left)" in (settlement.error or "")
    assert not connections[database].in_atomic_block
    assert not Group.objects.using(database).exists()
    assert broker.queue.apply([settlement]) == [True]
    assert ReadyMessage.objects.using(database).get().failures == 1


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_what_it_leaves_open_on_another_database_fails_it_before_it_ends(
    broker: DatabaseBackend, database: str, sqlite_database: str, run: Run
) -> None:
    exception, _ = run(lambda: transaction.set_autocommit(False, using=sqlite_database))
    assert isinstance(exception, TransactionManagementError)
    assert not written(database)
    assert ReadyMessage.objects.using(database).exists()


def test_what_is_left_open_after_its_commit_is_told_and_ended(
    database: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def leave_later() -> None:
        transaction.on_commit(lambda: transaction.set_autocommit(False, using=database), using=database)

    with caplog.at_level(logging.WARNING, "django_delayq"):
        exception, _ = run(leave_later)
    assert exception is None
    assert written(database)
    assert "is finished: its transaction was committed, then TransactionManagementError was raised" in caplog.text
    assert connections[database].get_autocommit()
