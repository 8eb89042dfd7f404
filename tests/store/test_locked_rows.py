"""A row that another transaction holds for a moment has not lost its lease: its settlement is asked for again."""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from django.db import connections, transaction

from django_delayq import Message, send_delay_message
from django_delayq.brokers.base import (
    CancelRequest,
    Claimed,
    SettleAction,
    Transition,
)
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.settler import Settler
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, claim
from tests.worker.rig import PATIENCE_S, make_handler

pytestmark = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)


@contextmanager
def locked(database: str, *ids: str) -> Iterator[None]:
    """The rows of `ids`, held by a transaction of another connection."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(using=database):
            list(ReadyMessage.objects.using(database).select_for_update().filter(message_id__in=ids))
            held.set()
            go_on.wait(PATIENCE_S)
        connections.close_all()

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()
        other.join()


def _two(broker: DatabaseBackend) -> dict[str, Claimed]:
    for id in ("held", "free"):
        send_delay_message("k", 1, id=id)
    return {message.id: message for message in claim(broker)}


def test_an_end_is_neither_lost_nor_waited_for(broker: DatabaseBackend, database: str) -> None:
    claimed = _two(broker)
    ends = [settlement(claimed[id], SettleAction.FINISH) for id in ("held", "free")]
    with locked(database, "held"):
        assert broker.queue.apply(ends) == [None, True]
    assert broker.queue.apply(ends) == [True, False]
    assert FinishMessage.objects.using(database).count() == 2


def test_a_renewal_is_neither_lost_nor_waited_for(broker: DatabaseBackend, database: str) -> None:
    claimed = _two(broker)
    leases = [claimed["held"], claimed["free"]]
    with locked(database, "held"):
        assert broker.queue.renew(leases, LEASE_MS) == [None, True]
    assert broker.queue.renew([leases[0], replace(leases[1], token=1)], LEASE_MS) == [True, False]


def test_a_worker_settles_it_when_it_is_free(
    broker: DatabaseBackend, database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(message: Message[int]) -> None: ...

    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    outage = OutageLog()
    leases = Leases(broker, LEASE_MS, outage)
    settling = Settler(broker, leases, outage)
    lease = Lease(claimed, make_handler(nothing), 0.0, math.inf, 0.0)
    leases.add([lease])
    asked, settle = threading.Semaphore(0), broker.queue.apply

    def watched(settlements: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        asked.release()
        return settle(settlements)

    monkeypatch.setattr(broker.queue, "apply", watched)
    with caplog.at_level(logging.ERROR, "django_delayq"), locked(database, "a"):
        settling.start()
        settling.add(lease, settlement(claimed, SettleAction.FINISH))
        assert asked.acquire(timeout=PATIENCE_S)
        assert asked.acquire(timeout=PATIENCE_S), "it is asked for again"
        assert leases.held() == [lease], "what can't be told yet is renewed"
    settling.close(PATIENCE_S)
    assert settling.counts[SettleAction.FINISH] == 1
    assert FinishMessage.objects.using(database).count() == 1
    assert leases.held() == []
    assert caplog.text == ""


def test_who_drains_waits_for_a_row_that_another_transaction_holds(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker)  # it is due
    ReadyMessage.objects.using(database).update(token=None, lease_until=None)
    with ExitStack() as held:
        held.enter_context(locked(database, "a"))
        release = threading.Timer(0.1, held.close)
        release.start()
        found = broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w")
        release.join()  # else its connection is closed amid its commit
    assert [one.id for one in found.messages] == ["a"]
