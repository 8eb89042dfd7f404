"""A handler that leaves a transaction open fails, and costs those after it in its thread nothing."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction

from django_delayq import Message, Snooze
from django_delayq.core.message import State
from django_delayq.worker.transactions import SyncThread
from tests.servers import PostgresServer
from tests.worker.processes import Site
from tests.worker.rig import PATIENCE_S, Rig, make_handler

Leave = Callable[[str], object]


def leave_autocommit_off(using: str) -> None:
    transaction.set_autocommit(False, using=using)


def leave_atomic(using: str) -> None:
    transaction.atomic(using=using).__enter__()


def leave_both(using: str) -> None:
    leave_autocommit_off(using)
    leave_atomic(using)


def leave_two(using: str) -> None:
    leave_atomic(using)
    leave_atomic(using)


def leave_begun_by_hand(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("BEGIN")


def leave_autocommit_off_by_hand(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET autocommit=0")


def leave_it_closed(using: str) -> None:
    leave_atomic(using)
    connections[using].close()


LEAVES = pytest.mark.parametrize(
    ("leave", "told"),
    [
        (leave_autocommit_off, "autocommit is off"),
        (leave_atomic, "an atomic() was not left"),
        (leave_both, "an atomic() was not left"),
        (leave_two, "an atomic() was not left"),
        (leave_it_closed, "an atomic() was not left"),
        (leave_begun_by_hand, "a BEGIN was not ended"),
    ],
)
BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def write(using: str, leave: Leave, id: str) -> None:
    """Write a row under that id; "bad" leaves a transaction open."""
    if id == "bad":
        leave(using)
        if connections[using].closed_in_transaction:
            return
    Group.objects.using(using).create(name=id)


def handler_of(func: Callable[[Message[Any]], None], is_async: bool) -> Any:
    async def afunc(message: Message[Any]) -> None:
        await sync_to_async(func)(message)

    return make_handler(afunc if is_async else func, concurrency=1, max_attempts=1)


def written(using: str) -> set[str]:
    return set(Group.objects.using(using).values_list("name", flat=True))


def see_it_fail_alone(rig: Rig, database: str, leave: Leave, told: str, is_async: bool) -> None:
    def func(message: Message[Any]) -> None:
        write(database, leave, message.id)

    rig.start(handler_of(func, is_async))
    rig.send("before")
    rig.until_gone("before")
    rig.send("bad", "a", "b")
    error = rig.until_state("bad", State.FAILED).error
    rig.until_gone("a", "b")
    assert written(database) == {"before", "a", "b"}
    assert error.startswith(f"TransactionManagementError: It left a transaction open on database {database!r} ({told})")


@LEAVES
@BOTH
def test_it_fails_and_those_after_it_take_effect(
    rig: Rig, database: str, leave: Leave, told: str, is_async: bool
) -> None:
    see_it_fail_alone(rig, database, leave, told, is_async)


@BOTH
def test_so_does_one_that_turns_autocommit_off_by_hand(rig: Rig, mariadb_database: str, is_async: bool) -> None:
    """No transaction has begun yet when it has done so, and Django does not know."""
    see_it_fail_alone(rig, mariadb_database, leave_autocommit_off_by_hand, "autocommit is off", is_async)


@BOTH
def test_so_does_one_whose_last_statement_failed_in_what_it_began_by_hand(
    rig: Rig, database: str, is_async: bool
) -> None:
    """PostgreSQL is in no usable transaction then, and would refuse all that comes after."""

    def func(message: Message[Any]) -> None:
        if message.id != "bad":
            return write(database, leave_begun_by_hand, message.id)
        leave_begun_by_hand(database)
        with suppress(DatabaseError), connections[database].cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")

    rig.start(handler_of(func, is_async))
    rig.send("bad", "a", "b")
    assert "(a BEGIN was not ended)" in rig.until_state("bad", State.FAILED).error
    rig.until_gone("a", "b")
    assert written(database) == {"a", "b"}


def test_what_is_left_open_on_any_database_is_told(rig: Rig, sqlite_database: str, postgres_database: str) -> None:
    def func(message: Message[Any]) -> None:
        leave_autocommit_off(sqlite_database)
        leave_atomic(postgres_database)

    rig.start(make_handler(func, max_attempts=1))
    rig.send("a")
    error = rig.until_state("a", State.FAILED).error
    assert f"{sqlite_database!r} (autocommit is off)" in error
    assert f"{postgres_database!r} (an atomic() was not left)" in error


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_one_that_fails_by_itself_keeps_its_error_and_is_told_of_the_other(
    rig: Rig, sqlite_database: str, is_async: bool
) -> None:
    def func(message: Message[Any]) -> None:
        write(sqlite_database, leave_autocommit_off, message.id)
        if message.id == "bad":
            raise LookupError("no such order")

    rig.start(handler_of(func, is_async))
    rig.send("bad", "a")
    rig.until_gone("a")
    info = rig.until_state("bad", State.FAILED)
    assert info.error == "LookupError: no such order"
    assert f"It left a transaction open on database {sqlite_database!r}" in rig.broker.queue.failed(1)[0].detail
    assert written(sqlite_database) == {"a"}


def test_one_that_snoozes_with_a_transaction_open_has_not_snoozed(rig: Rig, sqlite_database: str) -> None:
    def func(message: Message[Any]) -> None:
        leave_atomic(sqlite_database)
        raise Snooze("1h")

    rig.start(make_handler(func, max_attempts=1))
    rig.send("a")
    assert "It left a transaction open" in rig.until_state("a", State.FAILED).error


@pytest.mark.parametrize("leave", [leave_autocommit_off, leave_begun_by_hand])
def test_what_ran_in_the_transaction_that_another_left_open_fails_with_it(
    rig: Rig, database: str, leave: Leave
) -> None:
    """Sync code of all async handlers runs in one thread: what one leaves open there, the others write into."""
    left_open, written_too = asyncio.Event(), asyncio.Event()

    async def func(message: Message[Any]) -> None:
        if message.id == "bad":
            await sync_to_async(leave)(database)
            left_open.set()
            await written_too.wait()
        else:
            await left_open.wait()
            await sync_to_async(Group.objects.using(database).create)(name=message.id)
            written_too.set()

    rig.start(make_handler(func, concurrency=2))
    rig.send("bad", "beside")
    rig.broker.until(lambda: rig.see("bad").failures and rig.see("beside").failures)
    assert "It left a transaction open" in rig.see("beside").error
    assert written(database) == set()
    rig.send("after")
    rig.until_gone("after")
    assert written(database) == {"after"}


def test_what_one_left_open_is_found_while_a_statement_of_another_runs_in_it(
    postgres_database: str, postgres_server: PostgresServer
) -> None:
    """The driver tells only that it is busy then, and the thread has to be asked."""

    def wait_for_lock() -> None:
        with connections[postgres_database].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(1)")

    async def run() -> str:
        sync_thread = SyncThread()
        assert await sync_thread.watch()() == ""
        end = sync_thread.watch()
        await sync_to_async(leave_begun_by_hand)(postgres_database)
        waiting = asyncio.create_task(sync_to_async(wait_for_lock)())
        while not holder.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            await asyncio.sleep(0.01)
        told = asyncio.ensure_future(end())
        await asyncio.sleep(0)  # it has looked
        holder.execute("SELECT pg_advisory_unlock(1)")
        await waiting
        return await told

    with postgres_server.client(connections[postgres_database].settings_dict["NAME"]) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        assert "a BEGIN was not ended" in asyncio.run(run())


def test_an_attempt_that_ends_while_what_another_left_open_is_rolled_back_fails_too(sqlite_database: str) -> None:
    """What it wrote there is gone: it must not count as finished because the transaction is no longer open."""
    closing, may_close = threading.Event(), threading.Event()

    def slow_down_close() -> None:
        connection = connections[sqlite_database]
        close = connection.close

        def close_slowly() -> None:
            connection.close = close  # type: ignore[method-assign]
            closing.set()
            assert may_close.wait(PATIENCE_S)
            close()

        connection.close = close_slowly  # type: ignore[method-assign]

    async def run() -> tuple[str, str]:
        sync_thread = SyncThread()
        assert await sync_thread.watch()() == ""
        end_bad, end_beside = sync_thread.watch(), sync_thread.watch()
        await sync_to_async(leave_begun_by_hand)(sqlite_database)
        await sync_to_async(slow_down_close)()
        bad = asyncio.ensure_future(end_bad())
        assert await asyncio.to_thread(closing.wait, PATIENCE_S)  # it is rolled back
        beside = asyncio.ensure_future(end_beside())
        await asyncio.sleep(0)  # it has looked
        may_close.set()
        return await bad, await beside

    for told in asyncio.run(run()):
        assert "a BEGIN was not ended" in told


def test_in_a_child_process_too(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("bad", key="leave")
    site.send("good", key="report open")
    assert site.line.next_of("bad").what == "leaves"
    assert site.line.next_of("good").what == "outside"
    worker.until_says("Message 'bad' (leave) failed for good: TransactionManagementError: It left a transaction open")
    assert worker.stop() == 0
