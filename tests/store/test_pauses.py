"""Pauses of a store: workers are told of one when they can read it, which is after the commit that made it."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
from django.db import transaction

from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.monitor.looking import closed_after
from django_delayq.store import DatabaseBackend
from tests.store.support import LEASE_MS, WANT, rolled_back
from tests.worker.rig import PATIENCE_S

PAUSE = Pause("mail", None, "the provider is down")


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: when to tell is the same on each."""
    return sqlite_database


@pytest.fixture
def announced(broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> list[list[str | None]]:
    """The queues that were paused whenever the broker was asked to notify the workers."""
    announced: list[list[str | None]] = []
    heartbeats = broker.broker.presence
    announce = heartbeats.announce_pauses

    def note() -> None:
        announced.append([pause.queue for pause in broker.presence.pauses()])
        announce()

    monkeypatch.setattr(heartbeats, "announce_pauses", note)
    return announced


def test_workers_are_told_of_a_pause_and_its_end_after_their_commits(
    broker: DatabaseBackend, database: str, announced: list[list[str | None]]
) -> None:
    with transaction.atomic(using=database):
        broker.presence.pause(PAUSE)
        assert announced == []
    assert announced == [["mail"]]
    with transaction.atomic(using=database):
        assert broker.presence.resume("mail", None)
        assert announced == [["mail"]]
    assert announced == [["mail"], []]


def test_nobody_is_told_of_a_pause_that_was_rolled_back(
    broker: DatabaseBackend, database: str, announced: list[list[str | None]]
) -> None:
    with rolled_back(database):
        broker.presence.pause(PAUSE)
    assert announced == []
    assert broker.presence.pauses() == []


def test_in_a_transaction_managed_by_hand_they_are_told_at_once(
    broker: DatabaseBackend, database: str, announced: list[list[str | None]]
) -> None:
    transaction.set_autocommit(False, using=database)
    try:
        broker.presence.pause(PAUSE)
        assert announced == [["mail"]]
    finally:
        transaction.rollback(using=database)
        transaction.set_autocommit(True, using=database)


def test_workers_that_read_too_soon_learn_of_it_with_a_heartbeat_after_the_commit(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[Pause]] = []

    def hear() -> None:
        with ThreadPoolExecutor(1) as worker:  # on a connection of its own, like a worker that was told
            worker.submit(lambda: heard.append(_heartbeat(broker))).result()

    _heartbeat(broker)  # makes up the store's identity, which takes a write
    monkeypatch.setattr(broker.broker.presence, "announce_pauses", hear)
    transaction.set_autocommit(False, using=database)
    try:
        broker.presence.pause(PAUSE)
        transaction.commit(using=database)
    finally:
        transaction.set_autocommit(True, using=database)
    assert heard == [[]]
    assert [pause.queue for pause in _heartbeat(broker)] == ["mail"]


def _heartbeat(broker: DatabaseBackend) -> list[Pause]:
    with closed_after("default"):
        answer = broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    assert answer.pauses is not None
    return answer.pauses


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_sleeping_worker_hears_of_a_pause(broker: DatabaseBackend, database: str) -> None:
    broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    broker.queue.wait(0)  # from here on it listens
    before = broker.presence.pause_version
    broker.presence.pause(PAUSE)
    until = monotonic() + PATIENCE_S
    while broker.presence.pause_version == before:
        assert monotonic() < until
        broker.queue.wait(1)
