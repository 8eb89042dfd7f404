"""Leases on rows: who lost one changes nothing, and who locks a row for other reasons stalls nobody."""

import threading

import pytest
from django.db import connections, transaction

from django_delayq import cancel_delay_messages, get_delay_message, reschedule_delay_messages, send_delay_message
from django_delayq.brokers.base import Pause, SettleAction
from django_delayq.core.history import Ended, read
from django_delayq.core.message import State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend, settle
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, alarms, claim


def _lapse(database: str) -> None:
    ReadyMessage.objects.using(database).update(lease_until=1)


def test_a_lease_that_nobody_took_can_still_be_ended(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (late,) = claim(broker)
    _lapse(database)
    info = get_delay_message("a")
    assert info is not None
    assert info.state is State.RUNNING
    assert broker.queue.apply([settlement(late, SettleAction.FINISH)]) == [True]
    assert FinishMessage.objects.using(database).count() == 1


def test_while_nobody_reclaims_a_lapsed_lease_no_move_takes_its_message(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", tag="t")
    claim(broker)
    _lapse(database)
    before = ReadyMessage.objects.using(database).values().get()
    assert cancel_delay_messages("a") == cancel_delay_messages(tag="t") == 0
    assert reschedule_delay_messages("a", delay="1h") == 0
    assert broker.queue.purge(["a"]) == [False]
    assert send_delay_message("k", 2, id="a", on_conflict="replace").running
    assert ReadyMessage.objects.using(database).values().get() == before
    assert broker.queue.peek("default", 9) == []
    counts = broker.queue.counts()
    assert (counts.running, counts.waiting, counts.suspects) == (1, [], 0)
    assert broker.queue.audit().places == {"pending": 0, "ready": 0, "running": 1, "error": 0}


@pytest.mark.parametrize("where", ["unhandled", "paused", "degraded"])
def test_upkeep_reclaims_every_lapsed_lease_and_then_a_cancel_takes_it(
    broker: DatabaseBackend, database: str, where: str
) -> None:
    send_delay_message("k", 1, id="a")
    send_delay_message("k", 1, id="b")
    assert {one.id for one in claim(broker, "dead")} == {"a", "b"}
    _lapse(database)
    if where == "paused":
        broker.presence.pause(Pause(None, "k", reason="r", paused_ms=0, until_ms=None))
    if where == "degraded":  # the broker is not asked
        broker.degraded.on = True
    assert broker.queue.maintain(lease_ms=LEASE_MS).buried == []  # of a worker that claims nothing of this key
    info = broker.queue.get("a")
    assert info is not None
    assert (info.state, info.crashes, info.holder) == (State.READY, 1, "")
    assert reschedule_delay_messages("b", delay="1h") == 1
    assert cancel_delay_messages("a", "b") == 2
    assert [lost.outcome for row in FinishMessage.objects.using(database) for lost in read(row.history)] == [
        Ended.LOST,
        Ended.LOST,
    ]


def test_upkeep_finds_a_lapsed_lease_behind_more_than_it_looks_at_in_one_call(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker)
    _lapse(database)
    rows = ReadyMessage.objects.using(database)
    free = {"id": None, "token": None, "lease_until": None, "due_at": 1}  # many are due at one time
    row = rows.values().get()
    rows.bulk_create([ReadyMessage(**row | free | {"message_id": f"{n}"}) for n in range(2_100)])
    states = []
    for _ in range(3):
        broker.queue.maintain(lease_ms=LEASE_MS)
        info = get_delay_message("a")
        assert info is not None
        states.append(info.state)
    assert states == [State.RUNNING, State.RUNNING, State.READY]
    rows.filter(message_id="7").update(token=1, lease_until=1)
    for _ in range(3):
        broker.queue.maintain(lease_ms=LEASE_MS)
    assert not rows.filter(token__isnull=False).exists(), "it goes round"


def test_upkeep_rests_after_a_look_at_all_rows_that_took_long(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "LONG_S", 0.0)
    monkeypatch.setattr(settle, "REST_FACTOR", 1_000_000)
    for id, at_most_once in (("a", False), ("b", True)):
        send_delay_message("k", 1, id=id, at_most_once=at_most_once)
        claim(broker)
    broker.queue.maintain(lease_ms=LEASE_MS)
    _lapse(database)
    broker.queue.look_again()
    assert [one.id for one in broker.queue.maintain(lease_ms=LEASE_MS).buried] == ["b"], (
        "which an index of its own leads to"
    )
    info = get_delay_message("a")
    assert info is not None
    assert info.state is State.RUNNING


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_an_uncommitted_cancel_stalls_no_claim_and_its_rollback_loses_nothing(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="held")
    send_delay_message("k", 1, id="free")
    cancelled, go_on = threading.Event(), threading.Event()

    def cancel_and_roll_back() -> None:
        with transaction.atomic(using=database):
            cancel_delay_messages("held")
            cancelled.set()
            go_on.wait(30)
            transaction.set_rollback(True, using=database)
        connections.close_all()

    other = threading.Thread(target=cancel_and_roll_back)
    other.start()
    assert cancelled.wait(30)
    assert [one.id for one in claim(broker)] == ["free"]
    go_on.set()
    other.join()
    assert [one.id for one in claim(broker)] == ["held"]


def test_a_cancelled_message_does_not_start(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a")
    assert cancel_delay_messages("a") == 1
    while alarms(broker):  # it is due in a moment: due times are rounded up
        assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
