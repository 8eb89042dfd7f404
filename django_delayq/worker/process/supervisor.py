"""The supervisor of `run_delayq --processes N`: it starts N whole workers, and ends the leases that dead ones leave.

Each worker claims, renews and settles for itself, and notes in its journal what it holds. When a worker dies, or is
killed because a handler ran for too long, the supervisor ends its leases. While a handler holds the interpreter's lock,
so that its worker can't renew, the supervisor renews.
"""

import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic, sleep
from typing import Any

from django.db import connections

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Backend, SettleAction
from django_delayq.conf import Alias
from django_delayq.core import codec
from django_delayq.core.errors import DelayqError
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.figures import FigureWriter
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.lifecycle import LAST_WORDS_S, HeartbeatFile, teller
from django_delayq.worker.logs import OutageLog, backoff_delays, guarded
from django_delayq.worker.options import Options
from django_delayq.worker.plan import concurrency_of, served_of
from django_delayq.worker.process.death import ProcessDied, ProcessEnded, ProcessGaveUp, after_death, timeout_of
from django_delayq.worker.process.journal import Held, JournalReader, open_memory
from django_delayq.worker.process.sandboxed import LEASE_ENDED
from django_delayq.worker.process.spawn import death_of, spawn
from django_delayq.worker.process.worker_process import FULL, Order
from django_delayq.worker.settler import Settler
from django_delayq.worker.worker import name_worker

LOOK_S = 0.1
"""How often the supervisor checks its workers, in seconds: a handler is ended at most this long after its time-out."""
SILENT = 0.2
"""The fraction of a lease's length for which a worker's threads may be silent before its leases are renewed for it."""


class SupervisedWorker:
    """A worker process, as its supervisor sees it."""

    def __init__(self, order: Order) -> None:
        memory = open_memory()
        try:
            self.journal = JournalReader(memory)
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = spawn(
                    "django_delayq.worker.process.worker_process",
                    [memory, theirs.fileno()],
                    codec.dumps(order).decode(),
                )
        finally:
            os.close(memory)
        self.order = order
        self.killed_for: Exception | None = None
        """The reason for which the supervisor killed the worker."""
        self.adopted: list[Lease] | None = None
        """The worker's leases, while the supervisor renews them for it: those whose keys have a handler here."""
        self.adopted_starts = 0
        """How many messages the worker had started when its leases were adopted; 0 if some of them could not be."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the process; None while it lives."""
        return self._process.poll()

    @property
    def is_up(self) -> bool:
        """Return whether the worker has claimed and got an answer."""
        return self.journal.beat_at > 0

    def tell_to_stop(self) -> None:
        """Tell the worker to stop. The second call tells it not to wait for its handlers."""
        with contextlib.suppress(OSError):  # it has ended
            self._control.send(b"\0", socket.MSG_DONTWAIT)

    def kill(self, reason: Exception) -> None:
        """Kill the process at once. The first reason counts."""
        self.killed_for = self.killed_for or reason
        self._process.kill()

    def wait(self) -> None:
        """Wait until its process, which was killed, is gone."""
        self._process.wait()

    def close(self) -> None:
        """Close the socket to the process."""
        self._control.close()


class Supervisor:
    """N workers for one alias. Call `run` in any thread, and `stop` and `hurry` from any other."""

    def __init__(
        self, alias: Alias, backend: Backend, handlers: Mapping[str, Handler[Any, Any]], options: Options, level: int
    ) -> None:
        self._alias = alias
        self._backend = backend
        self._handlers = handlers
        self._options = options
        self.served = served_of(handlers, options)
        self._level = level
        self._lease_s = alias.options.lease / 1000
        outage_log = OutageLog()
        self._leases = Leases(backend, alias.options.lease, outage_log)
        self._figures = FigureWriter(backend.store.database, outage_log) if backend.store else None
        count = self._figures.count if self._figures else None
        self._settler = Settler(backend, self._leases, outage_log, count=count)
        self._events = AttemptEvents(name_worker())
        self._heartbeat = HeartbeatFile(options.heartbeat_file, teller())
        self._beat_at = 0.0
        self._stopping = threading.Event()
        self._hurried = threading.Event()
        self._processes: list[SupervisedWorker] = []
        self._to_start: list[tuple[float, Order]] = []
        self._backoff: dict[int, Iterator[float]] = {}
        self._ended = Counter[SettleAction]()

    @property
    def counts(self) -> "Counter[SettleAction]":
        """Return how many leases ended by each action, in all workers."""
        running = [process.journal.counts for process in list(self._processes)]
        return sum(running, self._ended + self._settler.counts)

    def run(self) -> bool:
        """Keep the workers running until there is a reason to stop. Return False if a handler did not end in time."""
        self._leases.start()
        self._settler.start()
        if self._figures is not None:
            self._figures.start()
        self._to_start = [(0.0, order) for order in self._orders()]
        while (self._to_start or self._processes) and not self._stopping.is_set():
            self._start_due()
            self._check_all()
            self._stopping.wait(LOOK_S)
        ended_well = self._wind_down()
        self._settler.close(LAST_WORDS_S)
        self._leases.close(LAST_WORDS_S)
        if self._figures is not None:
            self._figures.close(LAST_WORDS_S)
        return ended_well

    def stop(self) -> None:
        """Let every worker claim no more, release what has not started, and finish within the shutdown time-out."""
        self._stopping.set()

    def hurry(self) -> None:
        """Make the workers interrupt running handlers when they wind down, instead of waiting for them."""
        self._hurried.set()

    def _orders(self) -> list[Order]:
        """Return an order for each worker that has anything to do. `--max-messages` is divided among the workers."""
        options = self._options
        orders = []
        for index in range(options.processes):
            mine = replace(
                options, index=index, heartbeat_file=None, max_messages=_share_of_max_messages(options, index)
            )
            if mine.max_messages != 0 and any(concurrency_of(handler, mine) for handler in self._handlers.values()):
                orders.append(Order(self._alias.name, self._level, mine))
        return orders

    def _start_due(self) -> None:
        now = monotonic()
        due = [order for at, order in self._to_start if at <= now]
        self._to_start = [(at, order) for at, order in self._to_start if at > now]
        for order in due:
            try:
                self._processes.append(SupervisedWorker(order))
            except OSError as error:
                logger.error("A worker process can't start (%s); trying again.", error)
                self._start_later(order)

    def _start_later(self, order: Order) -> None:
        wait_s = next(self._backoff.setdefault(order.options.index, backoff_delays()))
        self._to_start.append((monotonic() + wait_s, order))

    def _check_all(self) -> None:
        for process in list(self._processes):
            code = process.exit_code
            if code is not None:
                self._replace(process, code)
            else:
                self._check(process)
        self._beat()

    def _beat(self) -> None:
        """Give a sign of life if every worker is alive.

        A worker is alive while its loop goes on, or while it runs a handler that is within its time-out.
        """
        now = monotonic()
        journals = [process.journal for process in self._processes]
        if (
            journals
            and not self._to_start
            and all(process.beat_at > self._beat_at or process.deadline > now for process in journals)
        ):
            self._beat_at = now
            self._heartbeat.beat()

    def _check(self, process: SupervisedWorker) -> None:
        now, journal = monotonic(), process.journal
        deadline, silent_s = journal.deadline, now - journal.alive_at
        if 0 < deadline <= now:
            process.kill(ProcessEnded())
            process.wait()
            self._replace(process, 0)
        elif not journal.holds_any or silent_s < self._lease_s * SILENT:
            self._leases.remove(process.adopted or ())
            process.adopted = None
        elif process.adopted is None:
            self._adopt(process)
        elif not deadline and silent_s > self._lease_s:
            logger.error("Worker process %d hangs, and is killed.", process.pid)
            process.kill(ProcessDied("its process hung, and was killed"))
        else:
            self._tell_renewed(process, process.adopted)

    def _adopt(self, process: SupervisedWorker) -> None:
        """Renew the leases of a worker whose threads don't run, because a handler holds the interpreter's lock."""
        started, held = process.journal.started, process.journal.held()
        leases = [(one, lease) for one in held if (lease := self._lease_of(one)) is not None]
        if process.journal.alive_at + self._lease_s * SILENT <= monotonic():  # the worker has not gone on meanwhile
            process.adopted = [lease for _, lease in leases]
            process.adopted_starts = started if len(leases) == len(held) else 0  # else some are not renewed
            for one, lease in leases:
                if one.runs:  # if another worker takes the message, this one must not run on
                    lease.cancel = partial(process.kill, ProcessGaveUp())
            self._leases.add(process.adopted)

    def _tell_renewed(self, process: SupervisedWorker, adopted: list[Lease]) -> None:
        """Tell a worker until when the leases of its running handlers are held, once each was renewed for it.

        Otherwise it would give them up as soon as it goes on, before it can renew them itself. If one of them is lost,
        the worker is killed instead.
        """
        runs = [lease for lease in adopted if lease.cancel is not None]
        if all(lease.held_until > lease.claimed_at + self._leases.hold_s for lease in runs):
            process.journal.hold(process.adopted_starts, min((lease.held_until for lease in runs), default=0.0))

    def _replace(self, process: SupervisedWorker, code: int) -> None:
        """End the leases of a worker that has ended, and plan to start another in its place.

        None is started if the worker's work was done or the supervisor is stopping. After a worker that died before it
        had claimed anything, the next one waits for a backoff delay.
        """
        self._processes.remove(process)
        self._leases.remove(process.adopted or ())
        death = process.killed_for or self._death_of(code)
        held = process.journal.held()
        if death is not None:
            guarded(partial(self._end_leases, held, death))
            with contextlib.suppress(DelayqError):
                self._backend.presence.leave(process.journal.name)
        self._ended += process.journal.counts
        order, was_up = _order_in_place_of(process), process.is_up
        process.close()
        if was_up:
            self._backoff.pop(order.options.index, None)
        is_done = (death is None and code != FULL) or order.options.max_messages == 0
        if self._stopping.is_set() or is_done:
            return
        if death is not None:
            logger.warning(
                "Worker process %d is gone (%s): of %d message(s) it held, %d ran. Starting another.",
                process.pid, death_of(code) if process.killed_for is None else _reason_text(process.killed_for),
                len(held), sum(one.runs for one in held),
            )  # fmt: skip
        else:
            logger.info(
                "Worker process %d took more than --max-memory %s: another takes its place.",
                process.pid, size_text(self._options.max_memory or 0),
            )  # fmt: skip
        if was_up or death is None:
            self._to_start.append((0.0, order))
        else:
            self._start_later(order)

    def _death_of(self, code: int) -> Exception | None:
        if code in (0, FULL):
            return None
        return ProcessGaveUp() if code == LEASE_ENDED else ProcessDied(death_of(code))

    def _end_leases(self, held: list[Held], death: Exception) -> None:
        """End the leases that a dead worker left.

        - A message that had not started is released.
        - A message that had ended is settled as it ended. One whose atomic handler had committed is finished.
        - If the process was killed because a handler ran for too long, the message of that handler has failed, and the
          other running messages are interrupted, or buried if they are at most once. The same holds if it was killed
          at the end of the shutdown time-out.
        - If the process ended, or was killed, because a lease was no longer held, the running messages are interrupted;
          those that are at most once are left to lapse.
        - If the process died, or hung and was killed, each running message is charged a crash, or buried if it is at
          most once. The crash is never the third, fatal one, because the sandbox of a suspect also dies when its worker
          does.

        A message whose key has no handler here is left to lapse.
        """
        now = monotonic()
        for one in held:
            lease = self._lease_of(one)
            if lease is None:
                continue  # no handler here has its key: its lease lapses
            self._leases.add([lease])
            if one.started is None:
                self._settler.release([lease])
                continue
            transition = one.transition
            lease.maybe_settled = transition is not None
            if transition is None:
                is_over_time = 0 < one.started.deadline <= now and isinstance(death, ProcessEnded)
                transition = after_death(lease, timeout_of(lease) if is_over_time else death, self._events)
            lease.ended = True
            if transition is None:
                self._leases.remove([lease])
            else:
                self._settler.add(lease, transition)
        connections.close_all()  # the next death may be far off

    def _lease_of(self, held: Held) -> Lease | None:
        claimed = held.leased.claimed
        handler = self._handlers.get(claimed.header.key) if claimed.header else None
        if handler is None:
            return None
        now = monotonic()
        lease = Lease(claimed, handler, now, now + self._leases.hold_s, held.leased.clock_ms)
        if held.started is not None:
            lease.started_at, lease.permit_request = held.started.at, held.started.permit_request
        return lease

    def _wind_down(self) -> bool:
        """Stop the workers, and return whether all ended in time. Kill the others, and interrupt what they ran."""
        self._heartbeat.begin_end()
        for process in self._processes:
            process.tell_to_stop()
        until = monotonic() + self._options.shutdown_timeout + LAST_WORDS_S
        is_hurried, ended_well = False, True
        while self._processes:
            if self._hurried.is_set() and not is_hurried:
                is_hurried = True
                until = monotonic() + LAST_WORDS_S
                for process in self._processes:
                    process.tell_to_stop()
            if monotonic() >= until:
                ended_well = False
                for process in self._processes:
                    process.kill(ProcessEnded())
                    process.wait()
            self._check_all()
            sleep(LOOK_S)
        return ended_well


def _share_of_max_messages(options: Options, index: int) -> int | None:
    """Return how many messages the worker `index` may run; None for no bound."""
    most = options.max_messages
    return None if most is None else (most + options.processes - 1 - index) // options.processes


def _order_in_place_of(process: SupervisedWorker) -> Order:
    """Return the order for a worker's successor, with `--max-messages` reduced by what the worker had started."""
    order = process.order
    most = order.options.max_messages
    if most is None:
        return order
    return replace(order, options=replace(order.options, max_messages=max(most - process.journal.started, 0)))


def _reason_text(reason: Exception) -> str:
    match reason:
        case ProcessEnded():
            return "killed, because a handler ran for too long"
        case ProcessGaveUp():
            return "killed, because the lease of what it ran was lost"
        case _:
            return str(reason)
