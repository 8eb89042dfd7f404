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
from django_delayq.brokers.base import BATCH, Broker, Claims, SettleAction, Transition, Want, pages
from django_delayq.conf import Alias
from django_delayq.core import transitions
from django_delayq.core.errors import DelayqError
from django_delayq.core.transitions import Span
from django_delayq.store import StoredBroker
from django_delayq.support.logging import logger
from django_delayq.worker import attempt, systemd
from django_delayq.worker.async_hands import AsyncHands
from django_delayq.worker.child_hand import in_child
from django_delayq.worker.claiming import Claiming, HandsOf
from django_delayq.worker.drain import claim_of
from django_delayq.worker.hands import Hands, Work
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.leases import Leases
from django_delayq.worker.limiting import Limiting
from django_delayq.worker.loop import Loop
from django_delayq.worker.memory import full_of
from django_delayq.worker.options import Options
from django_delayq.worker.outage import Outage
from django_delayq.worker.outcome import Outcome
from django_delayq.worker.pauses import Pauses
from django_delayq.worker.plan import hands_infos, lanes_of, queues_of
from django_delayq.worker.queues import claim_order
from django_delayq.worker.relaying import Relaying
from django_delayq.worker.settling import Settling
from django_delayq.worker.slots import give_back_slots
from django_delayq.worker.sync_hands import SyncHands
from django_delayq.worker.threads import in_thread
from django_delayq.worker.turns import Turns, one_by_one
from django_delayq.worker.unrun import Unrun
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
        outage = Outage()
        self._outcome = Outcome(self.name)
        self._leases = Leases(broker, lease_ms, outage)
        self.settling = Settling(broker, self._leases, outage, self._wake)
        self._relaying = Relaying(broker, lease_ms, outage) if isinstance(broker, StoredBroker) else None
        if isinstance(broker, StoredBroker) and not options.drain:  # a drain is to run what there is now
            broker.database.clock_monitor.start(lease_ms)
        self._heartbeat = Heartbeat(options.heartbeat_file, systemd.teller())

        queues = queues_of(handlers.values(), options)
        sync_hands, async_hands, suspect_hands = self._make_hands(alias, handlers.values(), queues, options)
        self._sync_hands = [sync_hands, suspect_hands]
        self._hands: list[Hands] = [sync_hands, async_hands, suspect_hands]

        pauses = Pauses(broker)
        unrun = Unrun(alias.name, self.name, handlers)
        make_claiming = partial(
            Claiming,
            due_pairs=broker.due_pairs,
            pauses=pauses,
            leases=self._leases,
            settling=self.settling,
            unrun=unrun,
            limiting=Limiting(broker, self._leases, lease_ms, outage),
        )
        claim = claim_of(broker) if options.drain else broker.claim
        self._claiming = make_claiming(
            partial(claim, lease_ms=lease_ms, worker=self.name),
            hands_of=_by_key([sync_hands, async_hands]),
            order=partial(claim_order, options.queues, Random()),
            most=options.max_messages,
        )
        self._suspects = make_claiming(
            partial(_claim_suspect, broker, lease_ms, self.name),
            hands_of=_by_key([suspect_hands]),
            order=list,  # none: a child process runs them, one at a time
        )
        self._loop = Loop(
            broker,
            claiming=self._claiming,
            suspects=self._suspects,
            upkeep=Upkeep(broker, alias.name, lease_ms, self._leases.held, pauses, unrun, outage),
            pauses=pauses,
            outage=outage,
            heartbeat=self._heartbeat,
            info=new_info(self.name, queues, sorted(handlers), hands_infos(handlers, options)),
            held=self._leases.__len__,
            is_full=full_of(options.max_memory),
            drain=options.drain,
        )

    @property
    def served(self) -> set[tuple[str, str]]:
        """Return the (queue, key) pairs that this worker claims from."""
        return {pair for hands in self._hands for lane in hands.lanes for pair in lane.sets}

    def run(self) -> bool:
        """Work until there is a reason to stop, then wind down. Returns False when a handler would not end."""
        self._leases.start()
        self.settling.start()
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
        for claiming in (self._claiming, self._suspects):
            claiming.release_unstarted(older_than_s=0)
        self._wait_until_idle(self._shutdown_timeout)
        self.settling.close(LAST_WORDS_S)
        self._interrupt()
        ended = self._wait_until_idle(LOOK_S * 10)
        for hands in self._hands:
            hands.close(LAST_WORDS_S if ended else 0)  # a hand that is still in a handler may never end
        self._leases.close(LAST_WORDS_S)
        if self._relaying is not None:
            self._relaying.close(LAST_WORDS_S)
        with contextlib.suppress(DelayqError):
            self._broker.retire(self.name)
        ends = ", ".join(f"{verb.value} {count}" for verb, count in self.settling.counts.items())
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
    ) -> tuple[SyncHands, AsyncHands, SyncHands]:
        """Return the hands for sync handlers, for async ones, and for suspects, which all run in a child process."""
        sync_lanes = lanes_of([handler for handler in handlers if not handler.is_async], queues, options)
        async_lanes = lanes_of([handler for handler in handlers if handler.is_async], queues, options)
        suspect_lanes = lanes_of(handlers, queues, options)
        in_threads = partial(one_by_one, partial(in_thread, alias.database, self._outcome))
        in_children = partial(in_child, self.name, alias.name, self._outcome, options.max_memory)
        if options.processes:
            sync_hands = self._make_sync_hands(sync_lanes, options.processes, partial(in_children, options.processes))
        else:
            sync_hands = self._make_sync_hands(sync_lanes, options.max_threads, in_threads)
        async_hands = AsyncHands(async_lanes, self._leases, self.settling, self._outcome, self._wake)
        suspect_hands = self._make_sync_hands(suspect_lanes, 1, partial(in_children, 1))
        return sync_hands, async_hands, suspect_hands

    def _make_sync_hands(
        self, lanes: Sequence[Lane], most: int, make_work: Callable[[Turns], AbstractContextManager[Work]]
    ) -> SyncHands:
        return SyncHands(lanes, most, make_work, self._leases, self.settling, self._wake)

    def _wake(self) -> None:
        self._loop.wake()


def _interrupted(lease: Lease) -> Transition:
    span = Span(lease.ms_of(lease.started_at) if lease.started_at else None)
    return transitions.interrupt(lease.claimed, attempt.policy_of(lease.claimed, lease.lane.handler), span)


def _claim_suspect(broker: Broker, lease_ms: int, worker: str, wants: Sequence[Want]) -> Claims:
    claims = broker.claim_suspect(wants, lease_ms=lease_ms, worker=worker)
    claims.left = bool(claims.messages)  # it gives one at most: the hand that frees asks for the next at once
    return claims


def _by_key(all_hands: Sequence[Hands]) -> HandsOf:
    return {key: (lane, hands) for hands in all_hands for lane in hands.lanes for _, key in lane.sets}
