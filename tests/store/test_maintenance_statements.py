"""Maintenance looks at the tables in one statement, and not again until something may have lapsed."""

from time import monotonic

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq import send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, queue
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, claim


class Clock:
    """The monotonic clock of the queue, which a test moves ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(queue, "monotonic", clock)
    return clock


def statements(broker: DatabaseBackend, lease_ms: int = LEASE_MS) -> int:
    """Return how many statements maintenance takes now."""
    with CaptureQueriesContext(connections[broker.database.using]) as captured:
        broker.queue.maintain(lease_ms=lease_ms)
    return len(captured)


def test_one_statement_looks_at_everything_and_serves_for_a_while(broker: DatabaseBackend, clock: Clock) -> None:
    send_delay_message("k", 1, id="runs")
    claim(broker)
    assert statements(broker) == 1
    for _ in range(4):
        clock.ahead_s += 1
        assert statements(broker) == 0
    clock.ahead_s += 1
    assert statements(broker) == 1


def test_short_leases_are_looked_at_each_second(broker: DatabaseBackend, clock: Clock) -> None:
    for _ in range(3):
        assert statements(broker, lease_ms=2_000) == 1
        clock.ahead_s += 1


def test_while_a_message_has_crashed_it_is_looked_each_time(broker: DatabaseBackend, clock: Clock) -> None:
    send_delay_message("k", 1, id="crashed")
    ReadyMessage.objects.using(broker.database.using).update(crashes=1)
    assert [statements(broker), statements(broker)] == [1, 1]


def test_the_crash_of_a_child_process_is_looked_at_with_the_next_maintenance(
    broker: DatabaseBackend, clock: Clock
) -> None:
    send_delay_message("k", 1, id="crashes")
    (claimed,) = claim(broker)
    assert [statements(broker), statements(broker)] == [1, 0]
    claimed.crashes = 1
    assert broker.queue.apply([settlement(claimed, SettleAction.CRASH, error="x")]) == [True]
    assert broker.queue.maintain(lease_ms=LEASE_MS).suspects_due == 1


def test_the_time_goes_on_between_looks(broker: DatabaseBackend, clock: Clock) -> None:
    before_ms = broker.queue.maintain(lease_ms=LEASE_MS).now_ms
    clock.ahead_s += 3
    assert 0 <= broker.queue.maintain(lease_ms=LEASE_MS).now_ms - before_ms - 3_000 < 1_000
