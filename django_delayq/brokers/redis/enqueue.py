"""Put messages and alarms. Operations, as `scripts.py` defines them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django_delayq.brokers.base import Alarm, Enqueued, Header, NewMessage, OnConflict, pages
from django_delayq.brokers.redis.client import Argument, Call, Operation, plain
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.records import US, as_int, flags_of, names_of_sets, pack_options
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.slots import Slots
from django_delayq.core.errors import BrokerRefused

CALL = 100
"""The most messages that one script call takes: a few milliseconds of the server at most. Larger calls gain nothing."""

_CREATED, _RUNNING = 1, 2


def put(keys: Keys, slots: Slots, puts: Sequence[NewMessage], on_conflict: OnConflict) -> Operation[list[Enqueued]]:
    """Put messages, a call for each `CALL` of a wait set; again for those whose id waits in another wait set."""
    placed: dict[int, Enqueued] = {}
    groups = grouped(puts, range(len(puts)), {})
    elsewhere: dict[int, str] = {}
    while groups:
        names = [slots.take() for _ in groups]
        try:
            replies = yield [
                _put_call(keys, slot, slots.number(), on_conflict, [puts[i] for i in group], elsewhere.get(group[0]))
                for slot, group in zip(names, groups, strict=True)
            ]
        finally:
            slots.give_back(names)
        elsewhere = {}
        for group, (dues, *there) in zip(groups, replies, strict=True):
            for i, due in zip(group, dues.split(), strict=True):
                placed[i] = Enqueued(puts[i].id, as_int(due), True)
            for position, outcome in zip(there[::2], there[1::2], strict=True):
                i = group[position - 1]
                if isinstance(outcome, bytes):
                    elsewhere[i] = _own_name(puts[i].id, outcome)
                else:
                    placed[i].created, placed[i].running = outcome == _CREATED, outcome == _RUNNING
        groups = grouped(puts, elsewhere, elsewhere) if elsewhere else []
    return [placed[i] for i in range(len(puts))]


def grouped(puts: Sequence[NewMessage], todo: Iterable[int], elsewhere: Mapping[int, str]) -> list[Sequence[int]]:
    """Group the positions in `todo` by wait set and by where their id waits, in order, at most `CALL` in each."""
    if len(puts) == 1:  # a send of one message costs little more than its round trip
        return [[0]]
    groups: defaultdict[tuple[str, str, str | None], list[int]] = defaultdict(list)
    last: Header | None = None
    for i in todo:
        header = puts[i].header
        if header is not last or elsewhere:  # most messages share the header of their neighbour
            group = groups[header.queue, header.key, elsewhere.get(i)]
            last = header
        group.append(i)
    return [page for group in groups.values() for page in pages(group, CALL)]


def _own_name(id: str, name: bytes) -> str:
    """Return the name of the wait set in which an id waits. Raises `BrokerRefused` where it is not ours."""
    own = names_of_sets([name])
    if not own:
        raise BrokerRefused(
            f"Message {id!r} is there with a name that is no text: someone else writes under our prefix. Remove it "
            "(HDEL), or give this site a prefix of its own (OPTIONS['prefix'])."
        )
    return own[0]


def _put_call(
    keys: Keys, slot: str, number: int, on_conflict: OnConflict, puts: list[NewMessage], elsewhere: str | None
) -> Call:
    header = puts[0].header
    wait = keys.wait(set_name(header.queue, header.key))
    names = [keys.msg, keys.state, keys.running, keys.suspect, keys.sets, keys.timer, keys.count, keys.call(slot), wait]
    if elsewhere is not None:
        names.append(keys.wait(elsewhere))
    return Call(load("put"), names, [number, on_conflict, keys.channel, *packed(puts)])


def packed(puts: Sequence[NewMessage]) -> list[Argument]:
    """Return messages as arguments of a script: id, flags and due time, options and body of each."""
    arguments: list[Argument] = []
    header = puts[0].header
    flags, options = flags_of(header), pack_options(header)
    for one in puts:
        if one.header is not header:
            header = one.header
            flags, options = flags_of(header), pack_options(header)
        arguments += (one.id, flags + due_text(one.delay_ms, one.at_ms), options + one.body)
    return arguments


def due_text(delay_ms: int, at_ms: int | None) -> str:
    """Return a due time for Lua: "+n" is n ms from now by the server's clock, anything else an instant."""
    return f"+{delay_ms}" if at_ms is None else str(at_ms)


def put_alarms(keys: Keys, alarms: Sequence[Alarm]) -> Operation[None]:
    """Hold alarms."""
    calls = _alarm_calls(keys, "put_alarms", alarms)
    if calls:
        yield calls


def drop_alarms(keys: Keys, alarms: Sequence[Alarm], again: Sequence[Alarm]) -> Operation[None]:
    """Hold the alarms in `again`, and take claimed ones out of `running`. One in both goes back in one step."""
    claimed = {_name(alarm) for alarm in alarms}
    calls = _alarm_calls(keys, "put_alarms", [alarm for alarm in again if _name(alarm) not in claimed])
    calls += _alarm_calls(keys, "put_back_alarms", [alarm for alarm in again if _name(alarm) in claimed], keys.running)
    over = claimed.difference(map(_name, again))
    if over:
        calls.append(plain("ZREM", keys.running, *over))
    if calls:
        yield calls


def _name(alarm: Alarm) -> bytes:
    """Return the member of a claimed alarm in `running`."""
    return US + US.join((alarm.queue.encode(), alarm.key.encode(), alarm.pk.encode()))


def _alarm_calls(keys: Keys, script: str, alarms: Sequence[Alarm], *names: str) -> list[Call]:
    """Return a call for each `CALL` alarms of a wait set."""
    by_set: defaultdict[str, list[Alarm]] = defaultdict(list)
    for alarm in alarms:
        by_set[set_name(alarm.queue, alarm.key)].append(alarm)
    calls = []
    for name, group in by_set.items():
        for page in pages(group, CALL):
            arguments: list[Argument] = [keys.channel]
            for alarm in page:
                arguments += (US + alarm.pk.encode(), alarm.wait_ms)
            calls.append(Call(load(script), [keys.sets, keys.timer, keys.wait(name), *names], arguments))
    return calls
