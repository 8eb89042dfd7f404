"""Priorities with a store: a lane is known as soon as its rows are, and comes before what is less urgent."""

import threading
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    Bury,
    Message,
    Send,
    cancel_delay_messages,
    list_delay_messages,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.api.handlers import Handler
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.core.limits import Limits
from django_delayq.models import LaneRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.worker.options import Options
from django_delayq.worker.prefetch import MAX_PER_SLOT
from django_delayq.worker.worker import Worker
from tests.store.support import rolled_back
from tests.worker.rig import make_handler

BACKLOG, EARLY, THREADS = 1_500, 40, 2
MOST = THREADS * (MAX_PER_SLOT + 1)
"""The most messages that wait for the slots or were just taken by them."""


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: lanes are the same on each."""
    return sqlite_database


@pytest.fixture
def announced(broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The lanes that could be read whenever the broker was asked to notify the workers."""
    announced: list[set[str]] = []
    monkeypatch.setattr(
        broker.broker.presence, "announce_pauses", lambda: announced.append(set(broker.presence.lanes()))
    )
    return announced


def test_workers_are_told_of_a_lane_once_and_after_the_commit(
    broker: DatabaseBackend, database: str, announced: list[set[str]]
) -> None:
    with transaction.atomic(using=database):
        send_delay_message("k", priority=5)
        send_delay_message("k", priority=5)
        send_delay_messages([Send("k", priority=5), Send("k", priority=-1), Send("k")])
        assert announced == []
    assert announced[0] == {"default^5", "default^-1"}
    told = len(announced)
    send_delay_message("k", priority=5)
    assert len(announced) == told
    assert LaneRow.objects.using(database).count() == 2


def test_a_lane_that_was_rolled_back_is_there_with_its_next_message(
    broker: DatabaseBackend, database: str, announced: list[set[str]]
) -> None:
    with rolled_back(database):
        send_delay_message("k", priority=5)
    assert (set(broker.presence.lanes()), announced) == (set(), [])
    send_delay_message("k", priority=5)
    assert announced == [{"default^5"}]


def test_of_a_backlog_no_more_starts_than_the_slots_had_claimed_once_more_urgent_ones_are_due(
    broker: DatabaseBackend, database: str
) -> None:
    started: list[Any] = []

    def handle(message: Message[Any]) -> None:
        started.append(message.priority)
        if message.key == "late" and message.data == BACKLOG // 3:  # slots are busy, and known to be fast
            send_delay_messages(Send("early", n, priority=9) for n in range(EARLY))
            until_ms = broker.database.now_ms() + 2
            while broker.database.now_ms() <= until_ms:  # their alarms are rounded up
                pass
            started.append("all are due")

    send_delay_messages(Send("late", n) for n in range(BACKLOG))
    handlers = {key: make_handler(handle, key) for key in ("early", "late")}
    Worker(get_alias(), broker, handlers, Options(threads=THREADS, max_threads=THREADS, drain=True)).run()
    assert (started.count(0), started.count(9)) == (BACKLOG, EARLY)
    since = started[started.index("all are due") :]
    last = max((n for n, one in enumerate(since) if one == 9), default=0)
    assert since[:last].count(0) <= 2 * MOST
    assert not ReadyMessage.objects.using(database).exists()


def drain(handler: Handler[Any, Any], threads: int = 1, **options: Any) -> None:
    Worker(get_alias(), get_backend(), {"k": handler}, Options(threads=threads, max_threads=threads, **options)).run()


def test_a_message_keeps_its_priority_when_it_is_rescheduled_fails_and_is_rescued(broker: DatabaseBackend) -> None:
    attempts: list[tuple[str, int]] = []

    def handle(message: Message[Any]) -> None:
        attempts.append((message.id, message.priority))
        if len(attempts) == 1:
            raise Bury("no card")

    send_delay_message("k", id="a", priority=5, delay="1h")
    assert reschedule_delay_messages("a", delay=0) == 1
    drain(make_handler(handle), drain=True)
    assert broker.queue.rescue(["a"]) == [True]
    send_delay_message("k", id="b", priority=-5)
    drain(make_handler(handle), drain=True)
    assert attempts == [("a", 5), ("a", 5), ("b", -5)]


def test_a_tag_finds_messages_of_each_priority(broker: DatabaseBackend) -> None:
    for priority in (-5, 0, 5):
        send_delay_message("k", priority=priority, tag="order:42", delay="1h")
    assert {(each.queue, each.priority) for each in list_delay_messages(tag="order:42")} == {
        ("default", -5), ("default", 0), ("default", 5)
    }  # fmt: skip
    assert reschedule_delay_messages(tag="order:42", delay="2h") == 3
    assert cancel_delay_messages(tag="order:42") == 3


def test_a_limit_holds_for_all_priorities_together(broker: DatabaseBackend) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def handle(message: Message[Any]) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)  # long enough for another to start beside it
        with lock:
            running -= 1

    send_delay_messages([Send("k", {"account": 7}, priority=n % 3) for n in range(12)])
    limits = Limits(max_concurrency=1, concurrency_key="account:{account}")
    drain(make_handler(handle, limits=limits), threads=3, max_messages=12)
    assert most == 1
    assert not ReadyMessage.objects.using(get_alias().database).exists()


def test_a_rate_holds_for_all_priorities_together(broker: DatabaseBackend) -> None:
    started: list[int] = []
    send_delay_messages([Send("k", priority=priority) for priority in (0, 9)])
    handler = make_handler(lambda message: started.append(message.priority), limits=Limits(interval_us=3_600_000_000))
    drain(handler, max_messages=1)
    assert started == [9]
    assert {row.queue for row in ReadyMessage.objects.using(get_alias().database)} == {"default"}
