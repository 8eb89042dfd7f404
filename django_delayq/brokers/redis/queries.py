"""Queries: one message, the next ones, the buried ones, the figures, all that waits, and the audit.

Operations, as `client/calls.py` defines them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

from django_delayq.brokers.base import Header, earliest, pages
from django_delayq.brokers.redis.client import Call, Operation, Reply, as_int, clock_ms, colocated, pairs, plain
from django_delayq.brokers.redis.operations import find_entries
from django_delayq.brokers.redis.records import US, entry_id, unpack_message, unpack_state
from django_delayq.brokers.redis.shards import Keys, load, names_of_sets, set_name
from django_delayq.core.message import State
from django_delayq.core.requests import LEFT, TOTALS, Audit, Counts, Info, SetCount

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
    found = yield from _where(keys, entries[id][-1:], [])
    return found[0] if found else None


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
    """Return the messages of the wait sets that are due first, and suspects, each if it has a body.

    Return also whether the sets have no more.
    """
    ranges = [plain("ZRANGE", keys.wait(name), 0, most - 1, "WITHSCORES") for name in names]
    *waiting, suspects = yield [*ranges, plain("ZRANGE", keys.suspect, 0, PAGE - 1, "WITHSCORES")]
    ids = [(float(score), id) for reply in [*waiting, suspects] for id, score in pairs(reply) if id[:1] != US]
    infos: list[Info] = []
    for page in pages(nsmallest(most + len(suspects) // 2, ids), PAGE):
        infos += yield from _where(keys, [id for _, id in page], names)
    return infos, all(len(reply) < 2 * most for reply in waiting)


def failed(keys: Keys, count: int, offset: int) -> Operation[list[Info]]:
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


def _where(keys: Keys, ids: Sequence[str | bytes], names: Sequence[str]) -> Operation[list[Info]]:
    """Return each message that is in any place, looking again where it waits in a set that `names` does not have."""
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


class Waiting(NamedTuple):
    """One waiting message as it is stored."""

    id: str
    due_ms: int
    header: Header
    body: bytes
    failures: int


class Place(NamedTuple):
    """A position in a wait set: the last entry that was read, and its number among the entries of its due time."""

    due_ms: int
    last: bytes = b""
    number: int = 0


Page = tuple[list[Waiting], Place | None]


def scan(keys: Keys, name: str, place: Place, last_ms: int, count: int) -> Operation[Page]:
    """Return about `count` messages of a wait set that are due from `place` until `last_ms`, and where to go on.

    The next place is None at the end. A message is given once if it waits all the while and its due time stays. For
    that, entries are read in the order of due times and then of ids, and each page is read from the last entry of the
    page before. If that entry has left, it is read from further ahead.
    """
    offset, most = max(place.number - 1, 0), count + 1
    while True:
        between = (place.due_ms, last_ms, "WITHSCORES", "LIMIT", offset, most)
        (reply,) = yield [plain("ZRANGEBYSCORE", keys.wait(name), *between)]
        found = [(as_int(score), id) for id, score in pairs(reply)]
        if not offset or (found and found[0] <= (place.due_ms, place.last)):
            break
        offset = max(offset - most, 0)
    messages = yield from _messages(keys, [entry for entry in found if entry > (place.due_ms, place.last)])
    if len(found) < most:
        return messages, None
    due_ms, id = max(
        found[-1], (place.due_ms, place.last)
    )  # the page may end before the last entry, if many have come before that
    number = sum(each == due_ms for each, _ in found)
    return messages, Place(due_ms, id, number + offset if due_ms == place.due_ms else number)


def _messages(keys: Keys, found: Sequence[tuple[int, bytes]]) -> Operation[list[Waiting]]:
    own = [(due_ms, id) for due_ms, id in found if id[:1] != US]  # the others are alarms
    if not own:
        return []
    ids = [id for _, id in own]
    bodies, states = yield [plain("HMGET", keys.msg, *ids), plain("HMGET", keys.state, *ids)]
    messages = []
    for (due_ms, id), message, state in zip(own, bodies, states, strict=True):
        header, body = unpack_message(message or b"")  # it may have left meanwhile
        if header is not None:
            failures = unpack_state(state).failures if state else 0
            messages.append(Waiting(id.decode(errors="replace"), due_ms, header, body, failures))
    return messages


# The audit: every place, a page at a time, then the totals against the sets in one atomic look.

AUDIT_PAGE = 250
NO_PLACE = "no place"  # in words of lua/misplaced.lua
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last instant that can be sent; a later one was written by someone else."""


def audit(keys: Keys) -> Operation[Audit]:
    """Return the audit of one shard: totals, messages in each place, and differences.

    A difference names its message where reading the places page by page finds it.
    """
    differences, alarms = yield from _walk(keys)
    reply = yield from _look(keys)
    _, bodies, _, running, suspects, suspects_due, error, totals_reply, pending, ready, _ = reply
    totals = read_totals(totals_reply)
    places = {
        "pending": pending + suspects - suspects_due - alarms["pending"],
        "ready": ready + suspects_due - alarms["ready"],
        "running": running - alarms["running"],
        "error": error,
    }
    accounted = sum(places.values()) + sum(totals[name] for name in LEFT)
    if accounted != totals["sent"]:
        differences.append(f"{totals['sent']} sent, but {accounted} accounted for")
    if bodies != sum(places.values()):
        differences.append(f"{bodies} bodies, but {sum(places.values())} places")
        differences += yield from _bodies_without_place(keys)
    return Audit(totals, places, list(dict.fromkeys(differences)))


def _look(keys: Keys) -> Operation[list[Any]]:
    """Return the answer of lua/audit.lua, called again until its keys include every wait set that exists."""
    fixed = (keys.msg, keys.state, keys.running, keys.suspect, keys.error, keys.count, keys.sets)
    names = yield from set_names(keys)
    while True:
        (reply,) = yield [Call(load("audit"), [*fixed, *map(keys.wait, names)], ())]
        unnamed = names_of_sets(reply[-1])
        if not unnamed:
            return reply  # type: ignore[no-any-return]
        names += unnamed


def _walk(keys: Keys) -> Operation[tuple[list[str], dict[str, int]]]:
    """Read every place page by page. Return the differences, and how many alarms are in each (they have no body)."""
    names = yield from set_names(keys)
    (clock,) = yield [colocated(keys.msg, "TIME")]
    now = clock_ms(clock)
    wrong: list[str] = []
    alarms = {"pending": 0, "ready": 0, "running": 0}
    for place in [*map(keys.wait, names), keys.running, keys.suspect, keys.error]:
        cursor: int | bytes = 0
        while True:
            ((cursor, page),) = yield [plain("ZSCAN", place, cursor, "COUNT", AUDIT_PAGE)]
            members = dict(zip(page[::2], page[1::2], strict=True))
            if place != keys.error:
                wrong += _timeless(place, members)
            for score in (members.pop(member) for member in list(members) if member[:1] == b"\x1f"):
                alarms["running" if place == keys.running else "ready" if float(score) <= now else "pending"] += 1
            misplaced = yield from _misplaced(keys, place, members)
            # What is in no place has left this one since it was read, or it has none: then the totals don't add up.
            wrong += [_difference(place, member, what) for member, what in misplaced if what != NO_PLACE]
            if int(cursor) == 0:
                break
    return wrong, alarms


def _timeless(place: str, members: Mapping[bytes, bytes]) -> list[str]:
    """Return a difference for each entry whose due time or end of lease never comes, so that it would stay for good."""
    return [
        f"{entry_id(member)!r} in {place}: its time never comes ({score.decode()})"
        for member, score in members.items()
        if float(score) > LAST_MS
    ]


def _bodies_without_place(keys: Keys) -> Operation[list[str]]:
    wrong: list[str] = []
    cursor: int | bytes = 0
    while True:
        ((cursor, page),) = yield [plain("HSCAN", keys.msg, cursor, "COUNT", AUDIT_PAGE)]
        by_place: dict[str, list[bytes]] = {}
        for id, message in zip(page[::2], page[1::2], strict=True):
            header, _ = unpack_message(message)
            place = keys.wait(set_name(header.queue, header.key)) if header else keys.running
            by_place.setdefault(place, []).append(id)
        for place, ids in by_place.items():
            misplaced = yield from _misplaced(keys, place, ids)
            wrong += [_difference(place, member, what) for member, what in misplaced]
        if int(cursor) == 0:
            return wrong


def _misplaced(keys: Keys, place: str, members: Iterable[bytes]) -> Operation[list[tuple[bytes, str]]]:
    """Return the members that are not in this place now, have no body or are in two places, each with the fault."""
    members = list(members)
    if not members:
        return []
    (reply,) = yield [Call(load("misplaced"), (keys.msg, keys.running, keys.suspect, keys.error, place), members)]
    return [(member, what.decode()) for member, what in zip(reply[::2], reply[1::2], strict=True)]


def _difference(place: str, member: bytes, what: str) -> str:
    return f"{entry_id(member)!r} in {place}: {what}"


def merge_audits(shards: Sequence[Audit]) -> Audit:
    """Merge audits. Each shard is compared with its own totals, so one can't make up for what is missing in another."""
    return Audit(
        totals=sum_totals(one.totals for one in shards),
        places=sum_totals(one.places for one in shards),
        differences=[difference for one in shards for difference in one.differences],
        notes=[note for one in shards for note in one.notes],
    )
