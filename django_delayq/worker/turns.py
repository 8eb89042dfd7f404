"""Take batches for child processes from the buffers of an executor, and end what is in them."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from django_delayq.core.retry import is_at_most_once
from django_delayq.worker.executors.base import LeaseTaker, Run
from django_delayq.worker.executors.threads import ThreadExecutor
from django_delayq.worker.leases import Leases
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.settler import Settler

Work = Callable[[PrefetchBuffer], tuple[int, float]]
"""A thread's turn in a buffer: takes leases, runs their messages, ends them. Returns how many, and for how long."""

MOST_BYTES = 128 * 1024
"""How much data a batch of several messages has at most."""


class Turns(LeaseTaker):
    """Takes batches of leases from the buffers of an executor, and puts back those that were not started."""

    take = LeaseTaker._next
    end = LeaseTaker._end

    def __init__(
        self,
        leases: Leases,
        settler: Settler,
        wake: Callable[[], None],
        offer: Callable[[PrefetchBuffer], None],
        may_stay: Callable[[PrefetchBuffer], bool],
    ) -> None:
        super().__init__(leases, settler, wake)
        self._offer = offer
        self.may_stay = may_stay
        """Returns whether no other lane waits for a hand that is in this one."""
        self._stopping = threading.Event()

    def take_batch(self, buffer: PrefetchBuffer, most: int, *, is_alone: bool = True) -> list[Lease]:
        """Return up to `most` leases, of little data in all, for a hand that works through them in this order.

        An at-most-once message is alone, so that whatever happens to another message, it surely was not started beside
        it.
        """
        batch: list[Lease] = []
        size = 0 if is_alone else MOST_BYTES // 2  # a child at work may not read: it is told what fits without that
        while len(batch) < most and (lease := self.take(buffer)) is not None:
            size += len(lease.claimed.body)
            is_once = is_at_most_once(lease.claimed.header, buffer.handler)
            if (batch or not is_alone) and (is_once or size > MOST_BYTES):
                buffer.leases.appendleft(lease)
                break
            batch.append(lease)
            if is_once:
                break
        return batch

    def release(self, leases: Sequence[Lease]) -> None:
        """Give back the leases, which can't be run here."""
        self._settler.release(list(leases))
        for lease in leases:
            lease.ended = True

    def put_back(self, buffer: PrefetchBuffer, leases: Sequence[Lease]) -> None:
        """Let other hands run the leases that this one took and did not start; a worker that stops gives them back."""
        if self._stopping.is_set():
            self.release(leases)
        else:
            buffer.leases.extendleft(reversed(leases))
            self._offer(buffer)

    def rest(self, seconds: float) -> None:
        """Let the hand take nothing for a while, unless the worker stops."""
        self._stopping.wait(seconds)

    def stop(self) -> None:
        """From now on, give back what is put back, and let no hand rest."""
        self._stopping.set()


class BatchExecutor(ThreadExecutor):
    """Threads that each have a child process, to which they hand batches."""

    def __init__(
        self,
        buffers: Sequence[PrefetchBuffer],
        slots: int,
        make_work: Callable[[Turns], AbstractContextManager[Work]],
        leases: Leases,
        settler: Settler,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(buffers, slots, nullcontext, leases, settler, wake)  # type: ignore[arg-type]
        self._turns = Turns(leases, settler, wake, self.offer, self._may_stay)
        self._make_work = make_work
        self._works = threading.local()

    def stop(self) -> None:
        """Start no more leases that a thread took and puts back."""
        self._turns.stop()

    def _serve(self) -> None:
        with self._make_work(self._turns) as self._works.work:
            super()._serve()

    def _work(self, buffer: PrefetchBuffer, run: Run) -> tuple[int, float]:
        work: Work = self._works.work
        return work(buffer)

    def _may_stay(self, buffer: PrefetchBuffer) -> bool:
        with self._changed:
            return all(ready is buffer for ready in self._ready)
