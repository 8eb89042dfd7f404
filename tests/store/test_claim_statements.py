"""A batch of claims is one statement on PostgreSQL and SQLite and a few on MariaDB, however many messages it gives."""

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, cancel_delay_messages, send_delay_messages
from django_delayq.brokers.base import Claims
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.store.support import LEASE_MS, WANT, wait_until_due

MANY = 50
MOST_STATEMENTS = {"postgresql": 1, "sqlite": 1, "mysql": 5}
"""BEGIN and COMMIT included."""


@pytest.fixture
def due(broker: DatabaseBackend, database: str) -> DatabaseBackend:
    """The broker, with many messages that are due."""
    send_delay_messages(Send("k", 1, id=f"{n:02}") for n in range(MANY))
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 5)
    wait_until_due(broker)
    return broker


def _claim(broker: DatabaseBackend, database: str) -> tuple[Claims, int]:
    with CaptureQueriesContext(connections[database]) as captured:
        claims = broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    return claims, len(captured)


def test_many_messages_are_claimed_in_few_statements(due: DatabaseBackend, database: str) -> None:
    claims, number = _claim(due, database)
    assert len(claims.messages) == MANY
    assert number <= MOST_STATEMENTS[connections[database].vendor]


def test_what_can_not_be_claimed_costs_one_more(due: DatabaseBackend, database: str) -> None:
    cancel_delay_messages(*(f"{n:02}" for n in range(10)))
    claims, number = _claim(due, database)
    assert len(claims.messages) == MANY - 10
    assert number <= MOST_STATEMENTS[connections[database].vendor] + 1


def test_where_the_timer_tells_of_nothing_no_table_is_asked(broker: DatabaseBackend, database: str) -> None:
    claims, number = _claim(broker, database)
    assert (claims.messages, number) == ([], 0)


def test_leases_are_renewed_in_few_statements(due: DatabaseBackend, database: str) -> None:
    claims, _ = _claim(due, database)
    with CaptureQueriesContext(connections[database]) as captured:
        assert due.queue.renew(claims.messages, LEASE_MS) == [True] * MANY
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor]
