"""Query Redis: one message, the next ones, the buried ones, the counts, all that waits, and the audit.

These are operations (client/calls.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from django_delayq.brokers.base import Header, Page, Place, Waiting, earliest, pages
from django_delayq.brokers.redis.client import Call, Operation, Reply, as_int, as_ms, clock_ms, colocated, pairs, plain
from django_delayq.brokers.redis.operations import find_entries
from django_delayq.brokers.redis.records import (
    US,
    entry_id,
    kept_due_ms,
    merged_into,
    merged_into_kept,
    unpack_message,
    unpack_state,
)
from django_delayq.brokers.redis.shards import Keys, load, names_of_sets, read, set_name
from django_delayq.core.message import State
from django_delayq.core.requests import LEFT, TOTALS, Audit, Counts, Info, SetCount
from django_delayq.support.timestamps import LAST_MS

PAGE = 200
"""How many messages one call reads."""

OLDEST_MS = 1_000_000_000_000
"""A score before this one (in 2001) is no due time of ours: someone else wrote it."""

_PER_MESSAGE = 9


def get(keys: Keys, id: str) -> Operation[Info | None]:
    """Return the message with this id that waits or runs, else the one that was buried last, else None."""
    found = yield from _where(keys, [id], [])
    if found:
        return found[0]
    entries = yield from find_entries(keys, [id])
    if id not in entries:
        return None
    found = yield from _where(keys, entries[id][-1:], [])
    return found[0] if found else None


def peek(keys: Keys, queue: str, count: int, key: str | None) -> Operation[list[Info]]:
    """Return the next `count` messages that wait in a queue, of one key or of all, in due order, with suspects."""
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
        most *= 4  # entries without a body, and alarms, were among those that were read


def _nearest(keys: Keys, names: Sequence[str], most: int) -> Operation[tuple[list[Info], bool]]:
    """Return the messages that are due first in these wait sets, and suspects. Leave out entries without a body.

    Also return whether the sets have no more entries.
    """
    ranges = [read("ZRANGE", keys.wait(name), 0, most - 1, "WITHSCORES") for name in names]
    *waiting, suspects = yield [*ranges, read("ZRANGE", keys.suspect, 0, PAGE - 1, "WITHSCORES")]
    ids = [(float(score), id) for reply in [*waiting, suspects] for id, score in pairs(reply) if id[:1] != US]
    infos: list[Info] = []
    for page in pages(nsmallest(most + len(suspects) // 2, ids), PAGE):
        infos += yield from _where(keys, [id for _, id in page], names)
    return infos, all(len(reply) < 2 * most for reply in waiting)


def failed(keys: Keys, count: int, offset: int) -> Operation[list[Info]]:
    """Return buried messages, newest first."""
    infos: list[Info] = []
    while len(infos) < count:  # entries without a body don't count
        (entries,) = yield [read("ZREVRANGE", keys.error, offset, offset + min(count - len(infos), PAGE) - 1)]
        if not entries:
            break
        offset += len(entries)
        infos += yield from _where(keys, entries, [])
    return infos


def counts(keys: Keys) -> Operation[Counts]:
    """Return all counts of one shard. Unlike the counts of the audit, they are not read at one moment."""
    names = yield from set_names(keys)
    (clock,) = yield [colocated(keys.msg, "TIME")]
    now = clock_ms(clock)
    running, suspects, error, totals, *figures = yield [
        plain("ZCARD", keys.running),
        plain("ZCARD", keys.suspect),
        plain("ZCARD", keys.error),
        read("HGETALL", keys.count),
        *(call for name in names for call in _set_calls(keys.wait(name), now)),
    ]
    waiting = [_set_count(name, *figures[3 * i : 3 * i + 3]) for i, name in enumerate(sorted(names)) if figures[3 * i]]
    return Counts(now, waiting, running, suspects, error, read_totals(totals))


def _set_calls(wait: str, now: int) -> list[Call]:
    return [plain("ZCARD", wait), plain("ZCOUNT", wait, "-inf", now), _first(wait)]


def _first(wait: str) -> Call:
    return read("ZRANGEBYSCORE", wait, OLDEST_MS, "+inf", "WITHSCORES", "LIMIT", 0, 1)


def _set_count(name: str, size: int, ready: int, first: list[bytes]) -> SetCount:
    queue, _, key = name.partition(":")
    return SetCount(queue, key, size - ready, ready, as_ms(first[1]) if first else None)


def set_names(keys: Keys) -> Operation[list[str]]:
    """Return the names of all wait sets."""
    (names,) = yield [read("ZRANGE", keys.sets, 0, -1)]
    return names_of_sets(names)


def read_totals(reply: list[bytes]) -> dict[str, int]:
    """Return all totals, including those that are 0."""
    counted = dict(pairs(reply))
    return {name: as_int(counted.get(name.encode(), b"0")) for name in TOTALS}


def _where(keys: Keys, ids: Sequence[str | bytes], names: Sequence[str]) -> Operation[list[Info]]:
    """Return the messages with these ids that are in any place. `names` are wait sets that they may be in.

    If a message belongs to another wait set, the script is called again with that set among its keys.
    """
    while True:
        (reply,) = yield [_look_for(keys, ids, names)]
        unnamed = names_of_sets(filter(None, reply[_PER_MESSAGE::_PER_MESSAGE]))
        if set(unnamed) <= set(names):
            break
        names = [*names, *unnamed]
    found = (_see(id, reply[1 + i * _PER_MESSAGE :], int(reply[0])) for i, id in enumerate(ids))
    return [info for info in found if info is not None]


def _look_for(keys: Keys, ids: Sequence[str | bytes], names: Sequence[str]) -> Call:
    fixed = (keys.msg, keys.state, keys.running, keys.suspect, keys.error, keys.again)
    return Call(load("where"), [*fixed, *map(keys.wait, names)], (keys.most_bytes, *ids))


def _see(id: str | bytes, values: list[Reply], now: int) -> Info | None:
    message, state, running, suspect, error, wait, merged, kept, _ = values[:_PER_MESSAGE]
    place = running or suspect or error or wait
    if not message or not place:
        return None
    header, body = unpack_message(message)
    record = unpack_state(state)
    name = entry_id(id) if isinstance(id, bytes) else id
    at = as_ms(place)
    due = record.due_ms if record.due_ms is not None else at
    info = Info(name, State.PENDING, due, header or Header("?", "?"), body)
    info.failures, info.crashes, info.error, info.detail = record.failures, record.crashes, record.error, record.detail
    info.suspect = bool(suspect)
    info.merged = merged_into(merged, info.header.sent_ms)
    if running:
        info.again_ms = kept_due_ms(kept, record.token)
        info.merged += 0 if info.again_ms is None else merged_into_kept(kept)
        info.state, info.holder, info.lease_end_ms = State.RUNNING, record.worker, at
        info.cancel_request, info.progress = record.cancel_request, record.progress
    elif error:
        info.state, info.buried_ms = State.FAILED, at
    else:
        info.due_ms = at
        info.state = State.READY if at <= now else State.PENDING
    return info


def merge_counts(shards: Sequence[Counts]) -> Counts:
    """Merge the counts of all shards."""
    return Counts(
        now_ms=max(shard.now_ms for shard in shards),
        waiting=_merge_sets(found for shard in shards for found in shard.waiting),
        running=sum(shard.running for shard in shards),
        suspects=sum(shard.suspects for shard in shards),
        error=sum(shard.error for shard in shards),
        totals=sum_totals(shard.totals for shard in shards),
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


def scan(keys: Keys, name: str, place: Place, last_ms: int, count: int) -> Operation[Page]:
    """Return about `count` messages of a wait set that are due after `place` and until `last_ms`, and the next place.

    The next place is None at the end. A message that waits all the time, with the same due time, is returned exactly
    once: entries are read in the order of their due times and then of their ids, and each page begins after the last
    entry of the page before. If that entry is gone, reading begins at an earlier one.
    """
    offset, most = max(place.number - 1, 0), count + 1
    while True:
        between = (place.due_ms, last_ms, "WITHSCORES", "LIMIT", offset, most)
        (reply,) = yield [read("ZRANGEBYSCORE", keys.wait(name), *between)]
        found = [(as_int(score), id) for id, score in pairs(reply)]
        if not offset or (found and found[0] <= (place.due_ms, place.last)):
            break
        offset = max(offset - most, 0)
    further = [entry for entry in found if entry > (place.due_ms, place.last)]
    messages = yield from _messages(keys, name, further)
    if len(found) < most:
        return messages, None
    # The page may end before `place` if many entries have come before it.
    due_ms, id = max(found[-1], (place.due_ms, place.last))
    number = sum(each == due_ms for each, _ in found)
    return messages, Place(due_ms, id, number + offset if due_ms == place.due_ms else number)


def _messages(keys: Keys, name: str, found: Sequence[tuple[int, bytes]]) -> Operation[list[Waiting]]:
    own = [(due_ms, id) for due_ms, id in found if id[:1] != US]  # the others are alarms
    if not own:
        return []
    (reply,) = yield [_look_for(keys, [id for _, id in own], [name])]
    messages = []
    for (due_ms, id), message, state in zip(own, reply[1::_PER_MESSAGE], reply[2::_PER_MESSAGE], strict=True):
        header, body = unpack_message(message)  # it may be gone by this time
        if header is not None:
            failures = unpack_state(state).failures if state else 0
            messages.append(Waiting(id.decode(errors="replace"), due_ms, header, body, failures))
    return messages


# The audit: it reads every place page by page, and then compares the totals with the sets in one atomic step.

AUDIT_PAGE = 250
NO_PLACE = "no place"  # as lua/misplaced.lua writes it


def audit(keys: Keys) -> Operation[Audit]:
    """Return the audit of one shard: its totals, how many messages are in each place, and differences.

    A difference names its message, if reading the places page by page has found it.
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
    """Return the reply of lua/audit.lua. Call it until its keys include every wait set that exists."""
    fixed = (keys.msg, keys.state, keys.running, keys.suspect, keys.error, keys.count, keys.sets)
    names = yield from set_names(keys)
    while True:
        (reply,) = yield [Call(load("audit"), [*fixed, *map(keys.wait, names)], ())]
        unnamed = names_of_sets(reply[-1])
        if not unnamed:
            return reply  # type: ignore[no-any-return]
        names += unnamed


def _walk(keys: Keys) -> Operation[tuple[list[str], dict[str, int]]]:
    """Read every place page by page. Return the differences, and how many alarms are pending, ready and running."""
    names = yield from set_names(keys)
    (clock,) = yield [colocated(keys.msg, "TIME")]
    now = clock_ms(clock)
    wrong: list[str] = []
    alarms = {"pending": 0, "ready": 0, "running": 0}
    for place in [*map(keys.wait, names), keys.running, keys.suspect, keys.error]:
        cursor: int | bytes = 0
        while True:
            ((cursor, page),) = yield [read("ZSCAN", place, cursor, "COUNT", AUDIT_PAGE)]
            members = dict(zip(page[::2], page[1::2], strict=True))
            if place != keys.error:
                wrong += _timeless(place, members)
            for score in (members.pop(member) for member in list(members) if member[:1] == b"\x1f"):
                alarms["running" if place == keys.running else "ready" if float(score) <= now else "pending"] += 1
            misplaced = yield from _misplaced(keys, place, members)
            # A message in no place has left this one after it was read. If it is lost, the totals don't add up.
            wrong += [_difference(place, member, what) for member, what in misplaced if what != NO_PLACE]
            if int(cursor) == 0:
                break
    return wrong, alarms


def _timeless(place: str, members: Mapping[bytes, bytes]) -> list[str]:
    """Return a difference for each entry whose due time, or end of lease, is so late that it never comes."""
    return [
        f"{entry_id(member)!r} in {place}: its time never comes ({score.decode()})"
        for member, score in members.items()
        if float(score) > LAST_MS
    ]


def _bodies_without_place(keys: Keys) -> Operation[list[str]]:
    wrong: list[str] = []
    cursor: int | bytes = 0
    while True:
        ((cursor, page),) = yield [read("HSCAN", keys.msg, cursor, "COUNT", AUDIT_PAGE)]
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
    """Return the members that are in no place, in two places, in a wrong wait set or without a body, with the fault."""
    members = list(members)
    if not members:
        return []
    names = (keys.msg, keys.running, keys.suspect, keys.error, place)
    (reply,) = yield [Call(load("misplaced"), names, (keys.most_bytes, *members))]
    return [(member, what.decode()) for member, what in zip(reply[::2], reply[1::2], strict=True)]


def _difference(place: str, member: bytes, what: str) -> str:
    return f"{entry_id(member)!r} in {place}: {what}"


def merge_audits(shards: Sequence[Audit]) -> Audit:
    """Merge the audits of shards. Each was compared with its own totals, so none can hide a loss in another."""
    return Audit(
        totals=sum_totals(one.totals for one in shards),
        places=sum_totals(one.places for one in shards),
        differences=[difference for one in shards for difference in one.differences],
        notes=[note for one in shards for note in one.notes],
    )
