"""Alarms of rows that are gone, or run already: they hold up none of what is behind them."""

from itertools import chain
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, ClaimRequest, Claims, pages
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.store import DatabaseBackend
from tests.store.support import LEASE_MS, alarms, wait_until_due

REQUESTS = [ClaimRequest("default", "k", 1)]
GONE = [Alarm("default", "k", f"{10**12 + n}") for n in range(5)]
MANY_GONE = [Alarm("default", "k", f"{10**12 + n}") for n in range(150)]
VERY_MANY_GONE = [Alarm("default", "k", f"{10**12 + n}") for n in range(2_000)]
MANY_KEYS = [*(ClaimRequest("default", f"other{n}", 1) for n in range(111)), *REQUESTS]


def _sleep_until_nothing_wakes(broker: DatabaseBackend) -> None:
    """Claim and wait, as a worker does."""
    while broker.queue.wait(0):
        assert broker.queue.claim(REQUESTS, lease_ms=LEASE_MS, worker="w").messages == []


def _put_very_many(broker: DatabaseBackend) -> None:
    for page in pages(VERY_MANY_GONE, 1_000):
        broker.queue.timer.schedule(page)
    wait_until_due(broker)


def test_a_claim_of_stale_alarms_alone_is_followed_by_the_next_one(broker: DatabaseBackend) -> None:
    _sleep_until_nothing_wakes(broker)
    broker.queue.timer.schedule(GONE)
    wait_until_due(broker)
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    while not broker.queue.claim(REQUESTS, lease_ms=LEASE_MS, worker="w").messages:
        assert broker.queue.wait(0)
    assert alarms(broker) == 0


def test_a_worker_sleeps_when_the_stale_alarms_are_gone(broker: DatabaseBackend) -> None:
    broker.queue.timer.schedule(GONE)
    while alarms(broker):
        broker.queue.claim(REQUESTS, lease_ms=LEASE_MS, worker="w")
    _sleep_until_nothing_wakes(broker)


def test_many_stale_alarms_are_gone_after_a_few_claims(broker: DatabaseBackend) -> None:
    broker.queue.timer.schedule(MANY_GONE)
    wait_until_due(broker)
    claims = 0
    while alarms(broker):
        broker.queue.claim(REQUESTS, lease_ms=LEASE_MS, worker="w")
        claims += 1
    assert claims <= 4


def test_many_stale_alarms_of_one_key_hold_up_no_other(broker: DatabaseBackend) -> None:
    wants = [*REQUESTS, ClaimRequest("default", "other", 1)]
    _put_very_many(broker)
    send_delay_message("other", 1, id="a")
    wait_until_due(broker)
    broker.queue.claim(REQUESTS, lease_ms=LEASE_MS, worker="w")
    found: list[str] = []
    while not found:
        found = [message.id for message in broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages]
        assert alarms(broker)
    assert found == ["a"]


def test_what_is_behind_very_many_stale_alarms_is_claimed_at_once_beside_many_keys(broker: DatabaseBackend) -> None:
    _put_very_many(broker)
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    claims = [broker.queue.claim(MANY_KEYS, lease_ms=LEASE_MS, worker="w").messages for _ in range(3)]
    assert [message.id for message in chain(*claims)] == ["a"]


def test_what_is_behind_very_many_stale_alarms_is_claimed_while_other_keys_have_messages(
    broker: DatabaseBackend,
) -> None:
    wants = [ClaimRequest("default", "other", 1), *REQUESTS]
    _put_very_many(broker)
    for n in range(5):
        send_delay_message("other", 1, id=f"other{n}")
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    claims = [broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages for _ in range(3)]
    assert {message.id for message in chain(*claims)} > {"a"}


def test_very_many_stale_alarms_are_cleared_many_at_a_time_beside_many_keys(broker: DatabaseBackend) -> None:
    _put_very_many(broker)
    claims = 0
    while broker.queue.wait(0):
        assert broker.queue.claim(MANY_KEYS, lease_ms=LEASE_MS, worker="w").messages == []
        claims += 1
    assert alarms(broker) == 0
    assert claims <= 40


def test_who_drains_clears_many_stale_alarms_at_a_time(broker: DatabaseBackend, database: str) -> None:
    _put_very_many(broker)
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    with CaptureQueriesContext(connections[database]) as captured:
        found = broker.queue.claim_all(MANY_KEYS, lease_ms=LEASE_MS, worker="w")
    assert [message.id for message in found.messages] == ["a"]
    assert len(captured) < 300, "a few statements for each hundred"


def test_what_was_claimed_beside_stale_alarms_is_kept_when_the_broker_fails_then(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.queue.timer.schedule(GONE)
    send_delay_message("other", 1, id="a")
    wait_until_due(broker)
    claim = broker.queue.timer.take_due

    def claim_once(*args: Any, **options: Any) -> Claims:
        monkeypatch.setattr(broker.queue.timer, "take_due", fail)
        return claim(*args, **options)

    def fail(*_: Any, **__: Any) -> Claims:
        raise BrokerUnavailable("gone")

    monkeypatch.setattr(broker.queue.timer, "take_due", claim_once)
    found = broker.queue.claim([ClaimRequest("default", "other", 1), *REQUESTS], lease_ms=LEASE_MS, worker="w")
    assert [message.id for message in found.messages] == ["a"]
