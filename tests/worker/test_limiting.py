"""Limits over all workers: what may not start yet goes back, uses no attempt and holds up nothing else."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_delayq import BrokerUnavailable, Message
from django_delayq.brokers.base import (
    NO_PROGRESS,
    CancelRequest,
    Claimed,
    LeaseId,
    PermitRequest,
    Throttled,
)
from django_delayq.core.limits import LONGEST_WAIT_MS, Limits
from django_delayq.core.message import State
from django_delayq.worker import leases, limiter, maintenance, starts as starts_of_values
from django_delayq.worker.leases import Block, Lease, Leases
from django_delayq.worker.limiter import Limiter
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.options import served_queues
from django_delayq.worker.prefetch import PrefetchBuffer
from django_delayq.worker.settler import Settler
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, WatchedLimiter, make_handler


@dataclass
class Clock:
    """The monotonic clock of what limits and leases do, which a test moves."""

    now: float


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(time.monotonic())
    for module in (leases, limiter, starts_of_values):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


ONE = Limits(max_concurrency=1)
ONE_EACH = Limits(max_concurrency=1, concurrency_key="account:{account}")


class Counting:
    """A handler that counts how many run at once, of each account."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[object, int] = {}
        self.most = 0
        self.attempts: set[int] = set()

    def run(self, message: Message[Any]) -> None:
        account = message.data and message.data["account"]
        with self._lock:
            self._running[account] = self._running.get(account, 0) + 1
            self.most = max(self.most, self._running[account])
            self.attempts.add(message.attempt)
        threading.Event().wait(0.005)  # long enough for another to start beside it
        with self._lock:
            self._running[account] -= 1


@pytest.mark.parametrize("limits", [ONE, ONE_EACH], ids=["key", "value"])
def test_no_more_run_at_once_over_all_workers_and_all_run(rig: Rig, limits: Limits) -> None:
    counting = Counting()
    ids = [f"m{n}" for n in range(12)]
    rig.send(*ids, data={"account": 7})
    handlers = [make_handler(counting.run, limits=limits) for _ in range(3)]
    for handler in handlers:
        rig.start(handler)
    rig.until_gone(*ids)
    assert counting.most == 1
    assert counting.attempts == {1}
    assert rig.broker.queue.counts().totals["finished"] == 12


def test_one_worker_claims_nothing_that_would_find_no_permit(rig: Rig) -> None:
    ids = [f"m{n}" for n in range(20)]
    rig.send(*ids)
    rig.start(make_handler(lambda message: None, limits=ONE))
    rig.until_gone(*ids)
    assert rig.broker.queue.counts().totals["released"] == 0


def test_fast_messages_far_from_their_limit_ask_together(rig: Rig) -> None:
    ids = [f"m{n}" for n in range(200)]
    rig.send(*ids)
    rig.start(make_handler(lambda message: None, limits=Limits(max_concurrency=1_000)), threads=1)
    rig.until_gone(*ids)
    assert rig.broker.limiter.acquires < 100


class SlowToGiveBack(WatchedLimiter):
    """A limiter that is slow to take permits back."""

    def release(self, asks: Sequence[PermitRequest]) -> None:
        time.sleep(0.01)
        super().release(asks)


def test_nothing_is_claimed_for_a_permit_that_is_still_being_given_back() -> None:
    rig = Rig(limiter_class=SlowToGiveBack)
    ids = [f"m{n}" for n in range(20)]
    rig.send(*ids)
    rig.drain(make_handler(lambda message: None, limits=ONE))
    assert rig.broker.queue.counts().totals["finished"] == 20
    assert rig.broker.queue.counts().totals["released"] == 0


def hold(rig: Rig, gate: threading.Event, limits: Limits) -> None:
    """Have the only permit held until the gate is open, by a worker that serves another key, too."""
    held = threading.Event()

    def handle(message: Message[Any]) -> None:
        if message.id == "held":
            held.set()
            gate.wait(PATIENCE_S)

    rig.send("held", data={"account": 1})
    rig.start(make_handler(handle, limits=limits), make_handler(lambda message: None, "other"))
    assert held.wait(PATIENCE_S)


def test_what_is_refused_is_due_later_and_blocks_no_other_value(rig: Rig, gate: threading.Event) -> None:
    hold(rig, gate, ONE_EACH)
    rig.send("same", data={"account": 1})
    rig.send("b", "c", "d", data={"account": 2})
    rig.until_gone("b", "c", "d")
    rig.broker.until(lambda: rig.broker.queue.counts().totals["released"] > 0)
    info = rig.see("same")
    assert (info.failures, info.crashes) == (0, 0)
    gate.set()
    rig.until_gone("same", "held")


def test_a_key_at_its_limit_blocks_no_other_key(rig: Rig, gate: threading.Event) -> None:
    hold(rig, gate, ONE)
    rig.send(*(f"m{n}" for n in range(5)))
    rig.send("other", key="other")
    rig.until_gone("other")
    assert rig.see("m4").state in (State.READY, State.PENDING)
    gate.set()
    rig.until_gone(*(f"m{n}" for n in range(5)))


def test_starts_are_as_far_apart_as_the_rate_says(rig: Rig) -> None:
    starts: list[int] = []
    handlers = [
        make_handler(lambda message: starts.append(message.started_ms), limits=Limits(interval_us=60_000_000))
        for _ in range(2)
    ]
    rig.send("a", "b", "c")
    for handler in handlers:
        rig.start(handler)
    for count in (1, 2):
        rig.broker.until(lambda count=count: rig.broker.queue.counts().totals["finished"] == count)  # type: ignore[misc]
        rig.broker.advance(60_000)
    rig.until_gone("a", "b", "c")
    assert len(starts) == 3
    assert all(b - a >= 60_000 for a, b in pairwise(starts))


def test_a_permit_is_held_for_as_long_as_its_handler_runs(gate: threading.Event) -> None:
    rig = Rig(lease_ms=600)
    hold(rig, gate, ONE)
    rig.send("next")
    for _ in range(4):  # renewals, each for a lease
        renewals = rig.broker.limiter.renewals
        rig.broker.until(lambda renewals=renewals: rig.broker.limiter.renewals > renewals)  # type: ignore[misc]
        rig.broker.advance(150)
    assert rig.broker.limiter.acquire([PermitRequest("k", "", 99, 1)], lease_ms=600) != [None]
    gate.set()
    rig.until_gone("held", "next")
    rig.stop()


def test_what_runs_counts_also_where_the_broker_has_forgotten_its_permit(gate: threading.Event) -> None:
    rig = Rig(lease_ms=600)
    hold(rig, gate, ONE)
    tokens = list(rig.broker._limits._permits["k", ""].ends)
    rig.broker.limiter.release([PermitRequest("k", "", token, 1) for token in tokens])
    assert rig.broker.limiter.acquire([PermitRequest("k", "", 99, 1)], lease_ms=600_000) == [None]
    renewals = rig.broker.limiter.renewals
    rig.broker.until(lambda: rig.broker.limiter.renewals > renewals)
    assert rig.broker.limiter.acquire([PermitRequest("k", "", 98, 2)], lease_ms=600) != [None]
    gate.set()
    rig.until_gone("held")
    rig.stop()


class LimitsOfOneKeyAway(WatchedLimiter):
    """The permits of the key "a" can be neither renewed nor released while `broken`."""

    broken = False
    tries = 0

    def renew(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> None:
        self._fail(asks)
        super().renew(asks, lease_ms=lease_ms)

    def release(self, asks: Sequence[PermitRequest]) -> None:
        self._fail(asks)
        super().release(asks)
        self._tell()

    def _fail(self, asks: Sequence[PermitRequest]) -> None:
        if self.broken and any(ask.key == "a" for ask in asks):
            self.tries += 1
            self._tell()
            raise BrokerUnavailable("The limits of 'a' are away.")


class HeldLeases(WatchedBroker):
    """A broker that renews each lease."""

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        return [True] * len(leases)


def _lease(rig: Rig, key: str, token: int = 1) -> Lease:
    """Return a lease with a permit."""
    lease = Lease(Claimed(key, 1, 0, None, b""), make_handler(lambda message: None, key), 0.0, math.inf, 0.0)
    lease.permit_request = PermitRequest(key, "", token, 9)
    rig.broker.limiter.acquire([lease.permit_request], lease_ms=600_000)
    return lease


def test_permits_that_cannot_be_renewed_keep_no_others_from_it_and_are_tried_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_delayq")
    lease_ms = 9_000  # a renewal each 3 s
    broker = (rig := Rig(lease_ms, HeldLeases, LimitsOfOneKeyAway)).broker
    assert isinstance(broker.limiter, LimitsOfOneKeyAway)
    broker.limiter.broken = True
    held = Leases(rig.broker, lease_ms, OutageLog())
    held.add(_lease(rig, key) for key in "ab")
    held.start()
    broker.until(lambda: broker.limiter.renewals)
    limiter = broker.limiter
    broker.until(lambda: limiter.tries > PATIENCE_S / 3 + 2)
    assert [line for line in caplog.messages if "Trying again" in line] == [
        "The limits of 'a' are away. Trying again until it works."
    ]
    broker.limiter.broken = False
    ends = broker._limits._permits["a", ""].ends
    before = dict(ends)
    broker.until(lambda: ends != before)
    held.close(PATIENCE_S)
    assert "The broker is back." in caplog.messages


def test_a_permit_that_cannot_be_released_is_released_soon_after() -> None:
    broker = (rig := Rig(600_000, limiter_class=LimitsOfOneKeyAway)).broker
    assert isinstance(broker.limiter, LimitsOfOneKeyAway)
    held = Leases(rig.broker, 3_000, OutageLog())
    held.start()
    first, second = _lease(rig, "a"), _lease(rig, "a", token=2)
    broker.limiter.broken = True
    assert held.release_permits([first])
    tries = broker.limiter.tries
    assert held.release_permits([second])
    assert broker.limiter.tries == tries, "whoever settles tried again"
    broker.limiter.broken = False
    broker.until(lambda: not broker._limits._permits["a", ""].ends)
    held.close(PATIENCE_S)


class LateRenewals(WatchedLimiter):
    """Whoever has a permit gives it back while its renewal is on the way."""

    def __init__(self, clock_ms: Callable[[], float], tell: Callable[[], None]) -> None:
        super().__init__(clock_ms, tell)
        self.asked, self.given_back = threading.Event(), threading.Event()

    def renew(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> None:
        self.asked.set()
        assert self.given_back.wait(PATIENCE_S)
        super().renew(asks, lease_ms=lease_ms)

    def release(self, asks: Sequence[PermitRequest]) -> None:
        super().release(asks)
        self.given_back.set()
        self._tell()


def test_a_permit_that_is_given_back_while_it_is_renewed_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LONGEST_PAUSE_S", 0.01)
    broker = (rig := Rig(lease_ms=600_000, limiter_class=LateRenewals)).broker
    assert isinstance(broker.limiter, LateRenewals)
    hold(rig, broker.limiter.asked, ONE)
    broker.until(lambda: broker.limiter.renewals)
    broker.until(lambda: not broker._limits._permits["k", ""].ends)
    rig.stop()


class LostLeases(WatchedBroker):
    """A broker that says of each lease that another worker has it, once the leases are lost."""

    are_lost = False

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        return [False] * len(leases) if self.are_lost else super().renew(leases, lease_ms, progress)


def test_the_permit_of_a_lost_lease_is_held_until_its_handler_ends_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    monkeypatch.setattr(leases, "LONGEST_PAUSE_S", 0.01)
    broker = (rig := Rig(600_000, LostLeases)).broker
    hold(rig, gate, ONE)
    ((worker, _),) = rig._running
    monkeypatch.setattr(LostLeases, "are_lost", True)
    broker.until(lambda: not worker._leases.held())
    permits = broker._limits._permits["k", ""]
    assert len(permits.ends) == 1
    gate.set()
    broker.until(lambda: not permits.ends)
    rig.stop()


def test_an_interrupted_handler_leaves_its_permit_to_others_at_once(rig: Rig, gate: threading.Event) -> None:
    hold(rig, gate, ONE)
    worker, thread = rig._running.pop()
    worker.hurry()
    worker.stop()
    thread.join(PATIENCE_S)
    assert rig.broker.limiter.acquire([PermitRequest("k", "", 99, 1)], lease_ms=600) == [None]


def test_data_without_the_field_is_buried_with_the_reason(rig: Rig) -> None:
    rig.send("a", data={"acount": 1})
    rig.send("b", data=7)
    rig.drain(make_handler(lambda message: None, limits=ONE_EACH))
    for id in ("a", "b"):
        assert "concurrency_key='account:{account}' names 'account', which this data doesn't have" in rig.see(id).error


class NobodyToAsk(WatchedLimiter):
    """Its limits can't be asked for until it is mended."""

    broken = True

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        if self.broken:
            raise BrokerUnavailable("The limits are away.")
        return super().acquire(asks, lease_ms=lease_ms)


class SlowToFail(WatchedLimiter):
    """Its limits can't be asked for, and that takes long to find out."""

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        time.sleep(0.9)
        raise BrokerUnavailable("The limits are locked.")


class ForgedLine(WatchedLimiter):
    """Somebody else has written into the line that the first request must wait for long."""

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        answers = super().acquire(asks, lease_ms=lease_ms)
        if self.acquires > 1:
            return answers
        self.release(asks)
        return [Throttled(LONGEST_WAIT_MS, of_key=True) for _ in asks]


def test_a_forged_line_holds_up_what_has_not_asked_for_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "CLOSED_MS", 20)
    rig = Rig(limiter_class=ForgedLine)
    rig.send("first")
    rig.start(make_handler(lambda message: None, limits=ONE))
    rig.broker.until(lambda: rig.broker.queue.counts().totals["released"] == 1)
    rig.send("next")
    rig.until_gone("next")
    assert rig.see("first").state is State.PENDING
    rig.stop()


def test_a_queue_keeps_no_slots_for_what_a_limit_does_not_let_start(rig: Rig) -> None:
    hourly = Limits(interval_us=3_600_000_000)
    handlers = [
        make_handler(lambda message: None, key, limits=limits) for key, limits in (("hourly", hourly), ("other", None))
    ]
    rig.send("a", "b", "c", key="hourly", queue="critical")
    worker = rig.start(*handlers, queues=served_queues("critical,bulk"), threads=1, max_threads=1)
    rig.broker.until(lambda: rig.broker.limiter.acquires >= 2)
    rig.send("other", key="other", queue="bulk")
    rig.until_gone("other")
    limiter, (buffer, _) = worker._dispatcher._limiter, worker._dispatcher._buffers["hourly"]
    assert limiter is not None
    assert limiter.is_closed(buffer)
    rig.broker.until(lambda: ("critical", "hourly") not in worker._dispatcher._backlog.pairs)


def test_while_limits_cannot_be_asked_for_their_keys_wait_and_others_run() -> None:
    broker = (rig := Rig(limiter_class=NobodyToAsk)).broker
    assert isinstance(broker.limiter, NobodyToAsk)
    rig.send("limited")
    rig.start(make_handler(lambda message: None, limits=ONE), make_handler(lambda message: None, "free"))
    broker.until(lambda: broker.counts().totals["released"])
    rig.send("free", key="free")
    rig.until_gone("free")
    assert rig.see("limited").failures == 0
    broker.limiter.broken = False
    rig.until_gone("limited")
    rig.stop()


def test_while_limits_are_asked_for_in_vain_most_of_the_time_is_left_to_others() -> None:
    broker = (rig := Rig(limiter_class=SlowToFail)).broker
    sent_ms = broker.counts().now_ms
    rig.send("limited")
    rig.start(make_handler(lambda message: None, limits=ONE))
    broker.until(lambda: broker.counts().totals["released"])
    assert rig.see("limited").due_ms >= sent_ms + 5 * 900
    rig.stop()


def test_a_drain_runs_also_what_has_to_wait_for_its_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    settle = Settler._settle_ended

    def settle_late(settler: Settler) -> None:
        time.sleep(0.02)
        settle(settler)

    monkeypatch.setattr(Settler, "_settle_ended", settle_late)
    rig.send("a", "b", "c")
    rig.drain(make_handler(lambda message: got.append(message.id), limits=Limits(interval_us=50_000)))
    assert sorted(got) == ["a", "b", "c"]


def test_a_drain_waits_for_a_permit_that_another_holds(rig: Rig) -> None:
    rig.broker.limiter.acquire([PermitRequest("k", "", 99, 1)], lease_ms=100)
    got: list[str] = []
    rig.send("a")
    rig.drain(make_handler(lambda message: got.append(message.id), limits=ONE))
    assert got == ["a"]


def test_a_backlog_that_waits_for_its_turn_is_not_claimed_over_and_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EVERY_S", 0.01)  # each is a turn of the loop
    rig.send(*(f"m{n}" for n in range(50)))
    rig.start(make_handler(lambda message: None, limits=Limits(interval_us=3_600_000_000)), threads=4)
    rig.broker.until(lambda: rig.broker.upkeeps > 20)
    totals = rig.broker.queue.counts().totals
    assert (totals["finished"], totals["released"]) == (1, 3)


def test_an_async_handler_has_the_same_limits(rig: Rig) -> None:
    running, most = [0], [0]

    async def handle(message: Message[Any]) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.002)
        running[0] -= 1

    rig.send(*(f"m{n}" for n in range(6)), data={"account": 1})
    rig.start(make_handler(handle, limits=ONE_EACH))
    rig.until_gone(*(f"m{n}" for n in range(6)))
    assert most == [1]


def test_a_wait_for_a_limit_that_ends_while_it_is_read_ends_no_worker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = cycle([time.monotonic(), math.inf])
    monkeypatch.setattr(Limiter, "next_at", property(lambda limiter: next(read)))
    rig.start(make_handler(lambda message: None, limits=ONE))
    rig.send("a")
    rig.until_gone("a")
    rig.send("b")
    rig.until_gone("b")
    rig.stop()


ROOMY = Limits(max_concurrency=100)


def test_messages_share_the_permits_of_their_worker(rig: Rig) -> None:
    ids = [f"m{n}" for n in range(600)]
    rig.send(*ids)
    rig.start(make_handler(lambda message: None, limits=ROOMY), threads=2, max_threads=2)
    most = 0

    def are_gone() -> bool:
        nonlocal most
        most = max(most, len(rig.broker._limits._permits["k", ""].ends))
        return rig.broker.queue.counts().totals["finished"] == len(ids)

    rig.broker.until(are_gone)
    assert 0 < most <= 4, "two for each of two blocks"


def test_permits_that_a_worker_does_not_use_are_free_soon_also_while_it_runs_on(rig: Rig) -> None:
    rig.send("a")
    rig.start(make_handler(lambda message: None, limits=ROOMY))
    rig.until_gone("a")
    rig.broker.until(lambda: not rig.broker._limits._permits["k", ""].ends)


def test_a_worker_that_stops_keeps_no_permits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "KEPT_S", PATIENCE_S)
    rig.send("a", data={"account": 1})
    rig.drain(make_handler(lambda message: None, limits=Limits(max_concurrency=100, concurrency_key="{account}")))
    rig.stop()
    assert not any(permits.ends for permits in rig.broker._limits._permits.values())


@pytest.mark.parametrize("key", [None, "account:{account}"])
def test_workers_whose_permits_just_suffice_for_one_share_them_and_all_run(rig: Rig, key: str | None) -> None:
    counting = Counting()
    ids = [f"m{n}" for n in range(120)]
    rig.send(*ids, data={"account": 7})
    for _ in range(3):
        limits = Limits(max_concurrency=4, concurrency_key=key)
        rig.start(make_handler(counting.run, limits=limits), threads=2, max_threads=2)
    rig.until_gone(*ids)
    assert counting.most <= 4
    assert counting.attempts == {1}


class Slots:
    """The leases of a buffer of some slots, as a worker's limiter lets them start and its settler ends them."""

    def __init__(self, rig: Rig, limits: Limits, slots: int = 2, lease_ms: int = 600_000) -> None:
        self.leases = Leases(rig.broker, lease_ms, OutageLog())
        self.limiter = Limiter(rig.broker, self.leases, lease_ms, OutageLog())
        self.buffer = PrefetchBuffer(make_handler(lambda message: None, limits=limits), [], slots)
        self.admitted: list[Lease] = []

    def admit(self, count: int, *, account: int = 1) -> None:
        body = b'{"account":%d}' % account
        new = [Lease(Claimed("m", 1, 0, None, body), self.buffer.handler, 0.0, math.inf, 0.0) for _ in range(count)]
        self.leases.add(new)
        refused = self.limiter.admit(self.buffer, new)
        self.leases.remove(refused)
        self.admitted += [lease for lease in new if lease not in refused]

    def end(self, count: int) -> None:
        ended, self.admitted = self.admitted[:count], self.admitted[count:]
        self.leases.release_permits(ended)
        self.leases.remove(ended)

    @property
    def most_running(self) -> int:
        return min(len(self.admitted), 2)


def test_nobody_waits_for_the_end_of_a_message_that_holds_no_permit(rig: Rig) -> None:
    rated, permitted = (Slots(rig, limits) for limits in (Limits(interval_us=100_000, burst=100), ONE))
    for slots in (rated, permitted):
        slots.admit(1)
    assert [lease.holds_up for lease in (*rated.admitted, *permitted.admitted)] == [False, True]


def test_nobody_waits_for_the_end_of_a_message_whose_permit_is_kept_for_the_next(rig: Rig) -> None:
    slots = Slots(rig, Limits(max_concurrency=10, concurrency_key="{account}"))
    slots.admit(1)
    assert not slots.admitted[0].holds_up
    slots.admit(1)
    assert all(lease.holds_up for lease in slots.admitted), "a second permit is not kept"


def test_messages_of_one_claim_that_exceed_their_rate_are_told_one_turn_after_the_other(rig: Rig) -> None:
    slots = Slots(rig, Limits(interval_us=100_000, burst=2, rate_key="{account}"))
    slots.admit(5)
    assert len(slots.admitted) == 2
    first_ms, *later_ms = slots.limiter._refused.values()
    assert 0 < first_ms <= 100
    assert later_ms == [first_ms + 100, first_ms + 200]


@pytest.mark.parametrize(("pause_s", "asked"), [(0.35, [1, 2]), (0.45, [1, 1, 1])])
def test_the_start_of_a_value_that_soon_comes_again_is_taken_with_the_one_before_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock, pause_s: float, asked: list[int]
) -> None:
    starts = list[int]()
    slots = Slots(rig, Limits(interval_us=1_000, burst=1_000, rate_key="{account}"))  # used within half a second
    acquire = rig.broker.limiter.acquire

    def count(requests: Sequence[PermitRequest], *, lease_ms: int) -> Sequence[Throttled | None]:
        starts.extend(request.starts for request in requests)
        return acquire(requests, lease_ms=lease_ms)

    monkeypatch.setattr(rig.broker.limiter, "acquire", count)
    for _ in range(3):
        slots.admit(1)
        clock.now += pause_s
    assert starts == asked


def test_messages_are_claimed_ahead_under_a_rate_without_a_burst_until_one_is_refused(rig: Rig, clock: Clock) -> None:
    slots = Slots(rig, Limits(interval_us=600_000, rate_key="{account}"))
    buffer = slots.buffer
    assert buffer.is_idle_only
    slots.admit(1, account=1)
    assert math.isinf(slots.admitted[-1].start_until), "it must start at once"
    assert not buffer.is_idle_only
    slots.admit(1, account=2)
    assert slots.admitted[-1].start_until == clock.now + 0.1
    slots.admit(1, account=2)
    assert len(slots.admitted) == 2
    assert buffer.is_idle_only
    clock.now += 4.9
    slots.admit(1, account=3)
    assert buffer.is_idle_only
    clock.now += 0.2
    slots.admit(1, account=4)
    assert not buffer.is_idle_only


def test_messages_with_both_limits_share_permits_until_one_is_refused(rig: Rig, clock: Clock) -> None:
    key = "{account}"
    slots = Slots(rig, Limits(max_concurrency=4, concurrency_key=key, interval_us=600_000, rate_key=key))

    def permits_of(account: int) -> int:
        return len(rig.broker._limits._permits["k", str(account)].ends)

    slots.admit(1, account=1)
    assert slots.admitted[0].block is None
    slots.admit(1, account=2)
    slots.end(1)
    assert slots.admitted[0].block is not None
    assert math.isfinite(slots.admitted[0].start_until)
    slots.admit(1, account=2)
    assert len(slots.admitted) == 1, "it is too early"
    assert permits_of(2) == 1, "what may not start keeps no permit"
    slots.admit(1, account=3)
    assert slots.admitted[1].block is None
    slots.end(2)
    assert [permits_of(account) for account in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(interval_us=1_000, rate_key="{account}"),
        Limits(interval_us=600_000),
        Limits(max_concurrency=3, interval_us=600_000, rate_key="{account}"),
    ],
    ids=["many a second", "one for all", "few permits"],
)
def test_nothing_is_claimed_ahead_under_a_rate_that_leaves_no_room_for_it(rig: Rig, limits: Limits) -> None:
    slots = Slots(rig, limits)
    for account in (1, 2):
        slots.admit(1, account=account)
        assert slots.buffer.is_idle_only


def test_a_message_with_both_limits_that_waits_is_used_within_a_part_of_the_burst(rig: Rig, clock: Clock) -> None:
    slots = Slots(rig, Limits(max_concurrency=4, interval_us=100_000, burst=50))
    slots.admit(1)
    (lease,) = slots.admitted
    assert lease.start_until == clock.now + 0.5
    turn_ms = rig.broker._limits._turns_us["k", ""] / 1000 - rig.broker._clock_ms()
    assert turn_ms == pytest.approx(600, abs=50), "it counts from the end of its time"


def test_permits_that_a_worker_keeps_and_does_not_need_are_anothers_within_a_second(rig: Rig, clock: Clock) -> None:
    began_at = clock.now
    keeper, other = (Slots(rig, Limits(max_concurrency=20), slots) for slots in (5, 20))
    keeper.admit(5)
    clock.now += 0.3
    keeper.end(5)
    other.admit(20)
    assert len(other.admitted) == 18, "a tenth is kept"
    while len(other.admitted) < 20:
        clock.now = keeper.limiter.next_at
        assert clock.now <= began_at + 0.3 + 1.0 + leases.LOOK_S
        keeper.limiter.release_unused()
        other.admit(20 - len(other.admitted))


def test_a_value_that_is_in_use_asks_for_a_permit_once_in_ten_seconds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    began_at = clock.now
    slots = Slots(rig, Limits(max_concurrency=20, concurrency_key="{account}"), 1, lease_ms=15_000)
    asked_s: list[int] = []
    acquire = rig.broker.limiter.acquire

    def note(requests: Sequence[PermitRequest], *, lease_ms: int) -> Sequence[Throttled | None]:
        asked_s.append(round(clock.now - began_at))
        return acquire(requests, lease_ms=lease_ms)

    monkeypatch.setattr(rig.broker.limiter, "acquire", note)
    for step in range(1, 111):
        slots.admit(1)
        (end,) = rig.broker._limits._permits["k", "1"].ends.values()
        assert end - rig.broker._clock_ms() >= (slots.admitted[0].held_until - clock.now) * 1000
        slots.end(1)
        clock.now += 0.2
        rig.broker.advance(200)
        slots.limiter.release_unused()
        if step % 25 == 0:
            slots.leases._renew()
    assert asked_s == [0, 10, 20]


def test_a_lease_is_not_held_for_longer_than_the_permit_that_it_shares(rig: Rig, clock: Clock) -> None:
    began_at = clock.now
    slots = Slots(rig, Limits(max_concurrency=20, concurrency_key="{account}"), 1, lease_ms=15_000)
    held_s: list[float] = []
    for _ in range(4):
        slots.admit(1)
        held_s.append(round(slots.admitted[0].held_until - began_at, 3))
        slots.end(1)
        clock.now += 0.9
    assert held_s == [12, 12, 12, 12], "nobody has renewed it"
    clock.now = began_at + 5
    slots.leases._renew()
    slots.admit(1)
    assert slots.admitted[0].held_until == began_at + 5 + 12


def test_a_block_whose_permit_could_not_be_renewed_takes_no_new_leases(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    began_at = clock.now
    slots = Slots(rig, Limits(max_concurrency=20, concurrency_key="{account}"), 1, lease_ms=15_000)

    def refuse(requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        raise BrokerUnavailable("The limits are locked.")

    monkeypatch.setattr(rig.broker.limiter, "renew", refuse)
    while clock.now < began_at + 9:
        slots.admit(1)
        held_s = slots.admitted[0].held_until - clock.now
        assert held_s > 15 * 0.3 - 0.001  # enough for the next renewal
        assert held_s * 1000 <= max(rig.broker._limits._permits["k", "1"].ends.values()) - rig.broker._clock_ms()
        slots.end(1)
        clock.now += 0.5
        rig.broker.advance(500)
        slots.leases._renew()


def test_a_block_takes_new_leases_while_the_permits_of_another_key_cannot_be_renewed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    slots = Slots(rig, Limits(max_concurrency=20, concurrency_key="{account}"), 1, lease_ms=15_000)
    monkeypatch.setattr(rig.broker.queue, "renew", lambda claimed, *_: [True] * len(claimed))
    slots.leases.add([_lease(rig, "away")])
    acquire, renew = rig.broker.limiter.acquire, rig.broker.limiter.renew
    asked: list[float] = []

    def note(requests: Sequence[PermitRequest], *, lease_ms: int) -> Sequence[Throttled | None]:
        asked.append(clock.now)
        return acquire(requests, lease_ms=lease_ms)

    def refuse(requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        if requests[0].key == "away":
            raise BrokerUnavailable("The limits are locked.")
        renew(requests, lease_ms=lease_ms)

    monkeypatch.setattr(rig.broker.limiter, "acquire", note)
    monkeypatch.setattr(rig.broker.limiter, "renew", refuse)
    until = clock.now + 9.5
    while clock.now < until:
        slots.admit(1)
        slots.end(1)
        clock.now += 0.5
        slots.leases._renew()
    assert len(asked) == 1


def _let_another_get(permits: int, rig: Rig, clock: Clock, other: Slots) -> None:
    """Let 1.2 s pass, in which another worker asks for permits until it has all of them."""
    for _ in range(6):
        clock.now += 0.2
        rig.broker.advance(200)
        other.admit(permits - len(other.admitted))
        other.leases._renew()
    assert len(other.admitted) == permits


def test_who_was_frozen_for_longer_than_a_lease_starts_nothing_with_the_permit_that_others_have(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    limits = Limits(max_concurrency=1, concurrency_key="{account}")
    frozen, other = (Slots(rig, limits, 1, lease_ms=1_000) for _ in range(2))
    monkeypatch.setattr(rig.broker.queue, "renew", lambda claimed, *_: [True] * len(claimed))  # not reclaimed yet
    frozen.admit(1)
    _let_another_get(1, rig, clock, other)
    frozen.leases._renew()
    frozen.admit(1)  # claimed ahead, while its first one still runs
    frozen.end(1)
    assert not frozen.admitted


@pytest.mark.parametrize(
    "limits",
    [Limits(max_concurrency=2), Limits(max_concurrency=2, interval_us=1, burst=1_000)],
    ids=["shared permits", "own permits"],
)
def test_who_was_frozen_for_longer_than_a_lease_starts_nothing_that_it_admitted_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, clock: Clock, limits: Limits
) -> None:
    frozen, other = (Slots(rig, limits, 2, lease_ms=1_000) for _ in range(2))
    monkeypatch.setattr(rig.broker.queue, "renew", lambda claimed, *_: [True] * len(claimed))  # not reclaimed yet
    frozen.admit(2)
    runs, waits = frozen.admitted
    runs.started_at = clock.now
    for lease in frozen.admitted:
        lease.held_until = clock.now + frozen.leases.hold_s
    assert waits.may_start(clock.now)
    _let_another_get(2, rig, clock, other)
    frozen.leases._renew()
    assert runs.is_held()
    assert not waits.may_start(clock.now)
    assert not waits.is_held(), "an async one may have left the buffer already"


def test_permits_that_running_handlers_name_to_a_supervisor_are_no_surplus() -> None:
    first, *named = (PermitRequest("k", "", token, 3) for token in (1, 2, 3))
    running = {Lease(Claimed(id, 1, 0, None, b""), make_handler(lambda message: None), 0.0, 1.0, 0.0) for id in "ab"}
    block = Block(0, 0.0, 1.0, 0.0, requests=[first, *named], leases=running, named={each.token for each in named})
    assert block.take_surplus(0.0) == [first]
    assert block.requests == named


def test_permits_of_a_block_can_be_read_while_its_surplus_is_found() -> None:
    """The renewal reads them without the lock: a permit that it misses is not renewed, or even released."""
    requests = [PermitRequest("k", "", token, 3) for token in (1, 2, 3)]

    class Watched(set[int]):
        def __contains__(self, token: object) -> bool:
            seen.append(len(block.requests))
            return super().__contains__(token)

    seen: list[int] = []
    block = Block(0, 0.0, 1.0, 0.0, requests=requests, named=Watched({3}))
    assert len(block.take_surplus(0.0)) == 3
    assert set(seen) == {3}


def test_a_value_that_is_not_in_use_any_more_gives_its_permit_back(rig: Rig, clock: Clock) -> None:
    slots = Slots(rig, Limits(max_concurrency=20, concurrency_key="{account}"), 1)
    for _ in range(20):
        slots.admit(1)
        slots.end(1)
        clock.now += 0.2
        slots.limiter.release_unused()
    assert rig.broker._limits._permits["k", "1"].ends
    clock.now += 1.1
    slots.limiter.release_unused()
    assert not rig.broker._limits._permits["k", "1"].ends


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["admit", "end", "wait"]), st.integers(1, 5)), max_size=40),
    st.sampled_from([1, 2, 3, 4, 30]),
    st.sampled_from([None, "account:{account}"]),
)
def test_whatever_two_workers_do_they_hold_a_permit_for_each_message_that_may_run(
    steps: list[tuple[int, str, int]], most: int, key: str | None
) -> None:
    rig = Rig(600_000)
    workers = [Slots(rig, Limits(max_concurrency=most, concurrency_key=key)) for _ in range(2)]
    for number, step, count in steps:
        worker = workers[number]
        if step == "admit":
            worker.admit(count)
        elif step == "end":
            worker.end(count)
        else:
            for block in worker.leases._blocks:
                block.began_at = block.used_at = 0.0  # as after a while
            worker.limiter._look_at = 0.0
            worker.limiter.release_unused()
        held = sum(len(permits.ends) for permits in rig.broker._limits._permits.values())
        assert sum(worker.most_running for worker in workers) <= held <= most
    for worker in workers:
        worker.end(len(worker.admitted))
        worker.leases.release_all_unused()
    assert not any(permits.ends for permits in rig.broker._limits._permits.values())


def test_a_start_that_was_taken_ahead_is_not_used_too_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[str] = []
    admit = Limiter.admit

    def admit_late(limiter: Limiter, buffer: PrefetchBuffer, new: Sequence[Lease]) -> dict[Lease, int]:
        refused = admit(limiter, buffer, new)
        for lease in new:
            if lease.claimed.id not in late:
                late.append(lease.claimed.id)
                assert math.isfinite(lease.start_until)
                lease.start_until = 0.0
        return refused

    monkeypatch.setattr(Limiter, "admit", admit_late)
    rig.send("a")
    rig.start(make_handler(lambda message: None, limits=Limits(interval_us=100_000, burst=100)))
    rig.until_gone("a")
    assert rig.broker.queue.counts().totals["released"] == 1
