"""One worker put together: its threads, its loop, and how it winds down."""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from time import monotonic, sleep
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BATCH, Broker, ClaimRequest, Claims, SettleAction, Transition, pages
from django_delayq.conf import Alias
from django_delayq.core import transitions
from django_delayq.core.errors import DelayqError
from django_delayq.core.transitions import Span
from django_delayq.store import StoredBroker
from django_delayq.support.logging import logger
from django_delayq.worker import attempt, systemd
from django_delayq.worker.capacity import buffers_of, hands_infos, queues_of
from django_delayq.worker.dispatcher import Dispatcher, HandsOf
from django_delayq.worker.drain import claim_of
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.asyncio import AsyncioExecutor
from django_delayq.worker.executors.base import Executor, Work
from django_delayq.worker.executors.threads import ThreadExecutor
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.leases import Leases
from django_delayq.worker.limiter import Limiting
from django_delayq.worker.loop import Loop
from django_delayq.worker.memory import full_of
from django_delayq.worker.options import Options
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.pauses import Pauses
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.process_runner import in_child
from django_delayq.worker.queues import claim_order
from django_delayq.worker.relaying import Relaying
from django_delayq.worker.settler import Settler
from django_delayq.worker.slots import give_back_slots
from django_delayq.worker.thread_runner import in_thread
from django_delayq.worker.turns import Turns, one_by_one
from django_delayq.worker.unstarted_events import UnstartedEvents
from django_delayq.worker.upkeep import Upkeep, new_info

LAST_WORDS_S = 5.0
"""How long a worker that ends tries to tell the broker."""
LOOK_S = 0.05


class Worker:
    """A worker for one alias. `run` it in any thread; `stop` and `hurry` it from any other."""

    def __init__(
        self, alias: Alias, broker: Broker, handlers: Mapping[str, Handler[Any, Any]], options: Options
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._broker = broker
        self._shutdown_timeout = options.shutdown_timeout
        self._hurried = threading.Event()
        lease_ms = alias.options.lease
        outage_log = OutageLog()
        self._outcome = AttemptEvents(self.name)
        self._leases = Leases(broker, lease_ms, outage_log)
        self.settler = Settler(broker, self._leases, outage_log, self._wake)
        self._relaying = Relaying(broker, lease_ms, outage_log) if isinstance(broker, StoredBroker) else None
        if isinstance(broker, StoredBroker) and not options.drain:  # a drain is to run what there is now
            broker.database.clock_monitor.start(lease_ms)
        self._heartbeat = Heartbeat(options.heartbeat_file, systemd.teller())

        queues = queues_of(handlers.values(), options)
        sync_hands, async_hands, suspect_hands = self._make_hands(alias, handlers.values(), queues, options)
        self._sync_hands = [sync_hands, suspect_hands]
        self._hands: list[Executor] = [sync_hands, async_hands, suspect_hands]

        pauses = Pauses(broker)
        unstarted_events = UnstartedEvents(alias.name, self.name, handlers)
        make_dispatcher = partial(
            Dispatcher,
            due_pairs=broker.due_pairs,
            pauses=pauses,
            leases=self._leases,
            settler=self.settler,
            unstarted_events=unstarted_events,
            limiting=Limiting(broker, self._leases, lease_ms, outage_log),
        )
        claim = claim_of(broker) if options.drain else broker.claim
        self._dispatcher = make_dispatcher(
            partial(claim, lease_ms=lease_ms, worker=self.name),
            hands_of=_by_key([sync_hands, async_hands]),
            order=partial(claim_order, options.queues, Random()),
            most=options.max_messages,
        )
        self._suspects = make_dispatcher(
            partial(_claim_suspect, broker, lease_ms, self.name),
            hands_of=_by_key([suspect_hands]),
            order=list,  # none: a child process runs them, one at a time
        )
        self._loop = Loop(
            broker,
            dispatcher=self._dispatcher,
            suspects=self._suspects,
            upkeep=Upkeep(broker, alias.name, lease_ms, self._leases.held, pauses, unstarted_events, outage_log),
            pauses=pauses,
            outage_log=outage_log,
            heartbeat=self._heartbeat,
            info=new_info(self.name, queues, sorted(handlers), hands_infos(handlers, options)),
            held=self._leases.__len__,
            is_full=full_of(options.max_memory),
            drain=options.drain,
        )

    @property
    def served(self) -> set[tuple[str, str]]:
        """Return the (queue, key) pairs that this worker claims from."""
        return {pair for hands in self._hands for buffer in hands.buffers for pair in buffer.sets}

    def run(self) -> bool:
        """Work until there is a reason to stop, then wind down. Returns False when a handler would not end."""
        self._leases.start()
        self.settler.start()
        if self._relaying is not None:
            self._relaying.start()
        self._loop.run()
        return self._wind_down()

    def stop(self) -> None:
        """Claim no more, finish what runs within the shutdown time-out, give back the rest."""
        self._loop.stop()

    def hurry(self) -> None:
        """Interrupt what runs instead of waiting for it."""
        self._hurried.set()

    def _wind_down(self) -> bool:
        self._heartbeat.begin_end()
        for sync_hands in self._sync_hands:
            sync_hands.stop()
        for dispatcher in (self._dispatcher, self._suspects):
            dispatcher.release_unstarted(older_than_s=0)
        self._wait_until_idle(self._shutdown_timeout)
        self.settler.close(LAST_WORDS_S)
        self._interrupt()
        ended = self._wait_until_idle(LOOK_S * 10)
        for hands in self._hands:
            hands.close(LAST_WORDS_S if ended else 0)  # a hand that is still in a handler may never end
        self._leases.close(LAST_WORDS_S)
        if self._relaying is not None:
            self._relaying.close(LAST_WORDS_S)
        with contextlib.suppress(DelayqError):
            self._broker.retire(self.name)
        ends = ", ".join(f"{verb.value} {count}" for verb, count in self.settler.counts.items())
        logger.info("Worker %s stopped. Messages: %s.", self.name, ends or "none", extra={"worker": self.name})
        return ended

    def _wait_until_idle(self, timeout: float) -> bool:
        until = monotonic() + timeout
        while any(hands.running for hands in self._hands) or len(self._leases):
            if monotonic() >= until or self._hurried.is_set():
                return False
            self._heartbeat.beat()
            sleep(LOOK_S)
        return True

    def _interrupt(self) -> None:
        """Give up what still runs: its lease is cut short, and neither an attempt nor a crash is counted."""
        leases = self._leases.held()
        for lease in leases:
            lease.interrupted = True
        self._leases.lose(leases)
        for page in pages(leases, BATCH):
            with contextlib.suppress(DelayqError):  # then they lapse
                ends = [_interrupted(lease) for lease in page]
                settled = self._broker.settle(ends)
                give_back_slots(self._broker, page)
                for lease, transition, was_held in zip(page, ends, settled, strict=True):
                    if was_held and transition.action is SettleAction.BURY:
                        self._outcome.ended(lease, transition, None, None)

    def _make_hands(
        self, alias: Alias, handlers: Collection[Handler[Any, Any]], queues: Sequence[str], options: Options
    ) -> tuple[ThreadExecutor, AsyncioExecutor, ThreadExecutor]:
        """Return the hands for sync handlers, for async ones, and for suspects, which all run in a child process."""
        sync_lanes = buffers_of([handler for handler in handlers if not handler.is_async], queues, options)
        async_lanes = buffers_of([handler for handler in handlers if handler.is_async], queues, options)
        suspect_lanes = buffers_of(handlers, queues, options)
        in_threads = partial(one_by_one, partial(in_thread, alias.database, self._outcome))
        in_children = partial(in_child, self.name, alias.name, self._outcome, options.max_memory)
        if options.processes:
            sync_hands = self._make_sync_hands(sync_lanes, options.processes, partial(in_children, options.processes))
        else:
            sync_hands = self._make_sync_hands(sync_lanes, options.max_threads, in_threads)
        async_hands = AsyncioExecutor(async_lanes, self._leases, self.settler, self._outcome, self._wake)
        suspect_hands = self._make_sync_hands(suspect_lanes, 1, partial(in_children, 1))
        return sync_hands, async_hands, suspect_hands

    def _make_sync_hands(
        self, buffers: Sequence[PrefetchBuffer], most: int, make_work: Callable[[Turns], AbstractContextManager[Work]]
    ) -> ThreadExecutor:
        return ThreadExecutor(buffers, most, make_work, self._leases, self.settler, self._wake)

    def _wake(self) -> None:
        self._loop.wake()


def _interrupted(lease: Lease) -> Transition:
    span = Span(lease.ms_of(lease.started_at) if lease.started_at else None)
    return transitions.interrupt(lease.claimed, attempt.policy_of(lease.claimed, lease.buffer.handler), span)


def _claim_suspect(broker: Broker, lease_ms: int, worker: str, wants: Sequence[ClaimRequest]) -> Claims:
    claims = broker.claim_suspect(wants, lease_ms=lease_ms, worker=worker)
    claims.left = bool(claims.messages)  # it gives one at most: the hand that frees asks for the next at once
    return claims


def _by_key(all_hands: Sequence[Executor]) -> HandsOf:
    return {key: (buffer, hands) for hands in all_hands for buffer in hands.buffers for _, key in buffer.sets}
