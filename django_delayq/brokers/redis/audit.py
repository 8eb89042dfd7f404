"""The audit of Redis: every place, a page at a time, then the totals against the sets in one atomic look."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_delayq.brokers.redis.client import Call, Operation, colocated, plain
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.queries import read_totals, set_names, sum_totals
from django_delayq.brokers.redis.records import clock_ms, entry_id, names_of_sets, unpack_message
from django_delayq.brokers.redis.scripts import load
from django_delayq.core.requests import LEFT, Audit

PAGE = 250
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
            ((cursor, page),) = yield [plain("ZSCAN", place, cursor, "COUNT", PAGE)]
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
        ((cursor, page),) = yield [plain("HSCAN", keys.msg, cursor, "COUNT", PAGE)]
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
