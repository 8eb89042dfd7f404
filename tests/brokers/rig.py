"""A broker under test with its time in hand, and short forms of the methods."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import redis

from django_delayq.brokers.base import (
    BATCH,
    AlarmIndex,
    Backend,
    Broker,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Enqueued,
    Header,
    Info,
    NewMessage,
    OnConflict,
    SettleAction,
    Timer,
    Transition,
    Window,
)
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias, Options, Store
from django_delayq.core import transitions
from django_delayq.core.kept import decode, encode
from django_delayq.core.message import State, WhileRunning
from django_delayq.core.transitions import Failure, Policy, Span
from tests.servers import ClusterServers, RabbitMQServer

LEASE_MS = 15_000
START_MS = 1_700_000_000_000
OPTIONS = Options(error_retention=3_600_000, error_max=5)


class AlarmTimer(Timer, Window, AlarmIndex, Protocol):
    """A timer that can be asked for its alarms, and up to when it has them."""


class Carrier(Backend, Protocol):
    """A broker that is a backend and a timer."""

    @property
    def timer(self) -> AlarmTimer: ...


class Rig:
    """One backend, and the timer in it. `advance` lets time pass without waiting for it; `now_us` is the clock that
    decides, in µs; what is
    bounded is so for each of the broker's `parts`."""

    def __init__(
        self,
        broker: Backend,
        timer: AlarmTimer,
        advance: Callable[[int], None],
        now_us: Callable[[], int],
        look: Callable[[str], Info | None] | None = None,
        parts: int = 1,
    ) -> None:
        self.broker = broker
        self.timer = timer
        self.parts = parts
        self.advance = advance
        self.now_us = now_us
        self.look = look or broker.queue.get
        """What is known of an id, also where the broker itself can't be asked for one."""

    @property
    def tells_of_all_pauses(self) -> bool:
        """Return whether a worker misses none for which it is not connected: then a heartbeat need not be answered."""
        store = self.broker.store
        return store is not None and store.broker.database is not None

    @property
    def carries_messages(self) -> bool:
        """Return whether there are messages: else it is a timer alone."""
        return not getattr(self.broker, "needs_store", False)

    def send(
        self,
        *ids: str,
        delay_ms: int | None = None,
        queue: str = "q",
        key: str = "k",
        body: bytes = b"{}",
        on_conflict: OnConflict = "keep",
        max_wait_ms: int | None = None,
        while_running: WhileRunning = "drop",
        **fields: Any,
    ) -> list[Enqueued]:
        """Put messages that are ready at once, or due after `delay_ms`."""
        header = Header(queue, key, **fields)
        at_ms = 0 if delay_ms is None else None
        puts = [
            NewMessage(
                id,
                header,
                body,
                delay_ms=delay_ms or 0,
                at_ms=at_ms,
                max_wait_ms=max_wait_ms,
                while_running=while_running,
            )
            for id in ids
        ]
        return self.broker.queue.enqueue(puts, on_conflict)

    def claim(self, count: int = 100, *, key: str = "k", queue: str = "q", worker: str = "w") -> list[Claimed]:
        """The messages that a claim of one set gives."""
        return self.broker.queue.claim([ClaimRequest(queue, key, count)], lease_ms=LEASE_MS, worker=worker).messages

    def claim_all(self, *, key: str = "k", queue: str = "q") -> list[Claimed]:
        """The messages that claims of one set give until there are no more: one may give fewer than are wanted."""
        claimed: list[Claimed] = []
        while more := self.claim(BATCH, key=key, queue=queue):
            claimed += more
        return claimed

    def claim_one(self, key: str = "k", queue: str = "q") -> Claimed:
        """The one message that is due."""
        (claimed,) = self.claim(key=key, queue=queue)
        return claimed

    def claim_suspect(self, key: str = "k", queue: str = "q") -> list[Claimed]:
        """The suspect that is due, if there is one."""
        return self.broker.queue.claim_suspect([ClaimRequest(queue, key, 1)], lease_ms=LEASE_MS, worker="w").messages

    def settle(self, claimed: Claimed, verb: SettleAction, **fields: Any) -> bool:
        """End the lease of one claimed message."""
        (held,) = self.broker.queue.apply([settlement(claimed, verb, **fields)])
        return held is True

    def lapse(self) -> None:
        """Let every lease run out, and the broker see it."""
        self.advance(LEASE_MS)
        self.broker.queue.maintain(lease_ms=LEASE_MS)

    def crash(self, times: int) -> None:
        """Let workers die that hold all that is due."""
        for _ in range(times):
            assert self.claim() or self.claim_suspect()
            self.lapse()

    def crash_child(self, claimed: Claimed) -> None:
        """Let the child process die that runs a claimed message."""
        assert self.settle(claimed, SettleAction.CRASH, error="its process died")

    def bury(self, *ids: str, **fields: Any) -> None:
        """Send messages and bury them."""
        self.send(*ids, **fields)
        for claimed in self.claim():
            assert self.settle(claimed, SettleAction.BURY, error="no good", detail="Traceback")

    def get(self, id: str) -> Info:
        """The message of this id, which must exist."""
        info = self.look(id)
        assert info is not None, f"{id!r} is nowhere"
        return info

    def states(self, *ids: str) -> list[State]:
        """The state of each id."""
        return [self.get(id).state for id in ids]

    def assert_ended(self, state: State, *ids: str) -> None:
        """Messages have finished or were cancelled: the rows of a store say which; without one nothing is kept."""
        kept = None if self.broker.store is None else state
        assert [info and info.state for info in map(self.look, ids)] == [kept] * len(ids)

    def assert_total(self, name: str, number: int) -> None:
        """Check how often a move was made, where that is counted."""
        if self.broker.store is None:  # a shared counter would make every send of a store wait for others
            assert self.total(name) == number

    def assert_counted(self, name: str, number: int) -> None:
        """Check how often a message left the broker."""
        assert self.total(name) == number

    def total(self, name: str) -> int:
        """One of the totals."""
        return self.broker.queue.counts().totals.get(name, 0)


def settlement(claimed: Claimed, verb: SettleAction, **fields: Any) -> Transition:
    """Return how the lease of a claimed message ends, as core/transitions.py has it."""
    assert claimed.header is not None
    return _after(claimed, verb, **fields)


def end_of(id: str, token: int, verb: SettleAction, queue: str, key: str, **fields: Any) -> Transition:
    """Return the end of a lease of which only its proof is known, of a message that has not failed before."""
    return settlement(Claimed(id, token, 0, Header(queue, key), b""), verb, **fields)


def _after(
    claimed: Claimed,
    verb: SettleAction,
    *,
    delay_ms: int = 0,
    error: str = "",
    detail: str = "",
    fingerprint: str = "",
    failed: bool = False,
    started_ms: int | None = None,
    ended_ms: int | None = None,
) -> Transition:
    span, failure, policy = Span(started_ms, ended_ms), Failure(error, detail, fingerprint), Policy()
    match verb:
        case SettleAction.FINISH:
            return transitions.finish(claimed, span)
        case SettleAction.RETRY:
            return transitions.fail(claimed, failure, policy, span, lambda _attempt: transitions.Again(delay_ms))
        case SettleAction.SNOOZE:
            return transitions.snooze(claimed, delay_ms, policy, span)
        case SettleAction.RELEASE:
            return transitions.release(claimed, delay_ms or None)
        case SettleAction.INTERRUPT:
            return transitions.interrupt(claimed, policy, span)
        case SettleAction.CRASH:
            return transitions.crash_alone(claimed, error, policy, span)
        case SettleAction.LAPSE:
            lapse = transitions.lapse(claimed, claimed.claimed_ms, at_most_once=False)
            return replace(lapse, lease_until_ms=None)  # only its token is known
        case SettleAction.BURY:
            return transitions.bury(claimed, failure, span, failed=failed)
        case SettleAction.CANCEL:
            return transitions.cancel(claimed, CancelRequest("", 0), span)


def claim_some(broker: Backend, wants: Sequence[ClaimRequest], worker: str = "w") -> list[Claimed]:
    """The messages of the first claim that gives some: what is due now may be due, or arrive, in a moment."""
    while not (messages := broker.queue.claim(wants, lease_ms=60_000, worker=worker).messages):
        broker.queue.wait(1)
    return messages


def by_id(messages: Sequence[Claimed]) -> list[Claimed]:
    """In the order of their ids: what was sent in one call may be due in different milliseconds."""
    return sorted(messages, key=lambda message: message.id)


def ids(messages: Sequence[Claimed] | Sequence[Info]) -> list[str]:
    """The ids, in the order given."""
    return [message.id for message in messages]


def memory_rig(options: Options = OPTIONS) -> Rig:
    """A memory broker on a clock that stands still until it is advanced."""
    now = [START_MS]

    def advance(ms: int) -> None:
        now[0] += ms

    broker = MemoryBroker(Alias("default", options=options), lambda: now[0])
    return Rig(broker, broker, advance, lambda: now[0] * 1000)


def real_time_memory_rig(options: Options = OPTIONS) -> Rig:
    """A memory broker on the machine's clock, which can be moved ahead."""
    ahead = [0]

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + ahead[0]

    def advance(ms: int) -> None:
        ahead[0] += ms

    broker = MemoryBroker(Alias("default", options=options), now_ms)
    return Rig(broker, broker, advance, lambda: now_ms() * 1000)


def stored_rig(clock: Rig, using: str = "default", options: Options = OPTIONS) -> Rig:
    """A store on a database, with the broker of another rig as its clock; time passes by making rows older, too."""
    from django_delayq.store import DatabaseBackend
    from django_delayq.store.alarms import schedule_window

    broker = DatabaseBackend(
        Alias("default", database=using, store=Store(), options=options), Store(), cast(Broker, clock.broker)
    )

    def advance(ms: int) -> None:
        older = ms + 1
        clock.timer.set_cursor_back(broker.database.now_ms())  # it may have been moved with the rows
        schedule_window(broker.database, clock.timer, older + 1_000)  # as workers do before that time comes
        age_rows(using, older)
        clock.advance(older)
        broker.queue.look_again()

    def now_us() -> int:
        return broker.database.now_ms() * 1000

    return Rig(broker, clock.timer, advance, now_us)


def alone_rig(using: str, options: Options = OPTIONS) -> Rig:
    """A store on a database that is its own timer."""
    from django_delayq.brokers.database import DatabaseBroker
    from django_delayq.store import DatabaseBackend

    alias = Alias("default", database=using, store=Store(), options=options)
    timer = DatabaseBroker(alias)
    broker = DatabaseBackend(alias, Store(), timer)

    def advance(ms: int) -> None:
        age_rows(using, ms + 1)
        timer.timer.forget()  # what it read has moved
        broker.queue.look_again()

    return Rig(broker, cast(AlarmTimer, timer.timer), advance, lambda: broker.database.now_ms() * 1000)


def age_rows(using: str, older: int) -> None:
    """Make all that a store holds older by so many ms."""
    from django.db.models import F

    from django_delayq.models import ErrorMessage, FinishMessage, HeartbeatRow, LimitRow, PauseRow, ReadyMessage

    ReadyMessage.objects.using(using).update(
        due_at=F("due_at") - older,
        scheduled_at=F("scheduled_at") - older,
        sent_at=F("sent_at") - older,
        expires_at=F("expires_at") - older,
        lease_until=F("lease_until") - older,
        first_at=F("first_at") - older,
    )
    kept = ReadyMessage.objects.using(using).filter(again__isnull=False)
    for pk, text in kept.values_list("pk", "again"):
        again = decode(str(text))
        again = replace(again, due_ms=again.due_ms - older, first_ms=again.first_ms - older)
        kept.filter(pk=pk).update(again=encode(again))
    for ended in (FinishMessage, ErrorMessage):
        ended.objects.using(using).update(ended_at=F("ended_at") - older)
    limits = LimitRow.objects.using(using)
    limits.update(
        line_ms=F("line_ms") - older,
        since_ms=F("since_ms") - older,
        looked_ms=F("looked_ms") - older,
        turn_us=F("turn_us") - older * 1000,
    )
    HeartbeatRow.objects.using(using).update(seen_ms=F("seen_ms") - older)
    for row in limits.all():
        row.slots = json.dumps({token: end - older for token, end in json.loads(row.slots).items()})
        row.save(update_fields=["slots"])
    PauseRow.objects.using(using).update(paused_at=F("paused_at") - older, until=F("until") - older)


def rabbitmq_rig(server: RabbitMQServer, options: Options = OPTIONS) -> Rig:
    """A RabbitMQ timer on clocks that can be moved ahead; what waits at the server is sent again with less to wait.

    It carries no messages: only the tests of alarms, pauses and workers are for it.
    """
    from tests.brokers.rabbitmq import PatientBroker, age

    ahead = [0.0]
    alias = Alias("default", location=server.url, options=options)
    broker = PatientBroker(alias, lambda: time.time() + ahead[0], lambda: time.monotonic() + ahead[0])

    def advance(ms: int) -> None:
        ahead[0] += (ms + 1) / 1000  # due times are rounded up to the next ms
        if ms:
            age(server, broker)

    return Rig(
        cast(Backend, broker),
        cast(AlarmTimer, broker),
        advance,
        lambda: int((time.time() + ahead[0]) * 1_000_000),
        _nothing,
    )


def _nothing(_id: str) -> None:
    """Look for a message: a timer has none."""


def redis_rig(
    url: str, client: redis.Redis, options: Options = OPTIONS, at: Callable[[str], redis.Redis] | None = None
) -> Rig:
    """A Redis broker; time passes by making all it holds older. `at` gives the client for a key, in a cluster."""
    from django_delayq.brokers.redis import RedisBroker
    from django_delayq.brokers.redis.shards import Shards

    age = client.register_script((Path(__file__).parent / "age.lua").read_text())
    shards = Shards(options.prefix, options.shards)

    def advance(ms: int) -> None:
        # 1 ms more: due times are rounded up to the next ms, and no wait for that must slow the tests.
        meta = shards.first.meta
        for tag, its_meta in [*((keys.tag, "") for keys in shards.all), (f"{meta}:", meta)]:
            age(args=[tag, its_meta, ms + 1], client=at(tag) if at else client)

        for server in {at(keys.tag) for keys in shards.all} if at else {client}:
            age_limits(server, options.prefix, ms + 1)

    def now_us() -> int:
        seconds, microseconds = client.time()
        return seconds * 1_000_000 + microseconds

    broker = RedisBroker(Alias("default", location=url, store=None, options=options))
    return Rig(broker, broker.timer, advance, now_us, parts=options.shards)


def age_limits(client: redis.Redis, prefix: str, ms: int) -> None:
    """Make the limits that a server holds older."""
    for key in client.scan_iter(f"{{{prefix}:limit:*"):
        name = key.decode().partition("}:")[2]
        if name.startswith("permits:"):
            for token, _ in client.zscan_iter(key):
                client.zincrby(key, -ms, token)
        elif name.startswith("line:"):
            last, since = map(int, (client.get(key) or b"0 0").split())
            client.set(key, f"{last - ms} {max(since - ms, 0)}", keepttl=True)
        else:
            client.set(key, int(client.get(key) or 0) - ms * 1000, keepttl=True)


def rig_on(cluster: ClusterServers, options: Options = OPTIONS) -> Rig:
    """A Redis broker on a cluster, with a shard on each of its primaries."""
    options = replace(options, shards=len(cluster.primaries))
    clients = {node: node.client() for node in cluster.primaries}
    return redis_rig(cluster.location, clients[cluster.primaries[0]], options, lambda key: clients[cluster.owner(key)])
