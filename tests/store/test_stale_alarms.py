"""Alarms of rows that are gone, or run already: they hold up none of what is behind them."""

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, Want
from django_delayq.store import StoredBroker
from tests.store.support import LEASE_MS, alarms, wait_until_due

HAND = [Want("default", "k", 1)]
GONE = [Alarm("default", "k", f"{10**12 + n}") for n in range(5)]
MANY_GONE = [Alarm("default", "k", f"{10**12 + n}") for n in range(150)]


def _sleep_until_nothing_wakes(broker: StoredBroker) -> None:
    """Claim and wait, as a worker does."""
    while broker.wait(0):
        assert broker.claim(HAND, lease_ms=LEASE_MS, worker="w").messages == []


def test_a_claim_of_stale_alarms_alone_is_followed_by_the_next_one(broker: StoredBroker) -> None:
    _sleep_until_nothing_wakes(broker)
    broker.put_alarms(GONE)
    wait_until_due(broker)
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    while not broker.claim(HAND, lease_ms=LEASE_MS, worker="w").messages:
        assert broker.wait(0)
    assert alarms(broker) == 0


def test_a_worker_sleeps_when_the_stale_alarms_are_gone(broker: StoredBroker) -> None:
    broker.put_alarms(GONE)
    while alarms(broker):
        broker.claim(HAND, lease_ms=LEASE_MS, worker="w")
    _sleep_until_nothing_wakes(broker)


def test_many_stale_alarms_are_gone_after_a_few_claims(broker: StoredBroker) -> None:
    broker.put_alarms(MANY_GONE)
    wait_until_due(broker)
    claims = 0
    while alarms(broker):
        broker.claim(HAND, lease_ms=LEASE_MS, worker="w")
        claims += 1
    assert claims <= 4


def test_many_stale_alarms_of_one_key_hold_up_no_other(broker: StoredBroker) -> None:
    wants = [*HAND, Want("default", "other", 1)]
    broker.put_alarms(MANY_GONE)
    send_delay_message("other", 1, id="a")
    wait_until_due(broker)
    broker.claim(HAND, lease_ms=LEASE_MS, worker="w")
    found: list[str] = []
    while not found:
        found = [message.id for message in broker.claim(wants, lease_ms=LEASE_MS, worker="w").messages]
        assert alarms(broker)
    assert found == ["a"]
