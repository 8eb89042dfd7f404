"""Offer the memory broker: each method does what brokers/base.py promises, under one lock."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Condition
from typing import Any, ClassVar

from django_delayq.brokers.base import (
    BATCH,
    NO_PROGRESS,
    Alarm,
    AlarmInfo,
    Audit,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Claims,
    Counts,
    Enqueued,
    Heard,
    Info,
    LeaseId,
    MaintenanceResult,
    NewMessage,
    OnConflict,
    Pair,
    Pause,
    Risk,
    ServerReport,
    T,
    Takeover,
    Transition,
    WorkerInfo,
    check_batch,
    earliest,
    refuse_duplicates,
)
from django_delayq.brokers.memory import queries
from django_delayq.brokers.memory.apply import (
    cancel,
    enqueue,
    maintain,
    purge_failed,
    remove_waiting,
    reschedule,
    rescue,
    settle,
)
from django_delayq.brokers.memory.limiter import MemoryLimiter
from django_delayq.brokers.memory.places import Entry, Places, SetName
from django_delayq.brokers.shared_state import StateWithPauses
from django_delayq.conf import Alias
from django_delayq.core.lanes import lanes_in
from django_delayq.support.translatable import text as _


class MemoryBroker:
    """A broker in this process, which loses everything when the process ends. See brokers/base.py.

    `clock_ms` returns epoch milliseconds. Tests pass a clock that they move, and call `wake` after moving it.
    """

    needs_store: ClassVar[bool] = False
    store = None
    database: Any = None
    pause_version = 0

    def __init__(self, alias: Alias, clock_ms: Callable[[], float] = lambda: time.time_ns() / 1_000_000) -> None:
        self.alias = alias
        self.queue = self.timer = self.window = self.alarm_index = self.presence = self
        self._clock_ms = clock_ms
        self._places = Places()
        self._tokens = count(1)
        self._state = StateWithPauses()
        self._lanes: set[str] = set()
        self._limits = self.limiter = MemoryLimiter(clock_ms)
        self._changed = Condition()
        self._wanted: list[SetName] = []
        self._woken = False

    @classmethod
    def check(cls, alias: Alias) -> None:
        """Accept every alias."""

    @classmethod
    def places(cls, alias: Alias) -> frozenset[str]:
        return frozenset()

    @classmethod
    def risks(cls, alias: Alias) -> list[Risk]:
        return []

    def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    def close(self) -> None:
        self.wake()

    # Messages in

    def enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        check_batch(messages)
        with self._changed:
            if new := lanes_in(message.header.queue for message in messages) - self._lanes:
                self._lanes |= new
                self.announce_pauses()
            now_ms = self._now_ms()
            enqueued = [
                enqueue(self._places, each, on_conflict, now_ms, self._due_ms(each.delay_ms, each.at_ms))
                for each in messages
            ]
            self._changed.notify_all()
        return refuse_duplicates(enqueued, on_conflict)

    async def aenqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        return self.enqueue(messages, on_conflict)

    def begin_enqueue(
        self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep"
    ) -> Callable[[], list[Enqueued]]:
        return partial(self.enqueue, messages, on_conflict)

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        self.drop((), alarms)

    # Messages out

    def claim(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        with self._changed:
            claims = Claims([], [], self._now_ms(), None)
            requests = [request for request in requests if request.count > 0]
            token = next(self._tokens)
            filled = [self._claim_set(request, claims, token, lease_ms, worker) for request in requests]
            pairs = [(request.queue, request.key) for request in requests]
            claims.next_due_ms = earliest(*map(self._places.next_due, pairs))
            claims.more_available = claims.next_due_ms is not None and claims.next_due_ms <= claims.now_ms
            # A pair that got all that it asked for is not waited for: what is left of it would end the wait at once.
            self._wanted = [pair for pair, full in zip(pairs, filled, strict=True) if not full]
            return claims

    def _claim_set(self, request: ClaimRequest, claims: Claims, token: int, lease_ms: int, worker: str) -> bool:
        """Lease what is due of one pair, and add it to `claims`.

        Return whether the pair got all that it asked for, or its next message needs an idle slot.
        """
        name = (request.queue, request.key)
        room = BATCH - len(claims.messages) - len(claims.alarms)
        due = self._places.due(name, claims.now_ms, min(request.count, room))
        for position, (_due_ms, member, is_alarm) in enumerate(due):
            if position >= request.idle_slots and not is_alarm and self._places.entries[member].header.at_most_once:
                return True
            if is_alarm:
                self._places.alarms[name].drop(member)
                self._places.running_alarms.put((*name, member), claims.now_ms + lease_ms)
                claims.alarms.append(Alarm(*name, member))
            else:
                claims.messages.append(self._lease(self._places.entries[member], token, lease_ms, worker))
        return len(due) >= request.count

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self.claim(requests, lease_ms=lease_ms, worker=worker)

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        with self._changed:
            now_ms = self._now_ms()
            return [pair for pair in pairs if (at_ms := self._places.next_due(pair)) is not None and at_ms <= now_ms]

    def claim_suspect(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        with self._changed:
            claims = Claims([], [], self._now_ms(), None)
            wanted = {(request.queue, request.key) for request in requests if request.count > 0}
            due = [self._places.entries[id] for _due_ms, id in self._places.suspects.due(claims.now_ms, BATCH)]
            suspect = next((entry for entry in due if entry.set_name in wanted), None)
            if suspect is not None:
                claims.messages.append(self._lease(suspect, next(self._tokens), lease_ms, worker))
            return claims

    def _lease(self, entry: Entry, token: int, lease_ms: int, worker: str) -> Claimed:
        self._places.put_running(entry, token, worker, self._now_ms() + lease_ms)
        header = replace(entry.header)
        return Claimed(entry.id, token, entry.due_ms, header, entry.body, entry.failures, entry.crashes, worker=worker)

    def apply(self, transitions: Sequence[Transition]) -> list[bool | CancelRequest]:
        check_batch(transitions)
        with self._changed:
            held = [
                settle(
                    self._places, transition, self._now_ms(), self._due_ms(transition.delay_ms or 0, transition.at_ms)
                )
                for transition in transitions
            ]
            self._changed.notify_all()
            return held

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(rearm)
        with self._changed:
            for alarm in alarms:
                self._places.running_alarms.drop((alarm.queue, alarm.key, alarm.pk))
            for alarm in rearm:
                self._places.alarms[alarm.queue, alarm.key].put_earlier(alarm.pk, self._due_ms(alarm.wait_ms))
            self._changed.notify_all()

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        check_batch(leases)
        with self._changed:
            held = [self._places.find_held(lease.id, lease.token) for lease in leases]
            for entry in held:
                if entry is not None:
                    self._places.running.put(entry.id, self._now_ms() + lease_ms)
                    entry.progress = progress.get((entry.id, entry.token), entry.progress)
            return [False if entry is None else entry.cancel_request or True for entry in held]

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        with self._changed:
            self._limits.forget_over()
            result = maintain(self._places, self.alias.options, self._now_ms())
            self._changed.notify_all()
            return result

    def take_over(self, workers: Collection[str]) -> Takeover:
        return Takeover()  # all workers are in this process

    def cursor(self) -> int | None:
        with self._changed:
            return self._state.cursor

    def advance_cursor(self, alarms: Sequence[Alarm], from_ms: int | None, to_ms: int) -> int | None:
        self.schedule(alarms)
        with self._changed:
            return self._state.advance_cursor(from_ms, to_ms)

    def set_cursor_back(self, to_ms: int) -> None:
        with self._changed:
            self._state.set_cursor_back(to_ms)

    def owner(self, candidate: str = "", *, within_s: float = 2.0) -> str:
        return candidate  # no other process can use it

    owner_key = ""

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._woken and (sleep := min(deadline - time.monotonic(), self._until_due())) > 0:
                self._changed.wait(sleep)
            self._woken = False
        return True  # a claim costs nothing here

    def _until_due(self) -> float:
        due_ms = earliest(*map(self._places.next_due, self._wanted))
        return math.inf if due_ms is None else (due_ms - self._clock_ms()) / 1000

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # Operations by id

    def atomically(self, work: Callable[[], T]) -> T:
        return work()

    def cancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        check_batch(ids)
        with self._changed:
            return [cancel(self._places, id, running_by, self._now_ms()) for id in ids]

    async def acancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        return self.cancel(ids, running_by)

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        check_batch(ids)
        with self._changed:
            due_ms = self._due_ms(delay_ms, at_ms)
            rescheduled = [reschedule(self._places, id, due_ms) for id in ids]
            self._changed.notify_all()
            return rescheduled

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return self.reschedule(ids, delay_ms=delay_ms, at_ms=at_ms)

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._changed:
            rescued = [rescue(self._places, id, self._now_ms()) for id in ids]
            self._changed.notify_all()
            return rescued

    def purge(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._changed:
            return [remove_waiting(self._places, id, "purged") for id in ids]

    def purge_failed(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        with self._changed:
            return [purge_failed(self._places, id) for id in ids]

    # Pauses

    def pause(self, pause: Pause) -> None:
        with self._changed:
            self._state.pause(pause, self._now_ms())
            self.announce_pauses()

    def resume(self, queue: str | None, key: str | None) -> bool:
        with self._changed:
            self.announce_pauses()
            return self._state.resume(queue, key, self._now_ms())

    def announce_pauses(self) -> None:
        self.pause_version += 1
        self.wake()

    def pauses(self) -> list[Pause]:
        with self._changed:
            return self._state.pauses_at(self._now_ms())

    def lanes(self) -> Collection[str]:
        with self._changed:
            return set(self._lanes)

    # Queries

    def get(self, id: str) -> Info | None:
        with self._changed:
            if entry := self._places.entries.get(id):
                return queries.see(self._places, entry, self._now_ms())
            names = self._places.find_buried(id)
            return queries.see_buried(self._places.buried[names[-1]]) if names else None

    async def aget(self, id: str) -> Info | None:
        return self.get(id)

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        with self._changed:
            entries = queries.next_waiting(self._places, queue, count, key)
            return [queries.see(self._places, entry, self._now_ms()) for entry in entries]

    def failed(self, count: int, offset: int = 0) -> list[Info]:
        with self._changed:
            newest_first = list(reversed(self._places.buried.values()))
            return [queries.see_buried(buried) for buried in newest_first[offset : offset + count]]

    def counts(self) -> Counts:
        with self._changed:
            return queries.count(self._places, self._now_ms())

    def audit(self) -> Audit:
        with self._changed:
            return queries.audit(self._places, self._now_ms())

    def find_alarms(self, queue: str, key: str, pks: Sequence[str]) -> list[AlarmInfo]:
        check_batch(pks)
        with self._changed:
            now_ms = self._now_ms()
            seen = [queries.see_alarm(self._places, (queue, key), pk, now_ms) for pk in pks]
            return [alarm for alarm in seen if alarm is not None]

    def alarms(self, queue: str, key: str, *, after: str = "", count: int = BATCH) -> tuple[list[AlarmInfo], str]:
        with self._changed:
            return queries.page_of_alarms(self._places, (queue, key), after, count)

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        with self._changed:
            return self._state.heartbeat(worker, self._now_ms())._replace(lanes=set(self._lanes))

    def leave(self, worker: str) -> None:
        with self._changed:
            self._state.leave(worker)

    def workers(self) -> list[WorkerInfo]:
        with self._changed:
            return self._state.workers_at(self._now_ms())

    def report(self) -> ServerReport:
        server, durability = _("memory of this process"), _("everything is lost when this process ends")
        return ServerReport(server, durability, now_ms=self._now_ms())

    # Time

    def _now_ms(self) -> int:
        return math.floor(self._clock_ms())

    def _due_ms(self, delay_ms: int, at_ms: int | None = None) -> int:
        if at_ms is not None:
            return max(at_ms, self._now_ms())
        return math.ceil(self._clock_ms()) + delay_ms  # sent at 0.9 ms, a delay of 1 ends at 2: 1 would be early
