"""A message that must not start twice, whose lease ran out: no move starts it again, or hides that it may have run."""

import pytest
from django.db.models import F

from django_delayq import (
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
)
from django_delayq.core.message import OnConflict, State
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.polling import RowClaims, TableClaims
from django_delayq.store.timer import DatabaseTimer
from tests.store.support import LEASE_MS, WANT, claim


def _lapse(broker: DatabaseBackend, database: str) -> None:
    """Send, claim, and die."""
    send_delay_message("k", 1, id="a", at_most_once=True, tag="t")
    claim(broker)
    ReadyMessage.objects.using(database).update(lease_until=F("due_at"))


def _must_be_buried(database: str) -> None:
    assert not ReadyMessage.objects.using(database).filter(message_id="a").exists()
    assert "must not start twice" in ErrorMessage.objects.using(database).get().error


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "earliest", "latest"])
def test_a_send_finds_it_running(broker: DatabaseBackend, database: str, on_conflict: OnConflict) -> None:
    _lapse(broker, database)
    before = ReadyMessage.objects.using(database).values().get()
    for delay in ("0s", "1h"):
        sent = send_delay_message("k", 2, id="a", delay=delay, on_conflict=on_conflict)
        assert (sent.created, sent.running) == (False, True)
    assert ReadyMessage.objects.using(database).values().get() == before
    assert broker.queue.maintain(lease_ms=LEASE_MS).buried
    _must_be_buried(database)


def test_a_move_by_id_or_tag_comes_too_late(broker: DatabaseBackend, database: str) -> None:
    _lapse(broker, database)
    info = get_delay_message("a")
    assert info is not None
    assert info.state is State.RUNNING
    assert broker.queue.counts().running == 1
    assert reschedule_delay_messages("a", delay="1h") == reschedule_delay_messages(tag="t", delay="1h") == 0
    assert cancel_delay_messages("a") == cancel_delay_messages(tag="t") == 0
    assert broker.queue.purge(["a"]) == [False]
    assert broker.queue.maintain(lease_ms=LEASE_MS).buried
    _must_be_buried(database)


def test_upkeep_finds_it_behind_more_than_it_looks_at_in_one_call(broker: DatabaseBackend, database: str) -> None:
    _lapse(broker, database)
    rows = ReadyMessage.objects.using(database)
    free = {"id": None, "token": None, "lease_until": None, "due_at": 1}  # many are due at one time
    row = rows.values().get()
    rows.bulk_create([ReadyMessage(**row | free | {"message_id": f"{n}"}) for n in range(2_100)])
    buried = [len(broker.queue.maintain(lease_ms=LEASE_MS).buried) for _ in range(4)]
    assert buried == [0, 0, 1, 0]
    _must_be_buried(database)
    ReadyMessage.objects.using(database).filter(message_id="7").update(token=1, lease_until=1)
    assert sum(len(broker.queue.maintain(lease_ms=LEASE_MS).buried) for _ in range(3)) == 1, "it goes round"


def test_a_worker_that_goes_on_from_the_tables_alone_comes_upon_it(broker: DatabaseBackend, database: str) -> None:
    _lapse(broker, database)
    from_tables = RowClaims(broker.database, DatabaseTimer(broker.database), TableClaims(broker.database))
    assert from_tables.claim(WANT, LEASE_MS, "w").messages == []
    assert from_tables.maintain(lease_ms=LEASE_MS).reclaimed == 1
    assert from_tables.claim(WANT, LEASE_MS, "w").messages == []
    _must_be_buried(database)
