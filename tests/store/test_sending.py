"""A send is a row of the caller's transaction: committed and rolled back with it, whatever the broker does."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg.errors import LockNotAvailable

from django_delayq import (
    Send,
    acancel_delay_messages,
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.api import operations
from django_delayq.brokers.base import SettleAction
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.signals import message_sent
from django_delayq.store import DatabaseBackend
from django_delayq.support.timestamps import from_ms
from tests.brokers.rig import settlement
from tests.servers import PostgresServer, Server
from tests.store.support import LEASE_MS, alarms, claim, clock_of, clock_of_sends, rolled_back


def test_ids_that_differ_in_case_or_in_spaces_at_their_ends_are_messages_of_their_own(
    broker: DatabaseBackend, database: str
) -> None:
    ids = {"a", "a ", "a  ", "A"}
    send_delay_messages([Send("k", n, id=id, delay="1h", tag=id) for n, id in enumerate(sorted(ids))])
    assert not send_delay_message("k", 1, id="a ", delay="1h").created
    assert cancel_delay_messages("a ") == 1
    assert reschedule_delay_messages(tag="a", delay="0s") == 1
    held = claim(broker)
    assert [one.id for one in held] == ["a"]
    assert broker.queue.renew([replace(held[0], id="a "), held[0]], LEASE_MS) == [False, True]
    assert broker.queue.apply(
        [settlement(replace(held[0], id="A"), SettleAction.FINISH), settlement(held[0], SettleAction.FINISH)]
    ) == [
        False,
        True,
    ]
    waiting = ReadyMessage.objects.using(database).values_list("message_id", flat=True)
    assert set(waiting) == {"a  ", "A"}


def test_a_rollback_leaves_nothing(broker: DatabaseBackend, database: str) -> None:
    with rolled_back(database):
        send_delay_message("k", 1, id="a")
        assert get_delay_message("a") is not None
    assert get_delay_message("a") is None
    assert alarms(broker) == 0


def test_the_broker_hears_of_it_only_after_the_commit(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        sent = send_delay_message("k", 1)
        assert sent.created
        assert alarms(broker) == 0
    assert alarms(broker) == 1


def test_one_statement_a_send_and_no_redis_command_before_the_commit(
    broker: DatabaseBackend, database: str, redis_server: Server
) -> None:
    with redis_server.client() as client, transaction.atomic(using=database):
        before = client.info("stats")["total_commands_processed"]
        with CaptureQueriesContext(connections[database]) as queries:
            send_delay_message("k", 1, delay="5m", expires="1h", tag="t")
        # What MySQL inserted it tells only when it is asked.
        assert len(queries) == (2 if connections[database].vendor == "mysql" else 1)
        assert client.info("stats")["total_commands_processed"] == before + 1  # the INFO itself


def test_a_rolled_back_savepoint_takes_its_sends_along(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        send_delay_message("k", 1, id="kept")
        with rolled_back(database):
            send_delay_message("k", 1, id="gone")
    assert get_delay_message("gone") is None
    assert alarms(broker) == 1


def test_a_cancel_is_part_of_the_transaction_and_keeps_the_row(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    with rolled_back(database):
        assert cancel_delay_messages("a") == 1
    assert get_delay_message("a") is not None
    assert cancel_delay_messages("a") == 1
    assert FinishMessage.objects.using(database).get().outcome == "cancelled"
    assert cancel_delay_messages("a") == 0


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: cancel_delay_messages("a"), "acancel_delay_messages"),
        (lambda: reschedule_delay_messages("a", delay=1), "areschedule_delay_messages"),
        (lambda: get_delay_message("a"), "aget_delay_message"),
    ],
)
def test_a_call_by_id_in_async_code_is_refused_with_what_to_write(
    broker: DatabaseBackend, call: Callable[[], object], instead: str
) -> None:
    async def change() -> None:
        call()

    with pytest.raises(SynchronousOnlyOperation, match=rf"write `await {instead}\(\.\.\.\)`"):
        async_to_sync(change)()


def test_a_send_in_async_code_is_refused_with_what_to_write(broker: DatabaseBackend) -> None:
    async def view() -> None:
        send_delay_message("k", 1)

    with pytest.raises(SynchronousOnlyOperation, match=r"write `await \.\.\.asend\(\.\.\.\)`"):
        async_to_sync(view)()


def test_what_has_one_tag_is_cancelled_and_rescheduled_together(broker: DatabaseBackend) -> None:
    for id, tag in (("a", "order:1"), ("b", "order:1"), ("c", "order:2")):
        send_delay_message("k", 1, id=id, tag=tag, delay="1h")
    assert reschedule_delay_messages(tag="order:1", delay="2h") == 2
    assert cancel_delay_messages(tag="order:1") == 2
    assert get_delay_message("c") is not None


@pytest.mark.parametrize(
    "move",
    [cancel_delay_messages, partial(reschedule_delay_messages, delay="2h"), async_to_sync(acancel_delay_messages)],
)
def test_what_is_moved_by_tag_is_moved_whole_or_not_at_all(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch, move: Callable[..., int]
) -> None:
    monkeypatch.setattr(operations, "BATCH", 2)
    send_delay_messages([Send("k", n, tag="t", delay="1h") for n in range(5)])
    ready = ReadyMessage.objects.using(database)
    before = sorted(ready.values_list("message_id", "due_at"))
    with connections[database].execute_wrapper(_FailAt(3)), pytest.raises(ZeroDivisionError):
        move(tag="t")
    assert sorted(ready.values_list("message_id", "due_at")) == before
    assert move(tag="t") == 5


class _FailAt:
    """The nth statement that takes rows out of the waiting ones, or changes them, fails."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        self.left -= re.search(r"(DELETE FROM|UPDATE) .?delayq_ready", sql) is not None
        return 1 / 0 if self.left == 0 else execute(sql, *rest)


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_a_message_found_by_its_tag_can_get_no_other_before_it_is_moved(
    broker: DatabaseBackend, database: str, postgres_server: PostgresServer
) -> None:
    send_delay_message("k", 1, id="a", tag="t", delay="1h")

    def replace_it() -> None:
        with postgres_server.client(connections[database].settings_dict["NAME"]) as client:
            client.execute("SET lock_timeout = 50")
            client.execute("UPDATE delayq_ready SET tag = 'u'")

    def read() -> None:
        assert broker.queue.ids_by_tag("t") == ["a"]
        with pytest.raises(LockNotAvailable):
            replace_it()

    broker.queue.atomically(read)
    replace_it()
    assert cancel_delay_messages(tag="t") == 0


def test_a_send_succeeds_while_the_broker_is_away(stored_delayq: dict[str, Any], settings: Any, database: str) -> None:
    settings.DELAYQ = {"default": {**stored_delayq, "LOCATION": "unix:///nowhere/redis.sock"}}
    with transaction.atomic(using=database):
        send_delay_message("k", 1, id="a")
    send_delay_message("k", 1, id="b")
    assert set(ReadyMessage.objects.using(database).values_list("message_id", flat=True)) == {"a", "b"}


def test_on_commit_means_nothing_with_a_store(broker: DatabaseBackend) -> None:
    with pytest.raises(TypeError, match="has a store, so that a send commits and rolls back with"):
        send_delay_message("k", 1, on_commit=True)


def test_a_bulk_send_in_a_transaction_is_part_of_it(broker: DatabaseBackend, database: str) -> None:
    with rolled_back(database):
        assert send_delay_messages(Send("k", n) for n in range(2_500)).created == 2_500
    assert not ReadyMessage.objects.using(database).exists()
    assert send_delay_messages(Send("k", n) for n in range(2_500)).created == 2_500
    assert ReadyMessage.objects.using(database).count() == 2_500


def test_message_sent_is_told_after_the_commit(broker: DatabaseBackend, database: str) -> None:
    told: list[str] = []

    def note(id: str, **_: object) -> None:
        told.append(id)

    message_sent.connect(note)
    try:
        with transaction.atomic(using=database):
            send_delay_message("k", 1, id="a")
            assert told == []
        with rolled_back(database):
            send_delay_message("k", 1, id="b")
    finally:
        message_sent.disconnect(note)
    assert told == ["a"]


def test_a_delay_counts_from_the_send_however_long_its_transaction_is_open(
    broker: DatabaseBackend, database: str
) -> None:
    with transaction.atomic(using=database):
        began_ms = broker.database.now_ms()
        while (sent_ms := broker.database.now_ms()) == began_ms:
            pass
        sent = send_delay_message("k", 1, delay="30m")
    assert sent.due_at is not None
    assert sent.due_at >= from_ms(sent_ms) + timedelta(minutes=30)


@pytest.mark.parametrize(("open_s", "placed"), [(29.5, 1), (1.0, 0)])
def test_what_came_near_while_its_transaction_was_open_is_put_at_the_commit(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch, open_s: float, placed: int
) -> None:
    passed = 0.0
    clock_of_sends(monkeypatch, lambda: passed)
    with transaction.atomic(using=database):
        send_delay_message("k", 1, delay="30s")
        passed = open_s
    assert alarms(broker) == placed
    _assert_due_within_a_second(broker, database)


@pytest.mark.parametrize(("took_s", "placed"), [(29.5, 1), (1.0, 0)])
def test_the_time_that_a_commit_takes_makes_no_alarm_late(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch, took_s: float, placed: int
) -> None:
    passed = 0.0
    clock_of_sends(monkeypatch, lambda: passed)

    def take_long(execute: Callable[..., Any], *query: Any) -> Any:
        nonlocal passed
        passed = took_s
        return execute(*query)

    with connections[database].execute_wrapper(take_long):
        send_delay_message("k", 1, delay="30s")
    assert alarms(broker) == placed
    _assert_due_within_a_second(broker, database)


def _assert_due_within_a_second(broker: DatabaseBackend, database: str) -> None:
    """Assert that each alarm that was put is due within a second."""
    (pk,) = ReadyMessage.objects.using(database).values_list("pk", flat=True)
    for alarm in clock_of(broker).timer.find_alarms("default", "k", [str(pk)]):
        assert alarm.due_ms is not None
        assert alarm.due_ms - clock_of(broker).queue.counts().now_ms < 1_000


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_transaction_managed_by_hand_takes_sends_and_leaves_them_to_the_sweep(
    broker: DatabaseBackend, database: str
) -> None:
    transaction.set_autocommit(False, using=database)
    try:
        send_delay_message("k", 1, id="a")
        transaction.rollback(using=database)
        send_delay_message("k", 1, id="b")
        transaction.commit(using=database)
    finally:
        transaction.set_autocommit(True, using=database)
    assert list(ReadyMessage.objects.using(database).values_list("message_id", flat=True)) == ["b"]
    assert alarms(broker) == 0
