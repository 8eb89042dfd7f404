"""A send while its id runs, at once with the end of the run: whichever is committed first, the send is not lost."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from django_delayq import Message, Sent, cancel_delay_messages, send_delay_message
from django_delayq.brokers.base import CancelRequest, Claimed, SettleAction
from django_delayq.core import transitions
from django_delayq.core.errors import LeaseLost
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend, kept
from django_delayq.worker import attempt
from tests.brokers.rig import settlement
from tests.races import while_another_did
from tests.store.support import claim, rolled_back
from tests.worker.rig import PATIENCE_S, make_handler

T = TypeVar("T")

SERVERS = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)
ENDS = [SettleAction.FINISH, SettleAction.BURY, SettleAction.RETRY, SettleAction.RELEASE]


def send_again(data: int) -> Sent:
    return send_delay_message("k", data, id="a", on_conflict="replace", while_running="again")


def started(broker: DatabaseBackend) -> Claimed:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    return claimed


def in_a_thread(work: Callable[[], T]) -> T:
    answers: list[T] = []

    def run() -> None:
        answers.append(work())
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    return answers[0]


def data_of_next(broker: DatabaseBackend) -> list[bytes]:
    return [one.body for one in claim(broker)]


@SERVERS
@pytest.mark.parametrize("verb", ENDS)
def test_a_send_that_is_not_committed_yet_makes_the_end_wait(
    broker: DatabaseBackend, database: str, verb: SettleAction
) -> None:
    end = settlement(started(broker), verb, error="no good")
    with transaction.atomic(using=database):
        assert send_again(2).kept
        assert in_a_thread(lambda: broker.queue.apply([end])) == [None]
    assert broker.queue.apply([end]) == [True]
    assert data_of_next(broker) == [b"2"]


@SERVERS
@pytest.mark.parametrize("verb", ENDS)
def test_a_send_that_is_rolled_back_leaves_nothing(broker: DatabaseBackend, database: str, verb: SettleAction) -> None:
    end = settlement(started(broker), verb, error="no good", delay_ms=60_000)
    with transaction.atomic(using=database):
        assert send_again(2).kept
        transaction.set_rollback(True, using=database)
    assert broker.queue.apply([end]) == [True]
    assert list(ReadyMessage.objects.using(database).filter(data="2")) == []


@SERVERS
@pytest.mark.parametrize("verb", ENDS)
def test_a_send_that_comes_while_the_end_is_not_committed_is_there_after_it(
    broker: DatabaseBackend, database: str, verb: SettleAction
) -> None:
    end = settlement(started(broker), verb, error="no good")
    sent = while_another_did(database, lambda: broker.queue.apply([end]), partial(send_again, 2))
    assert not sent.running
    assert data_of_next(broker) == [b"2"]


@SERVERS
@pytest.mark.parametrize("verb", ENDS)
def test_a_send_that_comes_while_what_was_kept_is_sent_takes_its_place(
    broker: DatabaseBackend, database: str, verb: SettleAction
) -> None:
    end = settlement(started(broker), verb, error="no good")
    send_again(2)
    sent = while_another_did(database, lambda: broker.queue.apply([end]), partial(send_again, 3))
    assert (sent.created, sent.running) == (False, False)
    assert ReadyMessage.objects.using(database).get().merged in (1, 2)
    assert data_of_next(broker) == [b"3"]


@SERVERS
def test_two_sends_at_once_are_both_counted(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    assert while_another_did(database, partial(send_again, 2), partial(send_again, 3)).kept
    assert broker.queue.apply([settlement(claimed, SettleAction.FINISH)]) == [True]
    assert ReadyMessage.objects.using(database).get().merged == 1
    assert data_of_next(broker) == [b"3"]


# Beside a cancel of what runs


def cancel_run() -> int:
    return cancel_delay_messages("a", running=True, by="alice")


def asked(database: str) -> CancelRequest:
    row = ReadyMessage.objects.using(database).get()
    assert row.cancel_at is not None
    return CancelRequest(row.cancel_by or "", int(row.cancel_at.timestamp() * 1000))


@SERVERS
def test_a_cancel_that_waits_for_a_send_cancels_it_too(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    assert while_another_did(database, partial(send_again, 2), cancel_run) == 1
    assert broker.queue.apply([transitions.cancel(claimed, asked(database))]) == [True]
    assert list(ReadyMessage.objects.using(database)) == []


@SERVERS
def test_a_send_that_waits_for_a_cancel_is_sent_when_the_run_ends(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    assert while_another_did(database, cancel_run, partial(send_again, 2)).kept
    assert broker.queue.apply([transitions.cancel(claimed, asked(database))]) == [True]
    assert FinishMessage.objects.using(database).get().outcome == "cancelled"
    assert data_of_next(broker) == [b"2"]


def test_a_cancel_that_is_rolled_back_leaves_what_was_kept(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    send_again(2)
    with rolled_back(database):
        cancel_run()
    assert broker.queue.apply([settlement(claimed, SettleAction.FINISH)]) == [True]
    assert data_of_next(broker) == [b"2"]


@pytest.mark.parametrize("verb", ENDS[1:])
def test_a_cancel_and_a_send_between_the_two_statements_of_an_end_leave_the_run_to_the_cancel(
    broker: DatabaseBackend, database: str, verb: SettleAction
) -> None:
    end = settlement(started(broker), verb, error="no good")
    cancel_run()
    send_again(2)
    assert kept.end(broker.queue.database, [end]) == ({}, [])  # the second: the first has found no mark
    row = ReadyMessage.objects.using(database).get()
    assert (row.token is None, row.again is None) == (False, False)


def test_the_alarm_of_what_was_kept_is_scheduled_with_the_end(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    send_again(2)
    assert broker.queue.apply([settlement(claimed, SettleAction.FINISH)]) == [True]
    assert broker.queue.wait(PATIENCE_S)
    assert data_of_next(broker) == [b"2"]


def test_tags_and_rules_go_with_what_is_kept(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    send_delay_message(
        "k", 2, id="a", tag=("x", "y"), on_conflict="replace", while_running="again", trace_id="t", priority=5
    )
    assert broker.queue.apply([settlement(claimed, SettleAction.FINISH)]) == [True]
    info = broker.queue.get("a")
    assert info is not None
    assert (info.header.tags, info.header.trace_id, info.header.queue) == (("x", "y"), "t", "default^5")
    assert broker.queue.ids_by_tag("y") == ["a"]


# Atomic handlers


def run_atomic(claimed: Claimed, database: str, work: Callable[[], object]) -> BaseException | None:
    def func(message: Message[Any]) -> None:
        Group.objects.using(database).create(name="written")
        work()

    handler = make_handler(func, atomic=True)
    message = attempt.begin(claimed, handler, claimed.due_ms, lambda: True)
    assert isinstance(message, Message)
    return attempt.run_sync(claimed, handler, message, database)


@SERVERS
def test_what_another_sends_while_an_atomic_handler_runs_is_sent_by_its_commit(
    broker: DatabaseBackend, database: str
) -> None:
    claimed = started(broker)
    assert run_atomic(claimed, database, lambda: in_a_thread(partial(send_again, 2))) is None
    assert FinishMessage.objects.using(database).get().pk == int(claimed.pk)
    assert Group.objects.using(database).filter(name="written").exists()
    assert data_of_next(broker) == [b"2"]


def test_what_an_atomic_handler_sends_to_its_own_id_is_sent_by_its_commit(
    broker: DatabaseBackend, database: str
) -> None:
    claimed = started(broker)
    assert run_atomic(claimed, database, lambda: send_again(2)) is None
    assert FinishMessage.objects.using(database).count() == 1
    assert data_of_next(broker) == [b"2"]


def test_what_an_atomic_handler_sends_to_its_own_id_is_rolled_back_with_it(
    broker: DatabaseBackend, database: str
) -> None:
    def fail() -> None:
        send_again(2)
        raise ValueError

    claimed = started(broker)
    assert isinstance(run_atomic(claimed, database, fail), ValueError)
    assert ReadyMessage.objects.using(database).get().again is None


def test_an_atomic_handler_that_lost_its_lease_leaves_what_is_kept(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)

    def lose() -> None:
        in_a_thread(partial(send_again, 2))
        in_a_thread(lambda: ReadyMessage.objects.using(database).update(token=7))

    if connections[database].vendor == "sqlite":
        pytest.skip("one writer at a time")
    assert isinstance(run_atomic(claimed, database, lose), LeaseLost)
    assert ReadyMessage.objects.using(database).get().again is not None


@SERVERS
def test_an_atomic_handler_waits_for_a_send_that_is_not_committed(broker: DatabaseBackend, database: str) -> None:
    claimed = started(broker)
    sent, go_on = threading.Event(), threading.Event()

    def send() -> None:
        with transaction.atomic(using=database):
            send_again(2)
            sent.set()
            go_on.wait(PATIENCE_S)
        connections.close_all()

    sender = threading.Thread(target=send)

    def begin() -> None:
        sender.start()
        assert sent.wait(PATIENCE_S)
        threading.Timer(0.2, go_on.set).start()  # while the handler's last statement waits for the row

    assert run_atomic(claimed, database, begin) is None
    sender.join(PATIENCE_S)
    assert data_of_next(broker) == [b"2"]
