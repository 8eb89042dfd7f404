"""The worker's side: claims from what a connection has delivered, and the ends of its leases.

A lease is a message that is not acknowledged. Whatever goes back is published again first, and then acknowledged.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

from amqp import Connection

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    BuriedInfo,
    Claims,
    LeaseId,
    Pair,
    SettleAction,
    Transition,
    Upkept,
    Want,
    check_batch,
    pages,
)
from django_delayq.brokers.rabbitmq import buried, outgoing
from django_delayq.brokers.rabbitmq.boxes import Arrival
from django_delayq.brokers.rabbitmq.clock import Clock
from django_delayq.brokers.rabbitmq.inbox import Inbox
from django_delayq.brokers.rabbitmq.leases import Lease, Leases
from django_delayq.brokers.rabbitmq.link import Link
from django_delayq.brokers.rabbitmq.locations import HEARTBEAT_S, parse_location
from django_delayq.brokers.rabbitmq.names import Names, SetName
from django_delayq.brokers.rabbitmq.outgoing import Outgoing
from django_delayq.brokers.rabbitmq.publishing import Publisher
from django_delayq.brokers.rabbitmq.settling import End, after_lapse, again, lapsed, successor, told_of, unclaimed
from django_delayq.brokers.rabbitmq.silence import Silence
from django_delayq.brokers.rabbitmq.waker import Waker
from django_delayq.conf import Alias
from django_delayq.core.transitions import INTERRUPT_MS
from django_delayq.errors import DelayqError

INTERRUPTED_S = INTERRUPT_MS / 1000
UNWANTED_S = 1.0
TRIM_EVERY_S = 10.0


class Receiver:
    """The worker's verbs of `django_delayq.brokers.base.Broker`, on the connection that consumes."""

    def __init__(self, alias: Alias, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        location = parse_location(alias.location)
        self._options = alias.options
        self._names = Names(alias.options.prefix)
        self._publisher = Publisher(location, self._names)
        self._clock = Clock(wall, monotonic)
        self._link = Link(location, self._names.prefix, HEARTBEAT_S)
        self._silence = Silence(location, self._names)
        self._inbox = Inbox(self._names, self._clock, self._forget)
        self._leases = Leases()
        self._leaving: list[Arrival] = []  # to be given back, and not claimed any more
        self._buried: list[BuriedInfo] = []  # since the last upkeep, as their leases had lapsed
        self._reclaimed = 0  # likewise
        self._waker = Waker()
        self._wanted: list[SetName] = []
        self._has_store = alias.store is not None
        self._known_built = False
        self._trim_at = 0.0

    def wake(self) -> None:
        self._waker.wake()

    @property
    def pauses_heard(self) -> int:
        return self._inbox.news

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        wants = [want for want in wants if want.count > 0 and not self._silence.covers((want.queue, want.key))]
        names = [(want.queue, want.key) for want in wants]
        with self._receiving(names):
            for want, name in zip(wants, names, strict=True):
                with self._silence.using(name):
                    self._inbox.consume(name, min(want.count, BATCH))
            self._take_in()
            self._inbox.await_arrivals(names)
            self._recover()
            claims = Claims([], [], self._clock.now_ms(), None)
            self._wanted = []
            for want, name in zip(wants, names, strict=True):
                room = BATCH - len(claims.messages) - len(claims.alarms)
                taken = list(self._inbox.take(name, min(want.count, room), want.at_once))
                short = want.count - self._lease(taken, claims, lease_ms)
                claims.left = claims.left or len(taken) == room < want.count
                if short:
                    self._wanted.append(name)  # a set that filled its hands is not waited for
                with self._silence.using(name):
                    self._inbox.consume(name, min(short, BATCH))
            claims.messages.sort(key=lambda message: message.due_ms)
            claims.left = claims.left or any(self._inbox.boxes[name].ready for name in names)
            claims.next_due_ms = self._next_due_ms(names, claims)
            return claims

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        return pairs  # the server is asked for what a consumer wants, of each queue by itself

    def _take_in(self) -> None:
        self._inbox.drain()
        self._inbox.ripen()
        self._recover()
        self._leases.lose_adrift(self._clock.monotonic())

    def _lease(self, arrivals: Iterable[Arrival], claims: Claims, lease_ms: int) -> int:
        """Gives how many are claimed: a double fills no hand, nor does that with which a lease goes on."""
        before = len(claims.messages) + len(claims.alarms)
        until = self._clock.monotonic() + lease_ms / 1000
        for arrival in arrivals:
            if arrival.is_alarm:
                claims.alarms.append(self._leases.lease_alarm(arrival, until))
            elif self._leases.is_double(arrival):
                self._inbox.acknowledge([arrival.tag])
            elif not self._leases.take_up(arrival, until):
                claims.messages.append(self._leases.lease(arrival, until))
        return len(claims.messages) + len(claims.alarms) - before

    def _next_due_ms(self, names: Sequence[SetName], claims: Claims) -> int | None:
        if claims.left:
            return claims.now_ms
        ready_at = self._inbox.next_ready_at(names)
        return None if ready_at == math.inf else claims.now_ms + self._clock.ms_until(ready_at)

    def claim_suspect(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        names = [(want.queue, want.key) for want in wants if want.count > 0]
        claims = Claims([], [], self._clock.now_ms(), None)
        with self._receiving(names):
            for name in names:
                arrival = self._inbox.get(self._names.suspect(*name), name)
                if arrival is not None:
                    self._lease([arrival], claims, lease_ms)
                    break
        return claims

    def settle(self, settlements: Sequence[Transition]) -> list[bool | None]:
        check_batch(settlements)
        with self._receiving():
            answers: list[bool | None] = []
            ends: dict[Lease, Outgoing | None] = {}
            for settlement in settlements:
                lease = self._leases.find(settlement.id, settlement.token)
                if lease is None or lease in ends:
                    answers.append(False)
                elif self._leases.is_adrift(lease):
                    answers.append(None)
                elif settlement.action is SettleAction.INTERRUPT:
                    answers.append(not lease.interrupted)
                    lease.until = self._clock.monotonic() + INTERRUPTED_S
                    lease.interrupted = True
                else:
                    answers.append(True)
                    ends[lease] = successor(self._names, lease.arrival, settlement, self._clock)
            self._end(ends)
            return answers

    def _end(self, ends: Mapping[Lease, Outgoing | None]) -> None:
        """End leases, each with what takes the place of its message."""
        self._replace([(lease.arrival, following) for lease, following in ends.items()])
        for lease in ends:
            self._leases.end(lease)

    def _replace(self, ends: Sequence[End]) -> None:
        """Publish, then acknowledge: what dies between the two is there twice, and never lost.

        What was to take a place at a try before still does, under its uid: it may be there, though nobody was told.
        """
        out = []
        for arrival, following in ends:
            arrival.following = arrival.following or following
            if arrival.following is not None and not arrival.following.confirmed:
                out.append(arrival.following)
        for page in pages(out, BATCH):
            self._publisher.publish(page)
        self._inbox.acknowledge(arrival.tag for arrival, _ in ends)

    def drop_alarms(self, alarms: Sequence[Alarm], again: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)
        check_batch(again)
        with self._receiving():
            self._publisher.publish(self._packed(again))
            self._inbox.acknowledge(arrival.tag for alarm in alarms for arrival in self._leases.end_alarm(alarm))

    def _packed(self, alarms: Sequence[Alarm]) -> list[Outgoing]:
        return [outgoing.alarm(self._names, alarm, self._clock) for alarm in alarms]

    def renew(self, leases: Sequence[LeaseId], lease_ms: int) -> list[bool | None]:
        check_batch(leases)
        with self._receiving() as connection:
            self._take_in()
            connection.heartbeat_tick()  # who winds down does no upkeep
            self.wake()  # who sleeps on the socket would not hear of what was taken in here
            until = self._clock.monotonic() + lease_ms / 1000
            found = [self._leases.find(id, token) for id, token in leases]
            for lease in found:
                if lease is not None:
                    lease.until = until
            return [None if lease and self._leases.is_adrift(lease) else lease is not None for lease in found]

    def upkeep(self, *, lease_ms: int) -> Upkept:
        with self._receiving(self._inbox.boxes) as connection:
            connection.heartbeat_tick()
            self._take_in()
            self._lapse()
            self._give_back_misplaced()
            upkept = Upkept(self._clock.now_ms(), self._reclaimed, self._buried)
            upkept.suspects_due = sum(self._inbox.waiting(self._names.suspect(*name)) for name in self._inbox.boxes)
            next_end = self._leases.next_end()
            if next_end is not None:
                upkept.next_lease_end_ms = upkept.now_ms + self._clock.ms_until(next_end)
            upkept.alarms_lost = self._lost_alarms()
        self._publisher.repair_due()
        upkept.dropped = self._trim(upkept.now_ms)
        self._reclaimed, self._buried = 0, []  # not before: what an upkeep that fails has not told the next one tells
        return upkept

    def _lost_alarms(self) -> bool:
        if self._has_store and not self._known_built:
            self._known_built = self._publisher.entries().built
        return self._has_store and not self._known_built

    def _trim(self, now_ms: int) -> int:
        if self._clock.monotonic() < self._trim_at:
            return 0
        self._trim_at = self._clock.monotonic() + TRIM_EVERY_S
        oldest_ms = now_ms - self._options.error_retention
        with self._publisher.looking() as connection:
            return buried.trim(connection, self._names, oldest_ms, self._options.error_max)

    def _give_back_misplaced(self) -> None:
        """Give back what nobody here asks for, send what came early on its way again, and put what came when its queue
        was deleted into a new one.

        What was to leave and could not is never claimed: it may be there anew, though nobody was told.
        """
        self._leaving += [*self._inbox.unwanted(UNWANTED_S), *self._inbox.early()]
        while len(self._leaving) < BATCH and (stray := self._inbox.get(self._names.stray)) is not None:
            self._leaving.append(stray)
            self._publisher.mend()  # its queue is to be there, and bound
        self._replace(unclaimed(self._names, self._leaving, self._clock))
        self._leaving.clear()

    def _recover(self) -> None:
        """Go on with the leases of messages that lost connections had, or put them where they belong."""
        until = self._clock.monotonic() + self._options.lease / 1000
        self._inbox.lost = [each for each in self._inbox.lost if not self._leases.take_up(each, until)]
        ends = [
            (each, None if self._leases.is_spare(each) else lapsed(self._names, each, self._clock, each.note.uid))
            for each in self._inbox.lost
        ]
        self._replace(ends)
        self._inbox.lost.clear()  # not before: what could not be published is tried again
        self._note_lapsed(ends)

    def _lapse(self) -> None:
        now = self._clock.monotonic()
        leases = self._leases.lapsed(now)[:BATCH]
        ends = {lease: after_lapse(self._names, lease.arrival, lease.interrupted, self._clock) for lease in leases}
        self._end(ends)
        alarms = list(self._leases.lapsed_alarms(now))
        self._inbox.put_back(alarms)
        self._reclaimed += len(alarms)
        self._note_lapsed([(lease.arrival, following) for lease, following in ends.items()])

    def _note_lapsed(self, ends: Sequence[End]) -> None:
        """For the next upkeep to tell of."""
        told = told_of(self._names, ends)
        self._buried += told
        self._reclaimed += len(ends) - len(told)

    def _give_back(self) -> None:
        """Give back what is held and not claimed, and what was interrupted: a lost connection would count a crash."""
        with self._link.lock:
            if self._link.connection is None:
                return
            with self._receiving():
                self._leaving += self._inbox.everything()
                self._replace(unclaimed(self._names, self._leaving, self._clock))
                self._leaving.clear()
                hold_ms = int(INTERRUPTED_S * 1000)
                interrupted = self._leases.interrupted()
                self._end({lease: again(self._names, lease.arrival, hold_ms, self._clock) for lease in interrupted})

    def wait(self, timeout: float) -> bool:
        until = monotonic() + timeout
        heard = self.pauses_heard
        woken = False
        while not woken and heard == self.pauses_heard:
            left = min(until - monotonic(), self._next_ready_in_s())
            if left <= 0:
                break
            with self._waker.listening() as wake:
                woken = self._inbox.sleep(wake, left)
            try:
                with self._receiving():
                    self._inbox.drain()  # what came may be held for now: no reason to claim
                    self._inbox.tend_all(self._wanted)
            except DelayqError:
                break  # the next claim will tell
        return True  # nor may it come later than the next claim that a consumer is gone

    def _next_ready_in_s(self) -> float:
        """How long it is until a claim of what was wanted last may find something; infinite when nobody knows."""
        with self._link.lock:
            return self._inbox.next_ready_at(self._wanted) - self._clock.monotonic()

    def close(self) -> None:
        self.wake()
        with suppress(DelayqError):
            self._give_back()
        self._link.close()
        self._publisher.close()

    @contextmanager
    def _receiving(self, sets: Collection[SetName] = ()) -> Iterator[Connection]:
        """The connection that consumes. The queues of these sets are there."""
        with self._link.using() as connection:
            if not self._inbox.is_on(connection):
                self._begin_on(connection, sets)
            elif sets:
                self._publisher.declare(sets)
            yield connection

    def _begin_on(self, connection: Connection, sets: Collection[SetName]) -> None:
        """What the last connection had is gone. The messages of its leases are asked for, though no hand may be free:
        before others have them.

        What may fail and leave this connection as it is comes first: it is done again at the next use.
        """
        self._forget()
        leased = {name: count for name, count in self._leases.sets().items() if not self._silence.covers(name)}
        self._publisher.declare({*sets, *leased})
        self._inbox.attach(connection)
        self._leases.set_adrift(self._clock.monotonic())
        self._leaving.clear()
        for name, count in leased.items():
            with self._silence.using(name):
                self._inbox.consume(name, min(count, BATCH))

    def _forget(self) -> None:
        """Queues, and what was in them, may be gone."""
        self._publisher.mend()
        self._known_built = False
