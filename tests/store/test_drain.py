"""Who drains takes what the clock tells of before it looks at the tables."""

import pytest

from django_delayq import send_delay_message
from django_delayq.brokers.base import Alarm, ClaimRequest
from django_delayq.store import DatabaseBackend
from tests.store.support import LEASE_MS, clock_of, wait_until_due

pytestmark = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)


def test_alarms_of_rows_that_are_gone_keep_none_behind_them(broker: DatabaseBackend) -> None:
    broker.queue.timer.schedule([Alarm("default", "k", str(pk)) for pk in (10**9, 10**9 + 1, 10**9 + 2)])
    send_delay_message("k", 1, id="a")
    wait_until_due(broker)
    found = broker.queue.claim_all([ClaimRequest("default", "k", 1)], lease_ms=LEASE_MS, worker="w")
    assert [message.id for message in found.messages] == ["a"]
    waiting = clock_of(broker).queue.counts().waiting
    assert not [each for each in waiting if each.ready or each.pending], "a was claimed by its alarm"
