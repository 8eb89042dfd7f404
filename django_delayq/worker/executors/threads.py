"""Threads for sync handlers: each takes a lane, works through some of its leases, and comes back for the next."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import monotonic

from django_delayq.support.logging import logger
from django_delayq.worker.executors.base import Work
from django_delayq.worker.leases import Leases
from django_delayq.worker.prefetch import PrefetchBuffer
from django_delayq.worker.settler import Settler
from django_delayq.worker.turns import Turns


class ThreadExecutor:
    """At most `most` threads for all lanes, started when they are needed, round robin over lanes that have work.

    `make_work` gives each thread its own way to work in a lane: in the thread itself, or in a child process of its own.
    """

    def __init__(
        self,
        buffers: Sequence[PrefetchBuffer],
        most: int,
        make_work: Callable[[Turns], AbstractContextManager[Work]],
        leases: Leases,
        settler: Settler,
        wake: Callable[[], None],
    ) -> None:
        self.buffers = buffers
        self.most = most
        """How many hands there are, including those not started."""
        self._make_work = make_work
        self._turns = Turns(leases, settler, wake, self.offer, self._may_stay)
        self._wake = wake
        self._changed = threading.Condition()
        self._ready: deque[PrefetchBuffer] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0  # hands that wait and were not called
        self._called = 0  # hands on their way to a lane
        self._closed = False

    @property
    def running(self) -> int:
        """Return how many hands are in a lane."""
        return len(self._threads) - self._idle

    @property
    def free(self) -> int:
        """Return how many hands, including those not started, have no message waiting for them."""
        with self._changed:
            return self.most - self.running - max(sum(map(_awaited_hands, self._ready)) - self._called, 0)

    def want(self, buffer: PrefetchBuffer, most: int) -> int:
        """Return how many messages to claim now for a lane, which may have at most `most` hands."""
        with self._changed:
            buffer.unmet = True  # until the claim has answered: a hand that frees meanwhile asks for another
            for_others = sum(_awaited_hands(other) for other in self._ready if other is not buffer)
            free = self.most - self.running + self._called - for_others  # and those on their way to what waits in it
            return buffer.want(max(free, 0) or self._turn_of(buffer), most)

    def _turn_of(self, buffer: PrefetchBuffer) -> int:
        """Return 1 for a lane that has nothing, though all hands are busy, if one comes to it in a moment; else 0.

        Without this, a lane whose hands always find more would keep them until its backlog is gone.
        """
        return int(not buffer.active and not buffer.leases and any(map(self._gets_on, self.buffers)))

    def _gets_on(self, buffer: PrefetchBuffer) -> bool:
        """Return whether a hand leaves a lane in a moment: it moves, or is still on its way to newly claimed leases."""
        if buffer.active:
            return buffer.moves
        return self._called > 0 and buffer in self._ready and buffer.per_hand > 1

    def offer(self, buffer: PrefetchBuffer) -> None:
        """Call hands to a lane into which leases were put."""
        with self._changed:
            self._line_up(buffer)

    def stop(self) -> None:
        """Start no more leases that a hand took and puts back."""
        self._turns.stop()

    def close(self, timeout: float) -> None:
        """End each thread as soon as it is idle. They have `timeout` seconds, in all, to close their connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = monotonic() + timeout
        for thread in self._threads:
            thread.join(max(until - monotonic(), 0))

    def _may_stay(self, buffer: PrefetchBuffer) -> bool:
        with self._changed:
            return all(ready is buffer for ready in self._ready)

    def _line_up(self, buffer: PrefetchBuffer) -> None:
        if buffer.leases and buffer.active < buffer.concurrency:
            if buffer not in self._ready:
                self._ready.append(buffer)
            self._call_hands()

    def _call_hands(self) -> None:
        """Call a hand for each lane that is ready, as far as there are hands."""
        while self._called < len(self._ready) and not self._closed:
            if self._idle:
                self._idle -= 1
                self._changed.notify()
            elif len(self._threads) >= self.most or not self._start_hand():
                return
            self._called += 1

    def _start_hand(self) -> bool:
        thread = threading.Thread(target=self._serve, name=f"delayq-hand-{len(self._threads) + 1}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # tried again at the next offer; meanwhile a hand may free
            logger.error("A thread can't start (%s); trying again. Lower --max-threads or raise the limit.", error)
            return False
        self._threads.append(thread)
        return True

    def _serve(self) -> None:
        with self._changed:
            self._called -= 1
        with self._make_work(self._turns) as work:
            buffer = self._take_lane()
            while buffer is not None:
                buffer = self._leave(buffer, *work(buffer))

    def _take_lane(self) -> PrefetchBuffer | None:
        with self._changed:
            while not self._closed:
                while self._ready:
                    buffer = self._ready.popleft()
                    if buffer.leases and buffer.active < buffer.concurrency:
                        buffer.active += 1
                        self._line_up(buffer)  # calls the next hand, if there is more than one can do
                        return buffer
                self._idle += 1
                if any(buffer.unmet and buffer.active < buffer.concurrency for buffer in self.buffers):
                    self._wake()  # not before it counts as free: then it would be claimed for as if it were not
                self._changed.wait()
                self._called -= 1  # the caller of a hand has stopped counting it as idle
            return None

    def _leave(self, buffer: PrefetchBuffer, count: int, seconds: float) -> PrefetchBuffer | None:
        """Leave a lane, and return the next."""
        with self._changed:
            buffer.active -= 1
            if count:
                buffer.note_run(count, seconds)
            self._line_up(buffer)
            if buffer.unmet and self._ready:
                self._wake()
            return self._take_lane()


def _awaited_hands(buffer: PrefetchBuffer) -> int:
    """Return how many hands the leases that wait in a lane can use."""
    return min(len(buffer.leases), buffer.concurrency - buffer.active)
