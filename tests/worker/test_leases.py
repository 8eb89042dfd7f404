"""Leases: renewed while a handler runs, given up in time, and no late hand acts."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from django_delayq import BrokerUnavailable, LeaseLost, Message
from django_delayq.brokers.base import (
    BATCH,
    NO_PROGRESS,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Claims,
    LeaseId,
    MaintenanceResult,
    Pause,
    SettleAction,
    Transition,
)
from django_delayq.core.message import State
from django_delayq.worker import leases as leases_module
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from tests.brokers.rig import settlement
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler

LEASE_MS = 1_000


class FaultyBroker(WatchedBroker):
    """Renewals fail while `away` is set, upkeep too while `stalled` is; claims hang while `hung` is set."""

    away = False
    stalled = False
    crashes = 0
    hung = False
    renewals = 0

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        if self.away:
            raise BrokerUnavailable("The broker is away.")
        held = super().renew(leases, lease_ms, progress)
        self.renewals += 1
        self.tell()
        return held

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        if self.hung:
            self.until(lambda: not self.hung)
        claims = super().claim(wants, lease_ms=lease_ms, worker=worker)
        self.crashes += sum(claimed.crashes for claimed in claims.messages)
        return claims

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        if self.stalled:
            raise BrokerUnavailable("The broker hangs.")
        return super().maintain(lease_ms=lease_ms)

    def stall(self, until: Callable[[], object]) -> None:
        """Answer nobody for a while; then give the leases that ended meanwhile time to be renewed, as Redis does."""
        self.stalled = self.away = True
        while not until():
            threading.Event().wait(0.01)
        self.ahead_ms -= LEASE_MS * 10
        self.stalled = self.away = False


@pytest.fixture
def faulty() -> Iterator[Rig]:
    """Short leases on a broker that can fail."""
    rig = Rig(LEASE_MS, FaultyBroker)
    yield rig
    broker_of(rig).hung = False
    rig.broker.tell()
    rig.stop()


def broker_of(rig: Rig) -> FaultyBroker:
    assert isinstance(rig.broker, FaultyBroker)
    return rig.broker


class Held:
    """A sync handler that holds its message until told."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go = threading.Event()
        self.message: Message[Any] | None = None

    def __call__(self, message: Message[Any]) -> None:
        self.message = message
        self.started.set()
        assert self.go.wait(PATIENCE_S)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.go.set()


def test_the_lease_of_a_long_handler_is_renewed(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)))
    broker = broker_of(faulty)
    broker.until(lambda: broker.renewals >= 4)  # longer than the lease
    broker.maintain(lease_ms=LEASE_MS)
    assert faulty.see("a").state is State.RUNNING
    held.go.set()
    faulty.until_gone("a")
    assert broker.counts().totals["reclaimed"] == 0


def test_a_long_lease_is_renewed_as_often_as_a_connection_needs_to_be_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "LONGEST_PAUSE_S", 0.01)
    rig = Rig(3_600_000, FaultyBroker)
    leases = Leases(rig.broker, 3_600_000, OutageLog())
    handler = make_handler(lambda message: None)
    leases.add([Lease(Claimed("a", 1, 0, None, b""), handler, 0.0, math.inf, 0.0)])
    leases.start()
    broker = broker_of(rig)
    broker.until(lambda: broker.renewals >= 1)
    leases.close(PATIENCE_S)


class FullPagesRefused(FaultyBroker):
    """Refuses to renew as many at once as a call takes."""

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        if len(leases) == BATCH:
            raise BrokerUnavailable("A page was refused.")
        return super().renew(leases, lease_ms, progress)


def test_a_page_that_cannot_be_renewed_keeps_no_other_from_it() -> None:
    rig = Rig(LEASE_MS, FullPagesRefused)
    leases = Leases(rig.broker, LEASE_MS, OutageLog())
    handler = make_handler(lambda message: None)
    leases.add(Lease(Claimed(f"{n}", 1, 0, None, b""), handler, 0.0, math.inf, 0.0) for n in range(BATCH + 1))
    leases.start()
    broker = broker_of(rig)
    broker.until(lambda: broker.renewals == 1)
    leases.close(PATIENCE_S)


def test_a_close_waits_for_the_renewal_that_is_under_way(faulty: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(faulty.broker, LEASE_MS, OutageLog())
    begun, renew = threading.Event(), faulty.broker.queue.renew

    def until_closed(
        held: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str]
    ) -> list[bool | CancelRequest]:
        begun.set()
        assert leases._closed.wait(PATIENCE_S)
        return renew(held, lease_ms, progress)

    monkeypatch.setattr(faulty.broker, "renew", until_closed)
    handler = make_handler(lambda message: None)
    leases.start()
    leases.add([Lease(Claimed("a", 1, 0, None, b""), handler, 0.0, math.inf, 0.0)])
    assert begun.wait(PATIENCE_S)
    leases.close(PATIENCE_S)
    assert broker_of(faulty).renewals == 1
    assert not any(thread.is_alive() for thread in leases._threads)


def test_renewals_do_not_wait_behind_a_hung_claim(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    broker = broker_of(faulty)
    broker.hung = True
    before = broker.renewals
    broker.until(lambda: broker.renewals >= before + 4)


def test_the_end_of_a_lost_lease_is_refused_and_logged(
    faulty: Rig, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)), threads=1)
    assert held.started.wait(PATIENCE_S)
    taken = take_over(faulty, "a")
    faulty.broker.until(lambda: held.message is not None and not held.message.is_held())
    assert held.message is not None
    with pytest.raises(LeaseLost):
        held.message.ensure_held()
    with caplog.at_level(logging.ERROR, "django_delayq"):
        held.go.set()
        faulty.stop()
    assert "overrun" in caplog.text
    assert faulty.see("a").state is State.RUNNING  # by the one who took it over
    assert faulty.broker.queue.apply([taken]) == [True]


def test_a_cancelled_and_resent_message_is_not_touched_by_the_late_hand(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)), threads=1)
    assert held.started.wait(PATIENCE_S)
    faulty.broker.queue.apply([take_over(faulty, "a")])
    faulty.send("a", data="new", delay_ms=3_600_000)
    held.go.set()
    faulty.stop()
    info = faulty.see("a")
    assert (info.state, info.body) == (State.PENDING, b'"new"')


def take_over(rig: Rig, id: str) -> Transition:
    """Let the lease lapse on the broker's clock and claim the message as another worker; gives its finish."""
    rig.broker.advance(LEASE_MS * 2)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    claims = rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=60_000, worker="other")
    (claimed,) = claims.messages
    assert claimed.id == id
    return settlement(claimed, SettleAction.FINISH)


def test_a_worker_that_cannot_renew_gives_up_before_its_lease_ends(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    broker_of(faulty).away = True
    message = held.message
    assert message is not None
    while True:
        reclaimed = faulty.broker.queue.counts().totals["reclaimed"]
        if not message.is_held():
            return
        assert reclaimed == 0, "the broker ended the lease before the worker gave it up"


def test_what_a_thread_of_the_worker_still_runs_is_not_started_beside_it(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    first, broker = held.message, broker_of(faulty)
    assert first is not None
    broker.advance(LEASE_MS * 2)
    broker.maintain(lease_ms=LEASE_MS)  # as another worker's, to which this one looked dead
    faulty.send("b")
    broker.until(lambda: broker.counts().totals["released"] >= 2)  # claimed by this worker, and given back
    assert held.message in (first, None) or held.message.id == "b"
    held.go.set()
    faulty.until_gone("a", "b")
    assert broker.counts().totals["finished"] == 2


@pytest.mark.parametrize("is_suspect", [False, True])
def test_what_waits_for_its_own_earlier_run_does_not_start_once_it_is_paused(
    faulty: Rig, held: Held, monkeypatch: pytest.MonkeyPatch, is_suspect: bool
) -> None:
    monkeypatch.setattr(Dispatcher, "release_unstarted", lambda *_, **__: None)  # would give it back a second later
    faulty.send("a")
    worker = faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    first, broker = held.message, broker_of(faulty)
    if is_suspect:
        make_suspect(faulty, "a")
    else:
        broker.advance(LEASE_MS * 2)
        broker.maintain(lease_ms=LEASE_MS)  # as another worker's, to which this one looked dead
    broker.until(lambda: [lease for lease in worker._leases.held() if not lease.runs])  # claimed by this one again
    broker.presence.pause(Pause(None, "k", "x"))
    faulty.until_state("a", State.READY)
    held.go.set()
    upkeeps = broker.upkeeps
    broker.until(lambda: broker.upkeeps > upkeeps + 1)
    assert held.message is first
    assert (faulty.see("a").state, faulty.see("a").suspect) == (State.READY, is_suspect)


def make_suspect(rig: Rig, id: str) -> None:
    """Have two workers die with a message."""
    while not rig.see(id).suspect:
        rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=LEASE_MS, worker="dies")
        rig.broker.advance(LEASE_MS * 2)
        rig.broker.queue.maintain(lease_ms=LEASE_MS)


def test_a_stop_gives_back_a_suspect_that_a_thread_of_the_worker_still_runs(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    worker = faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    broker = broker_of(faulty)
    make_suspect(faulty, "a")
    broker.until(lambda: faulty.see("a").state is State.RUNNING)
    worker.stop()
    broker.until(lambda: faulty.see("a").state is State.READY)
    held.go.set()


def test_a_worker_that_could_not_renew_keeps_what_nobody_took(faulty: Rig, held: Held) -> None:
    faulty.send("a")
    worker = faulty.start(make_handler(lambda message: held(message)))
    assert held.started.wait(PATIENCE_S)
    (lease,), broker = worker._leases.held(), broker_of(faulty)
    broker.stall(until=lambda: not lease.is_held())
    broker.until(lease.is_held)
    held.go.set()
    faulty.until_gone("a")
    assert (broker.counts().totals["finished"], broker.counts().totals["reclaimed"]) == (1, 0)


@pytest.mark.parametrize("ends", ["raises", "returns", "is cancelled"])
def test_a_handler_that_stops_since_its_lease_could_not_be_renewed_is_charged_nothing(
    faulty: Rig, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    started = threading.Event()
    message_of: list[Message[Any]] = []

    def handler(message: Message[Any]) -> None:
        message_of.append(message)
        started.set()
        while len(message_of) == 1 and (ends == "raises" or message.is_held()):
            message.ensure_held()
            time.sleep(0.001)

    async def ahandler(message: Message[Any]) -> None:
        message_of.append(message)
        started.set()
        while len(message_of) == 1:
            await asyncio.sleep(0.01)

    faulty.send("a")
    worker = faulty.start(make_handler(ahandler if ends == "is cancelled" else handler))
    assert started.wait(PATIENCE_S)
    broker = broker_of(faulty)
    (lease,) = worker._leases.held()
    broker.stall(until=lambda: lease.abandoned)
    broker.until(lambda: worker.settler.counts[SettleAction.INTERRUPT] == 1)
    broker.advance(LEASE_MS * 12)
    faulty.until_gone("a")
    assert [message.attempt for message in message_of] == [1, 1]
    assert broker.crashes == 0
    assert "Message 'a' (k): its lease could not be renewed in time, and its handler was" in caplog.text


def test_an_async_handler_that_lost_its_lease_is_cancelled(faulty: Rig) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def handler(message: Message[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    faulty.send("a")
    faulty.start(make_handler(handler))
    assert started.wait(PATIENCE_S)
    broker_of(faulty).away = True
    assert cancelled.wait(PATIENCE_S)


@pytest.mark.usefixtures("known_as_fast")
def test_what_waits_in_a_buffer_while_its_lease_is_lost_does_not_start(faulty: Rig, gate: threading.Event) -> None:
    got: list[str] = []

    def handler(message: Message[Any]) -> None:
        got.append(message.id)
        if message.id == "a-slow":
            gate.wait(PATIENCE_S)

    faulty.send(*(f"fast-{n:02}" for n in range(20)))
    worker = faulty.start(make_handler(handler), threads=1)
    faulty.broker.until(lambda: faulty.broker.queue.counts().totals["finished"] == 20)
    faulty.send_together("a-slow", "b")
    faulty.broker.until(lambda: faulty.see("b").state is State.RUNNING)
    with faulty.broker._changed:  # no renewal comes between
        faulty.broker.advance(LEASE_MS * 2)
        faulty.broker.queue.maintain(lease_ms=LEASE_MS)
        claims = faulty.broker.queue.claim([ClaimRequest("default", "k", 9)], lease_ms=60_000, worker="other")
    assert {claimed.id for claimed in claims.messages} == {"a-slow", "b"}
    faulty.broker.until(lambda: not worker._leases.held())
    gate.set()
    faulty.send("c")
    faulty.until_gone("c")  # by the same slot, after what waited before it
    assert "b" not in got


def test_the_threads_of_leases_outlive_a_stop_of_a_handler_that_raises(faulty: Rig) -> None:
    stopped = threading.Event()

    def cancel() -> None:
        stopped.set()
        raise RuntimeError("Event loop is closed")

    faulty.send("a", "b")
    faulty.broker.advance(1)
    claims = faulty.broker.queue.claim([ClaimRequest("default", "k", 2)], lease_ms=LEASE_MS, worker="w")
    handler = make_handler(lambda message: None)
    ending, lasting = (
        Lease(claimed, handler, 0.0, until, 0.0)
        for claimed, until in zip(claims.messages, (0.0, math.inf), strict=True)
    )
    ending.cancel = cancel
    leases = Leases(faulty.broker, LEASE_MS, OutageLog())
    leases.start()
    leases.add([ending, lasting])
    assert stopped.wait(PATIENCE_S)
    lasting.held_until = 0.0
    lost = threading.Event()
    lasting.cancel = lost.set
    assert lost.wait(PATIENCE_S), "the thread that gives up has ended"
    leases.close(PATIENCE_S)
