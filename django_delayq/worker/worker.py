"""A whole worker: its wait for a broker fit for use, its threads, its loop (maintenance, claim, sleep), and its end."""

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from time import monotonic, sleep
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import (
    BATCH,
    Backend,
    ClaimRequest,
    Claims,
    ServerReport,
    SettleAction,
    Transition,
    pages,
)
from django_delayq.conf import Alias
from django_delayq.core import transitions
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, DelayqError
from django_delayq.core.transitions import Span
from django_delayq.store.backend import missing_grants
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text
from django_delayq.worker import attempt
from django_delayq.worker.batches import run_leases
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.events import AttemptEvents, UnstartedEvents
from django_delayq.worker.executors.asyncio import AsyncioExecutor
from django_delayq.worker.executors.threads import ThreadExecutor, in_thread
from django_delayq.worker.figures import FigureWriter
from django_delayq.worker.leases import Lease, LeaseLog, Leases
from django_delayq.worker.lifecycle import LAST_WORDS_S, HeartbeatFile, teller
from django_delayq.worker.limiter import Limiter
from django_delayq.worker.logs import OutageLog, backoff_delays, guarded
from django_delayq.worker.maintenance import (
    Lanes,
    Maintenance,
    ParkedKeys,
    Pauses,
    TableMaintenance,
    new_info,
    resident,
)
from django_delayq.worker.options import Options, ServedQueue
from django_delayq.worker.plan import claim_order, executor_infos, queues_of, served_of
from django_delayq.worker.prefetch import Executor, buffers_of
from django_delayq.worker.process.sandbox import in_sandboxes
from django_delayq.worker.settler import Settler

ENDING_LOOK_S = 0.02
"""How often a worker that is about to end checks whether its last message is settled, in seconds."""
LOOK_S = 0.05
"""How often a worker that winds down checks whether its handlers have ended, in seconds."""


class Worker:
    """A worker for one alias. Call `run` in any thread, and `stop` and `hurry` from any other."""

    def __init__(
        self,
        alias: Alias,
        backend: Backend,
        handlers: Mapping[str, Handler[Any, Any]],
        options: Options,
        *,
        name: str = "",
        events: AttemptEvents | None = None,
        lease_log: LeaseLog | None = None,
        tell: Callable[[str], None] | None = None,
        supervisor: int | None = None,
    ) -> None:
        self.name = name or name_worker()
        self._backend = backend
        self._shutdown_timeout = options.shutdown_timeout
        self._hurried = threading.Event()
        lease_ms = alias.options.lease
        outage_log = OutageLog()
        self._events = events or AttemptEvents(self.name)
        self._leases = Leases(backend, lease_ms, outage_log, lease_log)
        self._figures = FigureWriter(backend.store.database, outage_log) if backend.store else None
        count = self._figures.count if self._figures else None
        self.settler = Settler(backend, self._leases, outage_log, self._wake, count)
        self._table_maintenance = self._make_table_maintenance(backend, handlers, options, outage_log)
        if backend.store and not options.drain:  # a drain also reclaims, at once, what has lapsed
            backend.store.database.clock_monitor.start(lease_ms)
        self._heartbeat = HeartbeatFile(options.heartbeat_file, tell or teller())

        queues = queues_of(handlers.values(), options)
        self.served = served_of(handlers, options)
        executors, suspect_executor = self._make_executors(alias, handlers.values(), queues, options)
        self._executors = [*executors, suspect_executor]

        pauses, lanes = Pauses(backend), Lanes(backend, queues)
        count_buried = self._figures.count_buried if self._figures else None
        unstarted_events = UnstartedEvents(alias.name, self.name, handlers, count_buried)
        is_limited = any(handler.limits for handler in handlers.values())
        make_dispatcher = partial(
            Dispatcher,
            due_pairs=backend.queue.due_pairs,
            pauses=pauses,
            lanes=lanes,
            leases=self._leases,
            settler=self.settler,
            unstarted_events=unstarted_events,
            limiter=Limiter(backend, self._leases, lease_ms, outage_log) if is_limited else None,
        )
        # With a store a drain claims from the tables: they know all that is due, and the timer only the next seconds.
        claim = backend.store.claim_all if backend.store and options.drain else backend.queue.claim
        self._dispatcher = make_dispatcher(
            partial(claim, lease_ms=lease_ms, worker=self.name),
            executors=executors,
            order=partial(_claim_order, options.queues, queues, Random()),
            most=options.max_messages,
        )
        self._suspects = make_dispatcher(
            partial(_claim_suspect, backend, lease_ms, self.name),
            executors=[suspect_executor],
        )
        pids = [os.getpid()] if supervisor is None else [os.getpid(), supervisor]
        info = new_info(self.name, queues, sorted(handlers), executor_infos(handlers, options), pids)
        self._loop = Loop(
            backend,
            options,
            dispatcher=self._dispatcher,
            suspects=self._suspects,
            maintenance=Maintenance(backend, info, self._leases.held, pauses, lanes, unstarted_events, outage_log),
            leases=self._leases,
            outage_log=outage_log,
            heartbeat=self._heartbeat,
        )

    @property
    def exceeds_memory(self) -> bool:
        """Return whether the worker stops because its process takes more memory than `--max-memory`."""
        return self._loop.exceeds_memory

    @property
    def counts(self) -> "Counter[SettleAction]":
        """Return how many leases ended by each action."""
        return self.settler.counts

    def run(self) -> bool:
        """Work until there is a reason to stop, then wind down. Return whether all handlers have ended."""
        self._leases.start()
        self.settler.start()
        for thread in (self._table_maintenance, self._figures):
            if thread is not None:
                thread.start()
        self._loop.run()
        return self._wind_down()

    def stop(self) -> None:
        """Claim no more, release what has not started, and let running handlers finish within the shutdown time-out."""
        self._loop.stop()

    def hurry(self) -> None:
        """Make the worker interrupt running handlers when it winds down, instead of waiting for them."""
        self._hurried.set()

    def _wind_down(self) -> bool:
        self._heartbeat.begin_end()
        for dispatcher in (self._dispatcher, self._suspects):
            dispatcher.release_unstarted(older_than_s=0)
        ended = self._wait_until_idle(self._shutdown_timeout)
        self.settler.close(LAST_WORDS_S)
        if not ended:
            self._interrupt()
            ended = self._wait_until_idle(LOOK_S * 10)
        self._leases.release_all_unused()
        for executor in self._executors:
            executor.close(LAST_WORDS_S if ended else 0)  # a thread that is still in a handler may never end
        self._leases.close(LAST_WORDS_S)
        for thread in (self._table_maintenance, self._figures):
            if thread is not None:
                thread.close(LAST_WORDS_S)
        with contextlib.suppress(DelayqError):
            self._backend.presence.leave(self.name)
        self._log_end()
        return ended

    def _log_end(self) -> None:
        if logger.isEnabledFor(logging.INFO):
            ends = ", ".join(f"{action.value} {count}" for action, count in self.settler.counts.items())
            logger.info("Worker %s stopped. Messages: %s.", self.name, ends or "none", extra={"worker": self.name})

    def _wait_until_idle(self, timeout: float) -> bool:
        until = monotonic() + timeout
        while any(executor.running for executor in self._executors) or len(self._leases):
            if monotonic() >= until or self._hurried.is_set():
                return False
            self._heartbeat.beat()
            sleep(LOOK_S)
        return True

    def _interrupt(self) -> None:
        """Cut short the leases of handlers that still run. Neither an attempt nor a crash is counted.

        An at-most-once message is buried.
        """
        leases = self._leases.held()
        for lease in leases:
            lease.interrupted = True
        self._leases.lose(leases)
        for page in pages(leases, BATCH):
            with contextlib.suppress(DelayqError):  # the leases then lapse
                ends = [_interrupted(lease) for lease in page]
                settled = self._backend.queue.apply(ends)
                self._leases.release_permits(page)
                for lease, transition, was_held in zip(page, ends, settled, strict=True):
                    if was_held is True and transition.action is SettleAction.BURY:
                        if self._figures is not None:
                            self._figures.count([(lease, transition)])
                        self._events.ended(lease, transition, None, None)

    def _make_table_maintenance(
        self, backend: Backend, keys: Collection[str], options: Options, outage_log: OutageLog
    ) -> TableMaintenance | None:
        if backend.store is None:
            return None
        # Of the workers of one supervisor, the first one tells.
        parked = None if options.index else ParkedKeys(backend, backend.store, keys)
        return TableMaintenance(backend.store, backend.alias.options.lease, outage_log, parked)

    def _make_executors(
        self, alias: Alias, handlers: Collection[Handler[Any, Any]], queues: Sequence[str], options: Options
    ) -> tuple[list[Executor], Executor]:
        """Return the executors for sync and async handlers, and the one that runs each suspect in its own process."""
        common = self._leases, self.settler, self._wake
        executors: list[Executor] = []
        if sync := [handler for handler in handlers if not handler.is_async]:
            make_run = partial(in_thread, alias.database, self._events)
            run_batch = partial(run_leases, events=self._events, database=alias.database)
            buffers = buffers_of(sync, queues, options)
            executors.append(ThreadExecutor(buffers, options.max_threads, make_run, *common, run_batch))
        if tasks := [handler for handler in handlers if handler.is_async]:
            executors.append(AsyncioExecutor(buffers_of(tasks, queues, options), self._events, *common))
        run_suspects = partial(in_sandboxes, self.name, alias.name, self._events)
        suspect_buffers = buffers_of(handlers, queues, options, in_batches=False)
        return executors, ThreadExecutor(suspect_buffers, 1, run_suspects, *common)

    def _wake(self) -> None:
        self._loop.wake()


class Loop:
    """The loop that claims and sleeps until it is stopped, has claimed all it may, or has nothing left to drain."""

    def __init__(
        self,
        backend: Backend,
        options: Options,
        *,
        dispatcher: Dispatcher,
        suspects: Dispatcher,
        maintenance: Maintenance,
        leases: Leases,
        outage_log: OutageLog,
        heartbeat: HeartbeatFile,
    ) -> None:
        self._backend = backend
        self._dispatcher = dispatcher
        self._suspects = suspects
        self._dispatchers = [dispatcher]  # those that may be busy; that of suspects joins them with the first suspect
        self._maintenance = maintenance
        self._leases = leases
        self._outage_log = outage_log
        self._heartbeat = heartbeat
        self._drain = options.drain
        self._max_memory = options.max_memory
        self._may_end = options.drain or options.max_messages is not None or options.max_memory is not None
        self.exceeds_memory = False
        """Whether the process was found to take more than `--max-memory`."""
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._asleep = False
        self._may_find = True  # whether a claim may find anything

    def run(self) -> None:
        """Repeat turns until there is a reason to stop. No error of the broker ends the loop."""
        backoff = None
        while not self._stopping.is_set():
            if self._woken.is_set():
                self._woken.clear()  # only where a claim follows, because a wake-up may come at any time
                self._may_find = True
            busy = [each for each in self._dispatchers if each.busy]
            idle = self._may_end and not busy and not len(self._leases)
            if idle and self._dispatcher.spent:
                return
            self._may_find |= self._drain and idle  # a drain ends only with a claim that finds nothing
            try:
                found = self._turn(busy)
            except Exception as error:  # noqa: BLE001 - a worker outlives whatever its broker answers
                self._outage_log.begin("claiming", error)
                self._may_find = True
                backoff = backoff or backoff_delays()
                self._stopping.wait(next(backoff))
                continue
            if backoff is not None:
                self._outage_log.end("claiming")
                backoff = None
            if monotonic() >= self._heartbeat.due_at:
                self._heartbeat.beat()
            # Ask again whether the dispatcher is busy: a limit may have refused what this turn found, so that it comes
            # again.
            if self._drain and idle and not (found or self._dispatcher.busy or self._maintenance.suspects_due):
                return
            if not found:
                self._sleep()

    def stop(self) -> None:
        """End the loop after the current turn."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """End the loop's sleep, or skip the next one, because a slot is free or the loop must stop.

        Any thread may call it.
        """
        self._woken.set()
        if self._asleep:
            guarded(self._backend.queue.wake)  # an error must not end the thread that calls this

    def _turn(self, busy: list[Dispatcher]) -> bool:
        self._may_find |= self._maintenance.do_due()
        if self._max_memory is not None and not self.exceeds_memory and self._dispatcher.has_run:
            self._check_memory(self._max_memory)
        for dispatcher in busy:
            dispatcher.look_after_unstarted()
        self._dispatcher.release_unused_permits()
        found = self._may_find and self._dispatcher.claim()
        if self._maintenance.suspects_due and self._suspects not in busy:
            self._dispatchers = [self._dispatcher, self._suspects]
            self._maintenance.suspects_due = self._suspects.claim()
        return found

    def _check_memory(self, limit: int) -> None:
        """Stop claiming if this process takes more than `limit` bytes."""
        taken = resident()
        if taken > limit:
            self.exceeds_memory = True
            logger.info(
                "Stopping: this worker takes %s, and --max-memory is %s. It finishes what runs.",
                size_text(taken), size_text(limit),
            )  # fmt: skip
            self._dispatcher.close()
            self._suspects.close()

    def _sleep(self) -> None:
        self._may_find = True
        timeout = min(self._maintenance.due_at - monotonic(), self._dispatcher.wait_s())
        if self._may_end and (self._drain or self._dispatcher.spent):
            timeout = min(timeout, ENDING_LOOK_S)
        timeout = max(timeout, 0)
        if not self._dispatcher.wanted:
            # Every slot is busy, so don't wait at the broker: due messages, which can't be claimed now, would end its
            # wait.
            self._woken.wait(timeout)
            return
        self._asleep = True
        if not self._woken.is_set():
            self._may_find = self._backend.queue.wait(timeout) or self._dispatcher.skipped
        self._asleep = False


def ask_report(backend: Backend, patience_s: float = math.inf) -> ServerReport:
    """Wait for the broker, and return its report on itself.

    Raises `BrokerRefused` if it must not be used, and `BrokerUnavailable` after `patience_s` seconds without an answer.
    """
    outage_log, waits_until = OutageLog(), monotonic() + patience_s
    backoff = backoff_delays()
    while True:
        try:
            report = backend.report()
            if backend.store and not report.problems:
                report.problems += missing_grants(backend.store.database)
        except BrokerUnavailable as error:
            if monotonic() >= waits_until:
                raise
            outage_log.begin("starting", error)
            sleep(next(backoff))
            continue
        if not report.is_away:
            outage_log.end("starting")
        if report.problems:
            raise BrokerRefused(" ".join(report.problems))
        return report


def name_worker() -> str:
    """Return a name that no other worker has: host, process id and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_urlsafe(6)}"


def _interrupted(lease: Lease) -> Transition:
    span = Span(lease.ms_of(lease.started_at) if lease.started_at else None)
    return transitions.interrupt(lease.claimed, attempt.policy_of(lease.claimed, lease.handler), span)


def _claim_order(
    ordered: Sequence[ServedQueue], queues: Sequence[str], random: Random, lanes: Collection[str]
) -> list[str]:
    """Return the order of the next claim, or an empty list if there is none.

    Lanes have an order, and so must their queues: if the worker's options give none, each claim draws another.
    """
    return claim_order(ordered or ([ServedQueue(queue, 1) for queue in queues] if lanes else []), random, lanes)


def _claim_suspect(backend: Backend, lease_ms: int, worker: str, wants: Sequence[ClaimRequest]) -> Claims:
    claims = backend.queue.claim_suspect(wants, lease_ms=lease_ms, worker=worker)
    # A call gives one suspect at most, so the slot asks for the next as soon as it is free.
    claims.more_available = bool(claims.messages)
    return claims
