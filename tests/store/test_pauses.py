"""Pauses of a store: workers are told of one when they can read it, which is after the commit that made it."""

import pytest
from django.db import transaction

from django_delayq.brokers.base import Pause
from django_delayq.store import StoredBroker
from tests.store.support import clock_of, rolled_back

PAUSE = Pause("mail", None, "the provider is down")


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: when to tell is the same on each."""
    return sqlite_database


def test_workers_are_told_of_a_pause_and_its_end_after_their_commits(broker: StoredBroker, database: str) -> None:
    with transaction.atomic(using=database):
        broker.pause(PAUSE)
        assert clock_of(broker).pauses() == []
    assert [pause.queue for pause in clock_of(broker).pauses()] == ["mail"]
    with transaction.atomic(using=database):
        assert broker.resume("mail", None)
        assert clock_of(broker).pauses() != []
    assert clock_of(broker).pauses() == broker.pauses() == []


def test_nobody_is_told_of_a_pause_that_was_rolled_back(broker: StoredBroker, database: str) -> None:
    with rolled_back(database):
        broker.pause(PAUSE)
    assert clock_of(broker).pauses() == broker.pauses() == []


def test_in_a_transaction_managed_by_hand_they_are_told_at_once(broker: StoredBroker, database: str) -> None:
    transaction.set_autocommit(False, using=database)
    try:
        broker.pause(PAUSE)
        assert len(clock_of(broker).pauses()) == 1
    finally:
        transaction.rollback(using=database)
        transaction.set_autocommit(True, using=database)
