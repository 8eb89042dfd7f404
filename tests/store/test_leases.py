"""Leases on rows: who lost one changes nothing, and who locks a row for other reasons stalls nobody."""

import threading

import pytest
from django.db import connections, transaction

from django_delayq import cancel_delay_messages, get_delay_message, send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.message import State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import StoredBroker
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, alarms, claim


def _lapse(database: str) -> None:
    ReadyMessage.objects.using(database).update(lease_until=1)


def test_a_lease_that_nobody_took_can_still_be_ended(broker: StoredBroker, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (late,) = claim(broker)
    _lapse(database)
    info = get_delay_message("a")
    assert info is not None
    assert info.state is State.READY
    assert broker.settle([settlement(late, SettleAction.FINISH)]) == [True]
    assert FinishMessage.objects.using(database).count() == 1


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_an_uncommitted_cancel_stalls_no_claim_and_its_rollback_loses_nothing(
    broker: StoredBroker, database: str
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


def test_a_cancelled_message_does_not_start(broker: StoredBroker) -> None:
    send_delay_message("k", 1, id="a")
    assert cancel_delay_messages("a") == 1
    while alarms(broker):  # it is due in a moment: due times are rounded up
        assert broker.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
