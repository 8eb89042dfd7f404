"""A batch of claims is one statement on PostgreSQL and SQLite and a few on MariaDB, however many messages it gives."""

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, cancel_delay_messages, send_delay_messages
from django_delayq.brokers.base import ClaimRequest, Claims
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, queue
from django_delayq.store.polling import LATE_MS
from tests.servers import Server
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


PART = [ClaimRequest("default", "k", 10, idle_slots=2)]


@pytest.fixture
def backlog(due: DatabaseBackend, database: str) -> DatabaseBackend:
    """The broker, with overdue messages for which no alarm is asked any more. Two claims of ten are over."""
    each_at_its_time = F("sent_at") - 2 * LATE_MS + F("pk") % MANY
    ReadyMessage.objects.using(database).update(due_at=each_at_its_time)
    for from_where in ("alarms", "the low end of the index"):
        found = due.queue.claim(PART, lease_ms=LEASE_MS, worker="w").messages
        assert len(found) == 10, from_where
    return due


def test_what_is_overdue_is_claimed_from_the_table_in_few_statements(
    backlog: DatabaseBackend, database: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "ASKED_EVERY_S", 3_600.0)
    redis_server.freeze()  # it is not asked
    try:
        with CaptureQueriesContext(connections[database]) as captured:
            found = backlog.queue.claim(PART, lease_ms=LEASE_MS, worker="w").messages
    finally:
        redis_server.thaw()
    assert len(found) == 10
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor]


def test_amid_a_backlog_the_timer_is_asked_now_and_then_and_its_absence_loses_no_message(
    backlog: DatabaseBackend, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "ASKED_EVERY_S", 0.0)
    redis_server.freeze()
    try:
        found = backlog.queue.claim(PART, lease_ms=LEASE_MS, worker="w").messages
    finally:
        redis_server.thaw()
    assert len(found) == 10
    assert backlog.queue.degraded.silent_since is not None, "the timer was asked, and did not answer"


def _waiting(database: str) -> list[ReadyMessage]:
    return list(ReadyMessage.objects.using(database).filter(token=None).order_by("due_at", "pk"))


def test_a_backlog_is_claimed_in_order_and_to_its_end(backlog: DatabaseBackend, database: str) -> None:
    waiting = [row.message_id for row in _waiting(database)]
    claimed: list[str] = []
    while len(claimed) < len(waiting):
        found = backlog.queue.claim(PART, lease_ms=LEASE_MS, worker="w")
        assert found.more_available, "there may be more"
        claimed += [one.id for one in found.messages]
    assert claimed == waiting
    assert backlog.queue.claim(PART, lease_ms=LEASE_MS, worker="w").messages == []
    assert not backlog.queue.backlog


def test_of_a_backlog_no_more_at_most_once_messages_are_leased_than_start_at_once(
    backlog: DatabaseBackend, database: str
) -> None:
    once = [row.message_id for row in _waiting(database)[:4]]
    ReadyMessage.objects.using(database).filter(message_id__in=once).update(at_most_once=True)
    backlog.queue.claim(PART, lease_ms=LEASE_MS, worker="w")
    assert [row.message_id for row in _waiting(database)[:2]] == once[2:]


def test_leases_are_renewed_in_few_statements(due: DatabaseBackend, database: str) -> None:
    claims, _ = _claim(due, database)
    with CaptureQueriesContext(connections[database]) as captured:
        assert due.queue.renew(claims.messages, LEASE_MS) == [True] * MANY
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor]
