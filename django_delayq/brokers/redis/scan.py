"""Read all that waits, a page at a time, in the order of due times. Operations, as `scripts.py` defines them."""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.brokers.base import Header
from django_delayq.brokers.redis.client import Operation, plain
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.queries import pairs, set_names
from django_delayq.brokers.redis.records import US, as_int, unpack_message, unpack_state


class Waiting(NamedTuple):
    """One waiting message as it is stored."""

    id: str
    due_ms: int
    header: Header
    body: bytes
    failures: int


class Place(NamedTuple):
    """A position in a wait set: the last entry read, and where to look for it among those of its due time."""

    due_ms: int
    last: bytes = b""
    number: int = 0


Page = tuple[list[Waiting], Place | None]


def names(keys: Keys) -> Operation[list[str]]:
    """Return the names of the wait sets ("queue:key")."""
    return (yield from set_names(keys))


def page(keys: Keys, name: str, place: Place, last_ms: int, count: int) -> Operation[Page]:
    """Return about `count` messages of a wait set that are due from `place` until `last_ms`, and where to go on.

    The next place is None at the end. A message that waits under one due time all the while is given once: entries are
    in the order of due times, then of ids, and each page begins with the last entry of the page before, or if that has
    left, before its place.
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
