"""Queries: one message, the next ones, the buried ones, the figures. Operations, as `scripts.py` defines them."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nsmallest

from django_delayq.brokers.base import Header, earliest, pages
from django_delayq.brokers.figures import TOTALS, Counts, Info, SetCount, WorkerInfo
from django_delayq.brokers.meta import HEARTBEAT_MS
from django_delayq.brokers.redis.client import Call, Operation, Reply, colocated, plain
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.operations import find_entries
from django_delayq.brokers.redis.records import (
    US,
    as_int,
    entry_id,
    names_of_sets,
    unpack_message,
    unpack_state,
)
from django_delayq.brokers.redis.scripts import load
from django_delayq.core import codec
from django_delayq.core.errors import DataMismatch
from django_delayq.core.message import State

PAGE = 200
"""How many messages one call reads."""

OLDEST_MS = 1_000_000_000_000
"""No due time is as early as this (2001): such a score was written by someone else."""

_PER_MESSAGE = 7


def get(keys: Keys, id: str) -> Operation[Info | None]:
    """Return the message that waits or runs under the id, else the one buried last."""
    found = yield from _where(keys, [id], [])
    if found:
        return found[0]
    entries = yield from find_entries(keys, [id])
    if id not in entries:
        return None
    found = yield from look_at(keys, entries[id][-1:])
    return found[0] if found else None


def look_at(keys: Keys, entries: Sequence[bytes]) -> Operation[list[Info]]:
    """Return buried messages by their entries."""
    return _where(keys, entries, [])


def peek(keys: Keys, queue: str, count: int, key: str | None) -> Operation[list[Info]]:
    """Return the next `count` messages of a queue in due order, of one key when given, suspects too."""
    names = [name for name in (yield from set_names(keys)) if name.startswith(f"{queue}:")]
    if key is not None:
        names = [set_name(queue, key)]
    most = max(count, 1)
    while True:
        infos, is_all = yield from _nearest(keys, names, most)
        mine = [
            info
            for info in infos
            if info.header.queue == queue and key in (None, info.header.key) and info.state is not State.RUNNING
        ]
        if is_all or len(mine) >= count:
            return nsmallest(count, mine, key=lambda info: (info.due_ms, info.id))
        most *= 4  # places without a body, and alarms, are in the way


def _nearest(keys: Keys, names: Sequence[str], most: int) -> Operation[tuple[list[Info], bool]]:
    """Return the nearest messages of the sets, and suspects, as far as they have a body.

    Return also whether these are all that the sets have.
    """
    ranges = [plain("ZRANGE", keys.wait(name), 0, most - 1, "WITHSCORES") for name in names]
    *waiting, suspects = yield [*ranges, plain("ZRANGE", keys.suspect, 0, PAGE - 1, "WITHSCORES")]
    ids = [(float(score), id) for reply in [*waiting, suspects] for id, score in pairs(reply) if id[:1] != US]
    infos: list[Info] = []
    for page in pages(nsmallest(most + len(suspects) // 2, ids), PAGE):
        infos += yield from _where(keys, [id for _, id in page], names)
    return infos, all(len(reply) < 2 * most for reply in waiting)


def errors(keys: Keys, count: int, offset: int) -> Operation[list[Info]]:
    """Return buried messages, newest first."""
    infos: list[Info] = []
    while len(infos) < count:  # entries without a body don't count
        (entries,) = yield [plain("ZREVRANGE", keys.error, offset, offset + min(count - len(infos), PAGE) - 1)]
        if not entries:
            break
        offset += len(entries)
        infos += yield from _where(keys, entries, [])
    return infos


def counts(keys: Keys) -> Operation[Counts]:
    """Return all figures. They are not of one moment, but those of the audit are."""
    names = yield from set_names(keys)
    (clock,) = yield [colocated(keys.msg, "TIME")]
    now = clock_ms(clock)
    running, suspects, error, totals, *figures = yield [
        plain("ZCARD", keys.running),
        plain("ZCARD", keys.suspect),
        plain("ZCARD", keys.error),
        plain("HGETALL", keys.count),
        *(call for name in names for call in _set_calls(keys.wait(name), now)),
    ]
    waiting = [_set_count(name, *figures[3 * i : 3 * i + 3]) for i, name in enumerate(sorted(names)) if figures[3 * i]]
    return Counts(now, waiting, running, suspects, error, read_totals(totals))


def _set_calls(wait: str, now: int) -> list[Call]:
    return [plain("ZCARD", wait), plain("ZCOUNT", wait, "-inf", now), _first(wait)]


def _first(wait: str) -> Call:
    return plain("ZRANGEBYSCORE", wait, OLDEST_MS, "+inf", "WITHSCORES", "LIMIT", 0, 1)


def _set_count(name: str, size: int, ready: int, first: list[bytes]) -> SetCount:
    queue, _, key = name.partition(":")
    return SetCount(queue, key, size - ready, ready, as_int(first[1]) if first else None)


def set_names(keys: Keys) -> Operation[list[str]]:
    """Return the names of all wait sets."""
    (names,) = yield [plain("ZRANGE", keys.sets, 0, -1)]
    return names_of_sets(names)


def read_totals(reply: list[bytes]) -> dict[str, int]:
    """Return all totals, those that are 0 too."""
    told = dict(pairs(reply))
    return {name: as_int(told.get(name.encode(), b"0")) for name in TOTALS}


def workers(keys: Keys) -> Operation[list[WorkerInfo]]:
    """Return the workers whose heartbeat is at most 15 s old."""
    clock, fields = yield [colocated(keys.meta, "TIME"), plain("HGETALL", keys.meta)]
    return read_workers(clock_ms(clock), fields)


def read_workers(now_ms: int, fields: list[bytes]) -> list[WorkerInfo]:
    """Return the workers whose heartbeat is at most 15 s old, given all fields of the meta hash."""
    found = []
    for name, value in pairs(fields):
        seen, _, said = value.partition(US)
        if name.startswith(b"worker:") and now_ms - as_int(seen) <= HEARTBEAT_MS:
            with contextlib.suppress(DataMismatch):  # not written by us
                found.append(replace(codec.decode_data(said, WorkerInfo), seen_ms=as_int(seen)))
    return sorted(found, key=lambda worker: worker.name)


def _where(keys: Keys, ids: Sequence[str | bytes], names: Sequence[str]) -> Operation[list[Info]]:
    """Return what is known of each id that is somewhere.

    Where the wait set of an id was not named, ask again with it.
    """
    fixed = (keys.msg, keys.state, keys.running, keys.suspect, keys.error)
    while True:
        (reply,) = yield [Call(load("where"), [*fixed, *map(keys.wait, names)], ids)]
        unnamed = names_of_sets(filter(None, reply[_PER_MESSAGE::_PER_MESSAGE]))
        if set(unnamed) <= set(names):
            break
        names = [*names, *unnamed]
    found = (_see(id, reply[1 + i * _PER_MESSAGE :], int(reply[0])) for i, id in enumerate(ids))
    return [info for info in found if info is not None]


def _see(id: str | bytes, values: list[Reply], now: int) -> Info | None:
    message, state, running, suspect, error, wait, _ = values[:_PER_MESSAGE]
    place = running or suspect or error or wait
    if not message or not place:
        return None
    header, body = unpack_message(message)
    record = unpack_state(state)
    name = entry_id(id) if isinstance(id, bytes) else id
    at = as_int(place)
    due = record.due_ms if record.due_ms is not None else at
    info = Info(name, State.PENDING, due, header or Header("?", "?"), body)
    info.failures, info.crashes, info.error, info.detail = record.failures, record.crashes, record.error, record.detail
    info.suspect = bool(suspect)
    if running:
        info.state, info.holder, info.lease_end_ms = State.RUNNING, record.worker, at
    elif error:
        info.state, info.buried_ms = State.ERROR, at
    else:
        info.due_ms = at
        info.state = State.READY if at <= now else State.PENDING
    return info


def clock_ms(reply: list[bytes]) -> int:
    """Return in ms what TIME answered."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def pairs(reply: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return a flat reply as pairs: the fields of a hash, or the members and scores of a zset."""
    return list(zip(reply[::2], reply[1::2], strict=True))


def merge_counts(shards: Sequence[Counts]) -> Counts:
    """Merge all figures."""
    return Counts(
        now_ms=max(one.now_ms for one in shards),
        waiting=_merge_sets(found for one in shards for found in one.waiting),
        running=sum(one.running for one in shards),
        suspects=sum(one.suspects for one in shards),
        error=sum(one.error for one in shards),
        totals=sum_totals(one.totals for one in shards),
    )


def _merge_sets(found: Iterable[SetCount]) -> list[SetCount]:
    merged: dict[tuple[str, str], SetCount] = {}
    for one in found:
        seen = merged.setdefault((one.queue, one.key), SetCount(one.queue, one.key, 0, 0, None))
        seen.pending += one.pending
        seen.ready += one.ready
        seen.next_due_ms = earliest(seen.next_due_ms, one.next_due_ms)
    return [merged[name] for name in sorted(merged)]


def sum_totals(totals: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sum of each total."""
    total: Counter[str] = Counter()
    for one in totals:
        total.update(one)
    return dict(total)
