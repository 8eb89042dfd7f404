"""From one number of shards to another while messages wait. Operations, as `scripts.py` defines them.

No message is moved. The shards are told, and from then on put what is new by the new number; what they hold by the old
one ends where it is. Every process knows both numbers meanwhile; one that does not is refused by the shard itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.looks import clock_ms, pairs, set_names
from django_delayq.brokers.redis.puts import put_alarms
from django_delayq.brokers.redis.records import US, as_int, entry_id
from django_delayq.brokers.redis.scripts import Call, Operation, beside, load, plain
from django_delayq.brokers.redis.shards import Shards

PAGE = 250


@dataclass(slots=True)
class Renumbering:
    """How far a change is, and what is left where only the old number has it."""

    count: int
    old_count: int | None = None
    is_switched: bool = True
    has_ended: bool = False
    messages: int = 0
    buried: int = 0
    alarms: int = 0

    @property
    def has_drained(self) -> bool:
        """Whether the old number may be forgotten."""
        return self.is_switched and not (self.messages or self.buried or self.alarms)


def switch(shards: Shards) -> Operation[None]:
    """Put what is new by the new number from now on. After a fault it may be half done, and is to be made again."""
    if shards.before is None:
        return
    old, new = shards.before.count, shards.count
    yield [plain("HSET", shards.first.meta, "shards", new, "old_shards", old)]
    # At first all shards refuse those who know the old number only; then one after the other may take what is new.
    for told in (f"{old}>{new}", str(new)):
        yield [Call(load("tell"), (keys.count,), (told, new)) for keys in shards.all]
    yield from _move_alarms(shards)


def look(shards: Shards) -> Operation[Renumbering]:
    """How far it is. Reads through everything, a page at a time, and changes nothing."""
    if shards.before is None:
        return Renumbering(shards.count)
    left, *told = yield [
        plain("HGET", shards.first.meta, "old_shards"),
        *(plain("HGET", keys.count, "shards") for keys in shards.all),
    ]
    change = Renumbering(shards.count, shards.before.count)
    change.is_switched = all(_is_of(each, keys, shards) for each, keys in zip(told, shards.all, strict=True))
    if not change.is_switched:
        return change
    change.has_ended = left is None
    for messages, buried in (yield from shards.everywhere(lambda keys: _left(shards, keys))):
        change.messages += messages
        change.buried += buried
    for keys in shards.all:
        change.alarms += len((yield from _astray(shards, keys)))
    return change


def end(shards: Shards) -> Operation[Renumbering]:
    """Forget the old number if nothing but alarms that wait is left by it, which are moved. How far it is then."""
    change = yield from look(shards)
    if change.alarms:
        yield from _move_alarms(shards)
        change = yield from look(shards)
    if shards.before is not None and change.has_drained:
        yield from _forget(shards)
        change.has_ended = True
    return change


def _is_of(told: bytes | None, keys: Keys, shards: Shards) -> bool:
    return told == str(shards.count).encode() or (told == b"0" and keys.shard >= shards.count)


def _forget(shards: Shards) -> Operation[None]:
    """The old number has drained: processes that know the new one only may come."""
    over = shards.all[shards.count :]
    if over:
        yield [plain("HSET", keys.count, "shards", 0) for keys in over]
    yield [plain("HDEL", shards.first.meta, "old_shards")]


def _left(shards: Shards, keys: Keys) -> Operation[tuple[int, int]]:
    messages = buried = 0
    cursor: int | bytes = 0
    while True:
        ((cursor, entries),) = yield [Call(load("ids"), (keys.msg,), (cursor, PAGE))]
        for entry in entries:
            if shards.of(entry_id(entry)).shard != keys.shard:
                buried, messages = (buried + 1, messages) if US in entry else (buried, messages + 1)
        if int(cursor) == 0:
            break
    return messages, buried


def _astray(shards: Shards, keys: Keys) -> Operation[set[str]]:
    """The pks of the alarms that are held here and whose home by the new number is another shard. Those that are
    claimed are looked for before and after: they come from what waits, and go back."""
    found: set[str] = set()
    names = yield from set_names(keys)
    for place in (keys.running, *map(keys.wait, names), keys.running):
        cursor = 0
        while True:
            cursor, strays = yield from _strays(shards, keys, place, cursor)
            found.update(_pk(member) for member, _ in strays)
            if not cursor:
                break
    return found


def _move_alarms(shards: Shards) -> Operation[None]:
    """Put alarms that wait where the new number has them: they prove nothing, so one too many does no harm."""
    for keys in shards.all:
        for name in (yield from set_names(keys)):
            cursor = 0
            while True:
                cursor, strays = yield from _strays(shards, keys, keys.wait(name), cursor)
                if strays:
                    yield from _move(shards, keys, name, strays)
                if not cursor:
                    break


def _move(shards: Shards, keys: Keys, name: str, strays: Sequence[tuple[bytes, bytes]]) -> Operation[None]:
    queue, _, key = name.partition(":")
    (clock,) = yield [beside(keys.msg, "TIME")]
    now = clock_ms(clock)
    alarms = [Alarm(queue, key, _pk(member), max(as_int(at) - now, 0)) for member, at in strays]
    yield from shards.parted(alarms, lambda alarm: alarm.pk, put_alarms)
    yield [plain("ZREM", keys.wait(name), *(member for member, _ in strays))]


def _strays(
    shards: Shards, keys: Keys, place: str, cursor: int
) -> Operation[tuple[int, Sequence[tuple[bytes, bytes]]]]:
    """A page of the members, with their scores, that are astray there; and where the next one begins, 0 at the end."""
    ((following, page),) = yield [plain("ZSCAN", place, cursor, "COUNT", PAGE)]
    return int(following), [(member, at) for member, at in pairs(page) if _is_astray(shards, keys, member)]


def _is_astray(shards: Shards, keys: Keys, member: bytes) -> bool:
    """Whether it is an alarm whose home by the new number is another shard."""
    return member[:1] == US and shards.of(_pk(member)).shard != keys.shard


def _pk(member: bytes) -> str:
    return member.rpartition(US)[2].decode(errors="replace")
