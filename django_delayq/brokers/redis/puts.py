"""Putting: messages and alarms in. Operations, as `scripts.py` defines them."""

from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import Alarm, OnConflict, Placed, Put, pages
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.records import US, pack_flags, pack_tail
from django_delayq.brokers.redis.scripts import Argument, Call, Operation, load
from django_delayq.brokers.redis.slots import Slots

CALL = 500
"""The most messages that one script call takes: keeps each under a few milliseconds of the server."""

_RUNNING = 2
_NOT_YET = Placed("", 0, created=False)


def put(keys: Keys, slots: Slots, puts: Sequence[Put], on_conflict: OnConflict) -> Operation[list[Placed]]:
    """Take messages, a call per wait set and `CALL` of them; again for those whose id waits in another wait set."""
    placed = [_NOT_YET] * len(puts)
    todo = list(range(len(puts)))
    elsewhere: dict[int, str] = {}
    while todo:
        groups = _grouped(puts, todo, elsewhere)
        names = [slots.take() for _ in groups]
        try:
            replies = yield [
                _put_call(keys, slot, slots.number(), on_conflict, [puts[i] for i in group], elsewhere.get(group[0]))
                for slot, group in zip(names, groups, strict=True)
            ]
        finally:
            slots.give_back(names)
        todo = []
        for group, reply in zip(groups, replies, strict=True):
            for i, outcome, due in zip(group, reply[::2], reply[1::2], strict=True):
                if isinstance(outcome, bytes):
                    elsewhere[i] = outcome.decode()
                    todo.append(i)
                else:
                    placed[i] = Placed(puts[i].id, due, outcome == 1, outcome == _RUNNING)
    return placed


def _grouped(puts: Sequence[Put], todo: list[int], elsewhere: dict[int, str]) -> list[Sequence[int]]:
    """The positions in `todo`, by wait set and by where their id waits, in order, `CALL` at most in each."""
    by_set: defaultdict[tuple[str, str, str | None], list[int]] = defaultdict(list)
    for i in todo:
        header = puts[i].header
        by_set[header.queue, header.key, elsewhere.get(i)].append(i)
    return [page for group in by_set.values() for page in pages(group, CALL)]


def _put_call(
    keys: Keys, slot: str, number: int, on_conflict: OnConflict, puts: list[Put], elsewhere: str | None
) -> Call:
    header = puts[0].header
    wait = keys.wait(set_name(header.queue, header.key))
    names = [keys.msg, keys.state, keys.running, keys.suspect, keys.sets, keys.timer, keys.count, keys.call(slot), wait]
    if elsewhere is not None:
        names.append(keys.wait(elsewhere))
    arguments: list[Argument] = [number, on_conflict, keys.channel]
    for one in puts:
        arguments += (
            one.id,
            due_text(one.delay_ms, one.at_ms),
            pack_flags(one.header),
            pack_tail(one.header, one.body),
        )
    return Call(load("put"), names, arguments)


def due_text(delay_ms: int, at_ms: int | None) -> str:
    """A due time for Lua: "+n" is n ms from now by the server's clock, anything else an instant."""
    return f"+{delay_ms}" if at_ms is None else str(at_ms)


def put_alarms(keys: Keys, alarms: Sequence[Alarm]) -> Operation[None]:
    """Hold alarms, a call per wait set and `CALL` of them."""
    by_set: defaultdict[str, list[Alarm]] = defaultdict(list)
    for alarm in alarms:
        by_set[set_name(alarm.queue, alarm.key)].append(alarm)
    calls = []
    for name, group in by_set.items():
        for page in pages(group, CALL):
            arguments: list[Argument] = [keys.channel]
            for alarm in page:
                arguments += (US + alarm.pk.encode(), alarm.wait_ms)
            calls.append(Call(load("put_alarms"), [keys.sets, keys.timer, keys.wait(name)], arguments))
    if calls:
        yield calls
