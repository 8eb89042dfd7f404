"""An executor of threads for sync handlers: each thread serves one buffer for a time slice, then takes the next."""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import monotonic

from django.db import connections

from django_delayq.brokers.base import Transition
from django_delayq.core.message import Message
from django_delayq.support.logging import logger
from django_delayq.worker import attempt
from django_delayq.worker.attempt import interrupted_settlement
from django_delayq.worker.batches import run_leases
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import guarded
from django_delayq.worker.plan import ExecutorState
from django_delayq.worker.prefetch import TIME_SLICE_S, Executor, PrefetchBuffer, Run
from django_delayq.worker.settler import Settler
from django_delayq.worker.transactions import (
    IDLE_S,
    close_read_only_connections,
    close_stale_connections,
    health_checks_are_on,
)

CHECK_EVERY_S = 1.0
"""How often a thread checks its database connections, in seconds; it also checks after a failure.

A check costs as much as a small handler, so it is not made for each message, except with CONN_HEALTH_CHECKS.
"""

RunBatch = Callable[[Sequence[Lease]], Mapping[Lease, Transition | None]]
"""A function that runs a batch and returns how each lease ends; None leaves it to lapse."""


class ThreadExecutor(Executor):
    """An executor of at most `slots` threads, which take turns at the buffers that have leases.

    A thread is started when it is needed. When it has been idle for `IDLE_S`, it closes its database connections and
    ends.

    `make_run` returns a context manager for each thread. It yields the function that runs a message: in the thread
    itself, or in a child process. `run_batch` runs a batch in the thread.
    """

    def __init__(
        self,
        buffers: Sequence[PrefetchBuffer],
        slots: int,
        make_run: Callable[[], AbstractContextManager[Run]],
        leases: Leases,
        settler: Settler,
        wake: Callable[[], None],
        run_batch: RunBatch | None = None,
    ) -> None:
        super().__init__(buffers, slots, leases, settler, wake)
        self._make_run = make_run
        self._run_batch = run_batch
        self._lock = threading.RLock()
        self._ready: deque[PrefetchBuffer] = deque()
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count(1)
        self._idle: list[threading.Condition] = []  # of each thread that waits and has not been called
        self._called = 0  # threads on their way to a buffer
        self._closed = False

    @property
    def running(self) -> int:
        return len(self._threads) - len(self._idle)

    @property
    def idle(self) -> int:
        with self._lock:
            return self._idle_slots(sum(map(_awaited_slots, self._ready)))

    def state(self) -> ExecutorState:
        with self._lock:
            awaited = {buffer: _awaited_slots(buffer) for buffer in self._ready}
            all_awaited = sum(awaited.values())
            free = self.slots - self.running + self._called - all_awaited  # called threads count as free
            may_free = any(map(self._frees_soon, self.buffers))
            # One more for an empty buffer if a slot may free soon: without it, a buffer whose slots always find more
            # would keep them until its backlog is gone.
            available = [
                max(free + awaited.get(buffer, 0), may_free and not buffer.active and not buffer.leases)
                for buffer in self.buffers
            ]
            return ExecutorState(self.slots, self._idle_slots(all_awaited), self._states(available))

    def offer(self, buffer: PrefetchBuffer) -> None:
        with self._lock:
            self._make_ready(buffer)

    def close(self, timeout: float) -> None:
        with self._lock:
            self._closed = True
            for call in self._idle:
                call.notify()
            threads = list(self._threads)
        until = monotonic() + timeout
        for thread in threads:
            thread.join(max(until - monotonic(), 0))

    def _idle_slots(self, awaited: int) -> int:
        return self.slots - self.running - max(awaited - self._called, 0)

    def _frees_soon(self, buffer: PrefetchBuffer) -> bool:
        """Return whether a slot will soon leave a buffer.

        It does if the buffer drains, or if its messages are fast and a thread is on its way to it.
        """
        if buffer.active:
            return buffer.is_draining
        return self._called > 0 and buffer in self._ready and buffer.prefetch_per_slot > 1

    def _make_ready(self, buffer: PrefetchBuffer) -> None:
        if _is_ready(buffer):
            if buffer not in self._ready:
                self._ready.append(buffer)
            self._call_threads()

    def _call_threads(self) -> None:
        """Wake or start a thread for each ready buffer, as far as there are slots."""
        while self._called < len(self._ready) and not self._closed:
            if self._idle:
                self._idle.pop().notify()  # the last to wait, so that those that are not needed end
            elif len(self._threads) >= self.slots or not self._start_thread():
                return
            self._called += 1

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._serve, name=f"delayq-slot-{next(self._numbers)}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # tried again at the next offer; meanwhile a slot may free
            logger.error("A thread can't start (%s); trying again. Lower --max-threads or raise the limit.", error)
            return False
        self._threads.append(thread)
        return True

    def _serve(self) -> None:
        with self._lock:
            self._called -= 1
        try:
            with self._make_run() as run:
                buffer = self._take_buffer()
                while buffer is not None:
                    buffer = self._leave(buffer, *self._work(buffer, run))
        finally:
            self._free_slot()

    def _free_slot(self) -> None:
        """Free the slot of this thread, which ends. Let others serve what came while it closed its connections."""
        with self._lock:
            self._threads.remove(threading.current_thread())
            self._call_threads()
            self._wake_for_more()

    def _take_buffer(self) -> PrefetchBuffer | None:
        """Return the next buffer, once there is one; None if this thread is to end."""
        with self._lock:
            while not self._closed:
                while self._ready:
                    buffer = self._ready.popleft()
                    if _is_ready(buffer):
                        buffer.active += 1
                        if len(buffer.leases) > buffer.batch:  # one run is for this thread
                            self._make_ready(buffer)
                        return buffer
                call = threading.Condition(self._lock)
                self._idle.append(call)
                self._wake_for_more()  # only once the slot counts as idle, or the claim would leave it out
                call.wait(IDLE_S)
                if call in self._idle:  # whoever calls a thread takes it out
                    self._idle.remove(call)
                    return None
                self._called -= 1
            return None

    def _wake_for_more(self) -> None:
        if any(buffer.more_available and buffer.active < buffer.concurrency for buffer in self.buffers):
            self._wake()

    def _work(self, buffer: PrefetchBuffer, run: Run) -> tuple[int, float]:
        """Run messages of a buffer for a time slice. Return how many, and the seconds that they took."""
        if buffer.batch > 1 and self._run_batch is not None:
            return self._work_in_batches(buffer, self._run_batch)
        now = started_at = monotonic()
        until = now + TIME_SLICE_S
        count = 0
        while now < until and (lease := self._next(buffer)) is not None:
            lease.started_at = now
            transition = _run_guarded(run, lease)
            now = monotonic()
            self._end(lease, transition, now)
            count += 1
        return count, now - started_at

    def _work_in_batches(self, buffer: PrefetchBuffer, run: RunBatch) -> tuple[int, float]:
        """Run batches of a buffer for a time slice. Return how many, and the seconds that they took."""
        now = started_at = monotonic()
        until = now + TIME_SLICE_S
        count = 0
        while now < until:
            with self._lock:  # two threads would divide a batch between them
                leases = self._next_batch(buffer)
            if not leases:
                break
            for lease in leases:
                lease.started_at = now
            ends = _run_batch_guarded(run, leases)
            now = monotonic()
            for lease in leases:
                self._end(lease, ends.get(lease), now)
            count += 1
        return count, now - started_at

    def _leave(self, buffer: PrefetchBuffer, count: int, seconds: float) -> PrefetchBuffer | None:
        """Leave a buffer, and return the next; None if this thread is to end."""
        with self._lock:
            buffer.active -= 1
            if count:
                buffer.note_run(count, seconds)
            self._make_ready(buffer)
            if buffer.more_available and self._ready:
                self._wake()
            return self._take_buffer()


@contextmanager
def in_thread(database: str, events: AttemptEvents) -> Iterator[Run]:
    """Yield a function that runs messages in this thread. Close the thread's database connections at the end."""
    try:
        yield ThreadRunner(database, events).run
    finally:
        guarded(connections.close_all)


class ThreadRunner:
    """A runner of messages in the thread that calls it."""

    def __init__(self, database: str, events: AttemptEvents) -> None:
        self._database = database
        self._events = events
        self._check_every_s = 0.0 if health_checks_are_on() else CHECK_EVERY_S
        self._check_at = 0.0

    def run(self, lease: Lease) -> Transition | None:
        """Run one message, and return how its lease ends; None leaves it to lapse."""
        self._events.starting(lease, lease.started_at + lease.timeout_s)
        if lease.started_at >= self._check_at:
            self._check_at = lease.started_at + self._check_every_s
            guarded(close_stale_connections)
        claimed, handler = lease.claimed, lease.handler
        if handler.batch is not None:  # a suspect
            return run_leases([lease], self._events, self._database)[lease]
        begun = attempt.begin_leased(lease)
        if not isinstance(begun, Message):
            self._events.ended(lease, begun, None, None)
            return begun
        self._events.begun(lease, begun)
        exception = attempt.run_sync(claimed, handler, begun, self._database)
        transition = attempt.after(claimed, handler, exception, begun.started_ms, lease.now_ms())
        if lease.cancel_request is not None:
            transition = attempt.unless_cancelled(lease, transition)
        if lease.abandoned and not lease.lost and not transition.is_written:
            return interrupted_settlement(lease, "its handler was told so")
        self._events.ended(lease, transition, begun, exception)
        if exception is not None:
            self._check_at = 0.0  # check before the next message: the connection may be the cause
            guarded(partial(close_read_only_connections, exception))
        return transition


def _run_guarded(run: Run, lease: Lease) -> Transition | None:
    try:
        return run(lease)
    except BaseException:  # what a handler raises is caught where it runs; this is for the code around it
        logger.exception("Message %r is left to lapse.", lease.claimed.id, extra={"id": lease.claimed.id})
        return None


def _run_batch_guarded(run: RunBatch, leases: Sequence[Lease]) -> Mapping[Lease, Transition | None]:
    guarded(close_stale_connections)
    try:
        ends = run(leases)
    except BaseException:  # as above
        ids = [lease.claimed.id for lease in leases]
        logger.exception("Messages %r are left to lapse.", ids, extra={"key": leases[0].handler.key})
        return {}
    return ends


def _is_ready(buffer: PrefetchBuffer) -> bool:
    """Return whether a slot that becomes free may start a run of a buffer."""
    if not buffer.leases or buffer.active >= buffer.concurrency:
        return False
    return buffer.batch == 1 or buffer.batch_starts_at() <= monotonic()


def _awaited_slots(buffer: PrefetchBuffer) -> int:
    """Return how many slots the leases that wait in a buffer can use."""
    return min(-(-len(buffer.leases) // buffer.batch), buffer.concurrency - buffer.active)
