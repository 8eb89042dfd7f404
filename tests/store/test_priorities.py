"""Priorities with a store: a lane is known as soon as its rows are, and comes before what is less urgent."""

from typing import Any

import pytest
from django.db import transaction

from django_delayq import Message, Send, send_delay_message, send_delay_messages
from django_delayq.conf import get_alias
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
