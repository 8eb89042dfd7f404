"""An executor that runs `async def` handlers as tasks of one event loop, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from django_delayq import tracing
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BATCH, Transition
from django_delayq.core.errors import Cancelled, HandlerTimeout, LeaseLost
from django_delayq.core.message import Message
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text
from django_delayq.worker import attempt, batches
from django_delayq.worker.attempt import interrupted_settlement
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import guarded
from django_delayq.worker.plan import ExecutorState
from django_delayq.worker.prefetch import Executor, PrefetchBuffer
from django_delayq.worker.settler import Settler
from django_delayq.worker.transactions import (
    IDLE_S,
    LEAST_AGE_S,
    SyncThread,
    close_read_only_connections,
    close_stale_connections,
    health_checks_are_on,
)

GRACE_S = 5.0
"""How many seconds a handler that was cancelled at its time-out may take to end before its lease is given up."""


class AsyncioExecutor(Executor):
    """An executor that runs each message as a task; a time-out or a lost lease cancels the task."""

    def __init__(
        self,
        buffers: Sequence[PrefetchBuffer],
        events: AttemptEvents,
        leases: Leases,
        settler: Settler,
        wake: Callable[[], None],
    ) -> None:
        slots = sum(buffer.concurrency for buffer in buffers)  # buffers don't share slots
        super().__init__(buffers, slots, leases, settler, wake)
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # a task without a reference may be collected as garbage
        self._timed_out: set[Lease] = set()
        self._check_every_s = 0.0 if health_checks_are_on() else LEAST_AGE_S
        self._connections_checked_at = monotonic()
        self._sync_thread = SyncThread()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return sum(buffer.active for buffer in self.buffers)

    @property
    def idle(self) -> int:
        return BATCH  # only the concurrency of each handler limits how many run

    def state(self) -> ExecutorState:
        return ExecutorState(self.slots, self.idle, self._states([BATCH] * len(self.buffers)))

    def offer(self, buffer: PrefetchBuffer) -> None:
        if self._loop is None:
            self._loop = self._start_loop()
        if self._loop is not None:  # otherwise the leases are released within a second
            self._loop.call_soon_threadsafe(self._fill, self._loop, buffer)

    def close(self, timeout: float) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop, self._loop)
            self._thread.join(timeout)

    def _start_loop(self) -> asyncio.AbstractEventLoop | None:
        loop = None
        try:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run_loop, args=(loop,), name="delayq-event-loop", daemon=True)
            thread.start()
        except (RuntimeError, MemoryError, OSError) as error:  # tried again at the next offer
            logger.error("The thread of async handlers can't start (%s); trying again. Raise its limits.", error)
            if loop is not None:
                loop.close()
            return None
        self._thread = thread
        return loop

    def _fill(self, loop: asyncio.AbstractEventLoop, buffer: PrefetchBuffer) -> None:
        if buffer.batch > 1:
            self._fill_with_batches(loop, buffer)
            return
        while buffer.active < buffer.concurrency and (lease := self._next(buffer)) is not None:
            buffer.active += 1
            self._start_task(loop, self._run(loop, buffer, lease))

    def _fill_with_batches(self, loop: asyncio.AbstractEventLoop, buffer: PrefetchBuffer) -> None:
        while buffer.active < buffer.concurrency and (leases := self._next_batch(buffer)):
            buffer.active += 1
            self._start_task(loop, self._run_batch(loop, buffer, leases))

    def _start_task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, loop: asyncio.AbstractEventLoop, buffer: PrefetchBuffer, lease: Lease) -> None:
        lease.started_at = monotonic()
        try:
            transition = await self._attempt(loop, lease)
            ended_at = monotonic()
            buffer.note_run(1, ended_at - lease.started_at)
            self._end(lease, transition, ended_at)
        except BaseException:  # what a handler raises is caught where it runs; this is for the code around it
            logger.exception("Message %r is left to lapse.", lease.claimed.id, extra={"id": lease.claimed.id})
            self._leases.remove([lease])
        finally:
            lease.ended = True
            self._leave(loop, buffer)

    def _leave(self, loop: asyncio.AbstractEventLoop, buffer: PrefetchBuffer) -> None:
        buffer.active -= 1
        self._fill(loop, buffer)
        if buffer.more_available:
            self._wake()
        if not self.running:
            self._start_idle_timer(loop)

    async def _run_batch(
        self, loop: asyncio.AbstractEventLoop, buffer: PrefetchBuffer, leases: Sequence[Lease]
    ) -> None:
        started_at = monotonic()
        for lease in leases:
            lease.started_at = started_at
        try:
            ends = await self._attempt_batch(loop, leases)
            ended_at = monotonic()
            buffer.note_run(1, ended_at - started_at)
            for lease in leases:
                self._end(lease, ends.get(lease), ended_at)
        except BaseException:  # as above
            ids = [lease.claimed.id for lease in leases]
            logger.exception("Messages %r are left to lapse.", ids, extra={"key": buffer.handler.key})
            self._leases.remove(leases)
        finally:
            for lease in leases:
                lease.ended = True
            self._leave(loop, buffer)

    async def _attempt_batch(
        self, loop: asyncio.AbstractEventLoop, leases: Sequence[Lease]
    ) -> dict[Lease, Transition | None]:
        """Run a batch, and return how each lease ends; None leaves it to lapse."""
        handler, ends = leases[0].handler, dict[Lease, Transition | None]()
        begin = partial(batches.begin, leases, self._events, has_deadline=False)
        may_ask = any(attempt.needs_look(lease.claimed) for lease in leases)
        started, refused = await sync_to_async(begin)() if may_ask else begin()
        for lease, transition in refused.items():
            await self._events.aended(lease, transition, None, None)
            ends[lease] = transition
        if not started:
            return ends
        await self._check_connections(after_s=self._check_every_s)
        for lease, message in started.items():
            await self._events.abegun(lease, message)
        exceptions, is_stopped = await self._run_batch_limited(loop, started)
        runs = [(lease.claimed, message) for lease, message in started.items()]
        ended = batches.ends_of(handler, runs, exceptions, leases[0].now_ms)
        for (lease, message), (transition, exception) in zip(started.items(), ended, strict=True):
            if lease.cancel_request is not None:
                transition = attempt.unless_cancelled(lease, transition)
            if lease.abandoned and (not lease.lost or is_stopped):
                ends[lease] = interrupted_settlement(lease, "its handler was cancelled or told so")
                continue
            await self._events.aended(lease, transition, message, exception)
            ends[lease] = transition
        for exception in batches.distinct(exceptions.values()):
            await sync_to_async(guarded)(partial(close_read_only_connections, exception))
        if exceptions:
            await self._check_connections(after_s=0)
        return ends

    async def _run_batch_limited(
        self, loop: asyncio.AbstractEventLoop, started: Mapping[Lease, Message[Any]]
    ) -> tuple[batches.Exceptions, bool]:
        """Run a batch, and return what it raised for each message, and whether it was stopped for lost leases."""
        task = asyncio.current_task(loop)
        if task is None:  # only for the types: this runs in a task
            raise RuntimeError("not in a task")
        leases, messages = list(started), list(started.values())
        first, handler = leases[0], leases[0].handler
        timers = [
            loop.call_later(first.timeout_s, self._time_out, loop, first, task),
            loop.call_later(first.timeout_s + GRACE_S, self._leases.lose, leases[1:]),
        ]
        stop = partial(loop.call_soon_threadsafe, _cancel, first, task)
        for lease in leases:
            lease.cancel = batches.stop_of(stop, leases)
            lease.on_cancel_request = batches.stop_of_cancelled(stop, leases)
        followed = [tracing.running(handler, message) for message in messages]
        exceptions: batches.Exceptions
        try:
            await _check_may_start(leases, handler)
            returned = await attempt.acall(handler, messages, self._sync_thread.watch())
            exceptions = batches.exceptions_of(returned, messages)
        except BaseException as exception:  # noqa: BLE001 - as for a single message
            exceptions = {message.id: exception for message in messages}
        for lease in leases:
            lease.cancel = lease.on_cancel_request = None
        for timer in timers:
            timer.cancel()
        if first in self._timed_out:
            self._timed_out.remove(first)
            timeout = HandlerTimeout(f"It ran for longer than {to_text(first.timeout_s * 1000)}.")
            before = exceptions.get(messages[0].id)
            timeout = timeout.with_traceback(before.__traceback__ if before else None)
            exceptions = {message.id: timeout for message in messages}
        for message, one in zip(reversed(messages), reversed(followed), strict=True):
            one.end(exceptions.get(message.id))
        return exceptions, any(isinstance(each, asyncio.CancelledError | LeaseLost) for each in exceptions.values())

    async def _attempt(self, loop: asyncio.AbstractEventLoop, lease: Lease) -> Transition | None:
        """Run a message, and return how its lease ends; None leaves it to lapse."""
        self._events.starting(lease)
        claimed, handler = lease.claimed, lease.handler
        begin = partial(attempt.begin_leased, lease)
        begun = await sync_to_async(begin)() if attempt.needs_look(claimed) else begin()
        if not isinstance(begun, Message):
            await self._events.aended(lease, begun, None, None)
            return begun
        await self._check_connections(after_s=self._check_every_s)
        await self._events.abegun(lease, begun)
        exception: BaseException | None
        try:  # before its time begins, as the look may have to wait for the sync code of other handlers
            await attempt.acheck_not_stopped([claimed], handler)
        except Exception as error:  # noqa: BLE001 - it has not started, and ends as its exception says
            exception = error
        else:
            exception = await self._run_limited(loop, lease, begun)
        # A handler that ran on to its end although its lease is lost is no interruption: its settlement is refused as
        # an overrun.
        if lease.abandoned and (not lease.lost or isinstance(exception, asyncio.CancelledError | LeaseLost)):
            return interrupted_settlement(lease, "its handler was cancelled")
        transition = attempt.after(claimed, handler, exception, begun.started_ms, lease.now_ms())
        if lease.cancel_request is not None:
            transition = attempt.unless_cancelled(lease, transition)
        await self._events.aended(lease, transition, begun, exception)
        if exception is not None:
            await sync_to_async(guarded)(partial(close_read_only_connections, exception))
            await self._check_connections(after_s=0)
        return transition

    async def _run_limited(
        self, loop: asyncio.AbstractEventLoop, lease: Lease, message: Message[object]
    ) -> BaseException | None:
        task = asyncio.current_task(loop)
        if task is None:  # only for the types: this runs in a task
            raise RuntimeError("not in a task")
        timer = loop.call_later(lease.timeout_s, self._time_out, loop, lease, task)
        lease.cancel = lease.on_cancel_request = partial(loop.call_soon_threadsafe, _cancel, lease, task)
        followed = tracing.running(lease.handler, message)
        exception: BaseException | None
        if lease.cancel_request is not None:  # asked for when there was nothing to cancel yet
            exception = Cancelled("It was cancelled before it started.")
        elif lease.check_held():
            exception = await attempt.run_async(lease.handler, message, self._sync_thread.watch())
        else:  # lost when there was nothing to cancel yet
            exception = LeaseLost("Its lease was lost before it started.")
        lease.cancel = lease.on_cancel_request = None
        timer.cancel()
        if lease in self._timed_out:
            self._timed_out.remove(lease)
            timeout = HandlerTimeout(f"It ran for longer than {to_text(lease.timeout_s * 1000)}.")
            exception = timeout.with_traceback(exception.__traceback__ if exception else None)
        followed.end(exception)
        return exception

    def _time_out(self, loop: asyncio.AbstractEventLoop, lease: Lease, task: "asyncio.Task[None]") -> None:
        self._timed_out.add(lease)
        task.cancel()
        loop.call_later(GRACE_S, self._lose_if_running, lease)

    def _lose_if_running(self, lease: Lease) -> None:
        if lease in self._timed_out:
            logger.error(
                "Message %r (%s) timed out and takes no notice of being cancelled; its lease is given up.",
                lease.claimed.id, lease.handler.key, extra={"id": lease.claimed.id},
            )  # fmt: skip
            self._leases.lose([lease])

    async def _check_connections(self, after_s: float) -> None:
        if monotonic() - self._connections_checked_at >= after_s:
            self._connections_checked_at = monotonic()
            await sync_to_async(self._close_stale_connections)()

    def _close_stale_connections(self) -> None:
        guarded(self._sync_thread.end_left_open)
        guarded(close_stale_connections)

    def _start_idle_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = loop.call_later(IDLE_S, self._close_idle_connections, loop)

    def _close_idle_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections of the thread that runs the sync code of async handlers, unless a handler runs."""
        if not self.running:
            self._start_task(loop, sync_to_async(guarded)(connections.close_all))

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._closed = True
        loop.stop()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed:
            try:
                loop.run_forever()
            except BaseException as exception:  # noqa: BLE001 - SystemExit in a task that a handler started leaves the loop
                _log_escaped(exception)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _check_may_start(leases: Sequence[Lease], handler: Handler[Any, Any]) -> None:
    """Raise an exception if a batch must not start, because of what came when there was nothing to cancel yet."""
    if not any(lease.is_held() for lease in leases):
        raise LeaseLost("Its lease was lost before it started.")
    if all(lease.is_cancelled() for lease in leases):
        raise Cancelled("It was cancelled before it started.")
    await attempt.acheck_not_stopped([lease.claimed for lease in leases], handler)


def _cancel(lease: Lease, task: "asyncio.Task[None]") -> None:
    if lease.cancel is not None:  # otherwise the handler has ended meanwhile, and what follows must not be cancelled
        task.cancel()


def _log_escaped(exception: BaseException) -> None:
    logger.error(
        "A task that a handler started raised %s, which ends an event loop; it runs on.",
        type(exception).__name__, exc_info=exception,
    )  # fmt: skip
