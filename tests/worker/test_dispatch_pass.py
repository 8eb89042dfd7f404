"""What queues that come first leave for those that follow them, in one round of claims."""

import threading
from contextlib import nullcontext

import pytest

from django_delayq.brokers.base import Claimed
from django_delayq.core.limits import Limits
from django_delayq.worker.dispatch_pass import DispatchPass
from django_delayq.worker.executors.threads import ThreadExecutor
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.settler import Settler
from tests.worker.rig import PATIENCE_S, Rig, make_handler


def make_buffer(key: str, concurrency: int, limits: Limits | None = None) -> PrefetchBuffer:
    return PrefetchBuffer(make_handler(lambda message: None, key, limits=limits), [("default", key)], concurrency)


def hands_in(rig: Rig, buffers: dict[PrefetchBuffer, int], gate: threading.Event, most: int) -> ThreadExecutor:
    """Hands of which so many are in each lane until the gate opens."""
    started = threading.Semaphore(0)

    def work(buffer: PrefetchBuffer) -> tuple[int, float]:
        buffer.leases.popleft()
        started.release()
        gate.wait(PATIENCE_S)
        return 0, 0.0

    leases = Leases(rig.broker, 15_000, outage_log := OutageLog())
    settler = Settler(rig.broker, leases, outage_log)
    hands = ThreadExecutor(list(buffers), most, lambda turns: nullcontext(work), leases, settler, lambda: None)
    for buffer, count in buffers.items():
        for _ in range(count):
            buffer.leases.append(Lease(Claimed("", 1, 0, None, b""), buffer, 0.0, float("inf"), 0.0))
            hands.offer(buffer)
            assert started.acquire(timeout=PATIENCE_S)
    return hands


@pytest.mark.parametrize(
    ("concurrency", "limits", "for_hands"),
    [
        (1, None, 2),
        (2, None, 1),
        (3, None, 0),
        (9, None, 0),
        (9, Limits(max_concurrency=2), 1),
        (9, Limits(max_concurrency=2, concurrency_key="{}"), 0),
        (9, Limits(interval_us=1), 0),
    ],
)
def test_what_an_earlier_queue_has_for_a_lane_keeps_all_the_hands_that_the_lane_may_have(
    rig: Rig, gate: threading.Event, concurrency: int, limits: Limits | None, for_hands: int
) -> None:
    early, fast = make_buffer("early", concurrency, limits), make_buffer("fast", 2)
    hands = hands_in(rig, {early: 1, fast: 2}, gate, most=3)
    fast.note_run(100, 0.1)
    early.backlog.add("critical")
    round_ = DispatchPass([(early, hands), (fast, hands)])
    assert round_.wants([(fast, hands)], ["critical"]) == {fast: for_hands * fast.per_hand}
    assert round_.wants([(fast, hands)], ["other"]) == {fast: 2 * fast.per_hand}


def test_hands_that_an_earlier_queue_leaves_free_are_for_later_ones(rig: Rig, gate: threading.Event) -> None:
    early, later = make_buffer("early", 2), make_buffer("later", 2)
    hands = hands_in(rig, {early: 0, later: 0}, gate, most=2)
    early.backlog.add("critical")
    round_ = DispatchPass([(early, hands), (later, hands)])
    for left in (2, 1, 0):
        assert round_.wants([(later, hands)], ["critical"]) == {later: left}
        round_.add(early, hands, "critical", 1, filled=False, left=True, once=False)
