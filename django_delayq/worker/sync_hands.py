"""Threads that run sync handlers: each takes a lane, works through its run of leases, and comes back for the next.

What costs at each message is fought here: no future, no lock, no thread hop; `deque.popleft` and `append` are atomic.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import monotonic

from django_delayq.brokers.base import Settlement
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import RUN_S, Lane, Lease
from django_delayq.worker.leases import Leases
from django_delayq.worker.settling import Settling

_logger = logging.getLogger("django_delayq")


class SyncHands:
    """At most `most` threads for all lanes, started when they are needed, round robin over lanes that have work.

    `make_run` gives each thread its own way to run a message: in the thread itself, or in a child process of its own.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        most: int,
        make_run: Callable[[], AbstractContextManager[Run]],
        leases: Leases,
        settling: Settling,
        wake: Callable[[], None],
    ) -> None:
        self.lanes = lanes
        self._most = most
        self._make_run = make_run
        self._leases = leases
        self._settling = settling
        self._wake = wake
        self._changed = threading.Condition()
        self._ready: deque[Lane] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many hands are in a lane."""
        return len(self._threads) - self._idle

    def want(self, lane: Lane) -> int:
        """How many messages to claim now for a lane."""
        with self._changed:
            lane.unmet = True  # until the claim has answered: a hand that frees meanwhile asks for another
            return lane.want(self._most - self.running)

    def offer(self, lane: Lane) -> None:
        """Tell that leases were put into a lane."""
        with self._changed:
            self._line_up(lane)

    def close(self) -> None:
        """End each thread as soon as it is idle."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _line_up(self, lane: Lane) -> None:
        if lane.leases and lane.active < lane.concurrency and lane not in self._ready:
            self._ready.append(lane)
            self._call_hand()

    def _call_hand(self) -> None:
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self._most and not self._closed:
            thread = threading.Thread(target=self._serve, name=f"delayq-hand-{len(self._threads) + 1}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        with self._make_run() as run:
            while (lane := self._take_lane()) is not None:
                started_at = monotonic()
                count = self._work(lane, run)
                self._leave(lane, count, monotonic() - started_at)

    def _take_lane(self) -> Lane | None:
        with self._changed:
            while not self._closed:
                while self._ready:
                    lane = self._ready.popleft()
                    if lane.leases and lane.active < lane.concurrency:
                        lane.active += 1
                        self._line_up(lane)  # calls the next hand, if there is more than one can do
                        return lane
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return None

    def _work(self, lane: Lane, run: Run) -> int:
        leases = lane.leases
        settle = self._settling.add
        now = monotonic()
        until = now + RUN_S
        count = 0
        while now < until:
            try:
                lease = leases.popleft()
            except IndexError:
                break
            if len(leases) <= lane.low:
                lane.low = -1
                self._wake()
            if lease.lost or lease.held_until <= now:
                continue  # another worker's by now
            lease.started_at = now
            settlement = _run_guarded(run, lease)
            now = monotonic()
            count += 1
            if settlement is None:
                self._leases.remove([lease])
            else:
                settle(lease, settlement, urgent=now - lease.started_at >= RUN_S)
        return count

    def _leave(self, lane: Lane, count: int, seconds: float) -> None:
        with self._changed:
            lane.active -= 1
            if count:
                lane.note_run(count, seconds)
            self._line_up(lane)
        if lane.unmet:
            self._wake()


def _run_guarded(run: Run, lease: Lease) -> Settlement | None:
    try:
        return run(lease)
    except BaseException:  # what a handler raises is caught where it runs; this is for the code around it
        _logger.exception("Message %r is left to lapse.", lease.claimed.id, extra={"id": lease.claimed.id})
        return None
