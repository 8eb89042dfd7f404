"""From one number of shards to another while messages wait. Operations, as `scripts.py` defines them.

No message is moved. The shards are told, and from then on put what is new by the new number; what they hold by the old
one ends where it is. Every process knows both numbers meanwhile; one that does not is refused by the shard itself.
"""

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


def look(shards: Shards) -> Operation[Renumbering]:
    """How far it is. Reads through everything, a page at a time; moves alarms; forgets the old number once it has
    drained."""
    if shards.before is None:
        return Renumbering(shards.count)
    told = yield [plain("HGET", keys.count, "shards") for keys in shards.all]
    change = Renumbering(shards.count, shards.before.count)
    change.is_switched = all(_is_of(each, keys, shards) for each, keys in zip(told, shards.all, strict=True))
    if not change.is_switched:
        return change
    for messages, buried in (yield from shards.everywhere(lambda keys: _left(shards, keys))):
        change.messages += messages
        change.buried += buried
    for keys in shards.all:
        change.alarms += yield from _move_alarms(shards, keys)
    if change.has_drained:
        yield from _forget(shards)
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


def _move_alarms(shards: Shards, keys: Keys) -> Operation[int]:
    """Put alarms that wait where the new number has them: they prove nothing, so one too many does no harm. Gives how
    many are claimed, and so left: those are looked for before and after, since they come from there and go back."""
    claimed = yield from _claimed_alarms(shards, keys)
    for name in (yield from set_names(keys)):
        cursor: int | bytes = 0
        while True:
            scan = plain("ZSCAN", keys.wait(name), cursor, "COUNT", PAGE)
            clock, (cursor, page) = yield [beside(keys.msg, "TIME"), scan]
            strays = [(member, at) for member, at in pairs(page) if _is_astray(shards, keys, member)]
            if strays:
                queue, _, key = name.partition(":")
                now = clock_ms(clock)
                alarms = [Alarm(queue, key, _pk(member), max(as_int(at) - now, 0)) for member, at in strays]
                yield from shards.parted(alarms, lambda alarm: alarm.pk, put_alarms)
                yield [plain("ZREM", keys.wait(name), *(member for member, _ in strays))]
            if int(cursor) == 0:
                break
    claimed |= yield from _claimed_alarms(shards, keys)
    return len(claimed)


def _claimed_alarms(shards: Shards, keys: Keys) -> Operation[set[bytes]]:
    found: set[bytes] = set()
    cursor: int | bytes = 0
    while True:
        ((cursor, page),) = yield [plain("ZSCAN", keys.running, cursor, "COUNT", PAGE)]
        found.update(member for member in page[::2] if _is_astray(shards, keys, member))
        if int(cursor) == 0:
            return found


def _is_astray(shards: Shards, keys: Keys, member: bytes) -> bool:
    """Whether it is an alarm whose home by the new number is another shard."""
    return member[:1] == US and shards.of(_pk(member)).shard != keys.shard


def _pk(member: bytes) -> str:
    return member.rpartition(US)[2].decode(errors="replace")
