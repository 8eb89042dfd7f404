"""Keep the workers, the pauses and the lanes in Redis: as fields of the hash `meta`.

Notices on the wake-up channel tell of pauses and lanes.
"""

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace

from django_delayq.brokers.base import Heard, NewMessage, Pause, T, WorkerInfo
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.client import (
    Call,
    Operation,
    as_ms,
    ask,
    clock_ms,
    colocated,
    gather,
    or_default,
    pairs,
    plain,
)
from django_delayq.brokers.redis.records import US
from django_delayq.brokers.redis.shards import Keys, load, read
from django_delayq.brokers.redis.waiter import PAUSES
from django_delayq.brokers.shared_state import HEARTBEAT_MS
from django_delayq.conf import Store
from django_delayq.core import codec
from django_delayq.core.errors import DataMismatch
from django_delayq.core.lanes import lanes_in, priority_of
from django_delayq.support.validation import MAX_NAME

_PAUSE = "pause:"
_LANE = "lane:"
_WORKER = "worker:"
FIELD_BYTES = 2**20
"""More bytes than a heartbeat takes. The next heartbeat removes a longer field: someone else wrote it."""
LANE_BYTES = len(_LANE) + 4 * MAX_NAME
"""The most bytes of a lane's field, which has no value. The next heartbeat removes a longer one."""
Fields = list[tuple[bytes, bytes]]


class RedisPresence:
    """The `Presence` and `Heartbeats` (brokers/base.py) in Redis."""

    def __init__(self, access: Access, store: Store | None) -> None:
        self._access = access
        self._store = store
        self._keys = access.shards.first
        self._pauses: list[Pause] = []  # as last read
        self._lanes: set[str] = set()  # the same

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        access = self._access
        both: list[Operation[Heard | None]] = [self._heartbeat(worker), access.layout.agree()]
        nothing: list[Heard | None] = [None, None]
        heard, _agreed = access.client.run(or_default(gather(both), nothing))
        if heard is None:  # not raised, because a worker must go on with the other nodes if this one is away
            access.maintenance.ask_all()
            return Heard(self._pauses)
        self._pauses = heard.pauses or []
        return heard

    def _heartbeat(self, worker: WorkerInfo) -> Operation[Heard]:
        """Record a heartbeat, note which workers are alive, and return them with the pauses in force and the lanes.

        With a store, the tables keep pauses and lanes: what Redis has of them is nobody's.
        """
        facts = asdict(worker)
        del facts["seen_ms"]
        beat = f"{_WORKER}{worker.name}", codec.dumps(facts), FIELD_BYTES, LANE_BYTES
        call = Call(load("heartbeat"), (self._keys.meta,), beat)
        ((now, flat),) = yield [call]
        now_ms, fields = int(now), pairs(flat)
        workers = _read_workers(now_ms, fields)
        self._access.ownership.learn(worker, workers, now_ms)
        if self._store is not None:
            return Heard(workers=workers)
        return Heard(_read_pauses(now_ms, fields), workers, _read_lanes(fields))

    def leave(self, worker: str) -> None:
        self._access.run(ask(plain("HDEL", self._keys.meta, f"{_WORKER}{worker}")))

    def workers(self) -> list[WorkerInfo]:
        return _read_workers(*self._access.run(_read_meta(self._keys)))

    def pause(self, pause: Pause) -> None:
        until = "" if pause.until_ms is None else str(pause.until_ms)
        value = f"{until}{US.decode()}{pause.reason}"
        field = _field(pause.queue, pause.key)
        self._access.run(ask(Call(load("pause"), (self._keys.meta,), (field, value, self._keys.channel, PAUSES))))

    def resume(self, queue: str | None, key: str | None) -> bool:
        return self._access.run(_resume(self._keys, queue, key))

    def pauses(self) -> list[Pause]:
        self._pauses = self._access.run(or_default(_pauses(self._keys), self._pauses))
        return self._pauses

    def lanes(self) -> Collection[str]:
        self._lanes = self._access.run(or_default(_lanes(self._keys), self._lanes))
        return self._lanes

    def announce_pauses(self) -> None:
        self._access.run(ask(plain("PUBLISH", self._keys.channel, PAUSES)))

    @property
    def pause_version(self) -> int:
        return self._access.waiter.pause_version


def _read_meta(keys: Keys) -> Operation[tuple[int, Fields]]:
    """Return the server's time, and all fields of the hash `meta`."""
    clock, fields = yield [colocated(keys.meta, "TIME"), read("HGETALL", keys.meta, most=FIELD_BYTES)]
    return clock_ms(clock), pairs(fields)


def _resume(keys: Keys, queue: str | None, key: str | None) -> Operation[bool]:
    """Drop a pause. Return whether it was in force."""
    before = yield from _pauses(keys)
    yield [plain("HDEL", keys.meta, _field(queue, key)), plain("PUBLISH", keys.channel, PAUSES)]
    return any((each.queue, each.key) == (queue, key) for each in before)


def _pauses(keys: Keys) -> Operation[list[Pause]]:
    return _read_pauses(*(yield from _read_meta(keys)))


def _lanes(keys: Keys) -> Operation[set[str]]:
    return _read_lanes((yield from _read_meta(keys))[1])


def _read_lanes(fields: Fields) -> set[str]:
    """Return the lanes to which messages were sent, given all fields of `meta`. A name that is too long is not ours."""
    named = (name.decode(errors="replace") for name, _ in fields if name.startswith(_LANE.encode()))
    named = (name for name in named if len(name) <= len(_LANE) + MAX_NAME)
    return {lane for name in named if priority_of(lane := name.removeprefix(_LANE))}


def noting_lanes(keys: Keys, messages: Iterable[NewMessage], sending: Operation[T]) -> Operation[T]:
    """Write the lanes of messages before they are sent, and notify every worker if any lane is new."""
    lanes = sorted(lanes_in(message.header.queue for message in messages))
    if lanes:
        (new,) = yield [plain("HSET", keys.meta, *(text for lane in lanes for text in (f"{_LANE}{lane}", "")))]
        if new:
            yield [plain("PUBLISH", keys.channel, PAUSES)]
    return (yield from sending)


def _read_workers(now_ms: int, fields: Fields) -> list[WorkerInfo]:
    """Return the workers whose heartbeat is at most 15 s old, given all fields of `meta`."""
    found = []
    for name, value in fields:
        if name.startswith(_WORKER.encode()):
            seen, _, facts = value.partition(US)
            seen_ms = as_ms(seen)
            if now_ms - seen_ms <= HEARTBEAT_MS:
                with contextlib.suppress(DataMismatch):  # not written by us
                    found.append(replace(codec.decode_data(facts, WorkerInfo), seen_ms=seen_ms))
    return sorted(found, key=lambda worker: worker.name)


def _read_pauses(now_ms: int, fields: Fields) -> list[Pause]:
    """Return the pauses in force, sorted by queue and key, given all fields of `meta`."""
    found = [pause for name, value in fields if (pause := _read_pause(name, value)) and pause.holds(now_ms)]
    return sorted(found, key=lambda pause: (pause.queue or "", pause.key or ""))


def _field(queue: str | None, key: str | None) -> str:
    """Return the field of a pause. It is unambiguous, because no name is empty and no queue has a colon in it."""
    return f"{_PAUSE}{queue or ''}:{key or ''}"


def _read_pause(name: bytes, value: bytes) -> Pause | None:
    """Return the pause in a field; None for any other field, and for one that someone else wrote."""
    try:
        field = name.decode()
        if not field.startswith(_PAUSE):
            return None
        queue, _, key = field.removeprefix(_PAUSE).partition(":")
        paused, until, reason = value.decode().split(US.decode(), 2)
        int(until or 0), int(paused)  # raises for any other text
        until_ms = as_ms(until.encode()) if until else None
        return Pause(queue or None, key or None, reason, until_ms, as_ms(paused.encode()))
    except ValueError:
        return None
