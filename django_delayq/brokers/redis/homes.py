"""What has two homes while the number of shards changes: where the old number has it, and where the new one does.

A message stays in the home where it was put until it ends. The home by the old number decides where that is: until it
was told of the new one it takes what is new, and from then on never again. So of one id there is never a message in
both, whoever sends it at the same instant. Operations, as `scripts.py` defines them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from django_delayq.brokers.base import Alarm, AlarmInfo, Info, Put
from django_delayq.brokers.redis import alarms, byid, looks, puts
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.layout import CHANGED, Layout, still_known
from django_delayq.brokers.redis.scripts import Operation
from django_delayq.brokers.redis.shards import Shards, together
from django_delayq.brokers.redis.slots import Slots
from django_delayq.errors import BrokerRefused
from django_delayq.message import State

R = TypeVar("R")

_id, _pk = attrgetter("id"), attrgetter("pk")


def in_turn(
    shards: Shards, given: Sequence[Put], put: Callable[[Keys, Sequence[Put]], Operation[list[R | None]]]
) -> Operation[list[R]]:
    """What `put` answers for each message, asked of its homes in turn while the answer is None."""
    first, *others = shards.in_turn
    answers = yield from first.by_id(given, _id, put)
    for by_number in others:
        left = [i for i, answer in enumerate(answers) if answer is None]
        if left:
            told = yield from by_number.by_id([given[i] for i in left], _id, put)
            for i, answer in zip(left, told, strict=True):
                answers[i] = answer
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers):
        raise BrokerRefused(CHANGED)
    return known


def rescue(shards: Shards, slots: Slots, ids: Sequence[str]) -> Operation[list[bool]]:
    """As `byid.rescue`. What is buried where the old number has it is sent anew, and then purged there."""
    rescued = yield from shards.by_id(ids, str, byid.rescue)
    left = [id for id, is_done in zip(ids, rescued, strict=True) if not is_done and len(shards.homes(id)) > 1]
    if shards.before is None or not left:
        return rescued
    carried = yield from shards.before.parted(left, str, partial(_carry_over, shards, slots))
    over = set(chain(*carried))
    return [is_done or id in over for id, is_done in zip(ids, rescued, strict=True)]


def _carry_over(shards: Shards, slots: Slots, keys: Keys, ids: Sequence[str]) -> Operation[list[str]]:
    entries = yield from byid.find_entries(keys, ids)
    if not entries:
        return []
    buried = yield from looks.look_at(keys, [found[-1] for found in entries.values()])
    again = [Put(info.id, info.header, info.body) for info in buried if not info.newer]  # of such not all is known
    placed = yield from in_turn(shards, again, lambda home, own: puts.put(home, slots, own, "keep"))
    carried = [one.id for one in placed if one.created]
    yield from byid.purge_entries(keys, [entries[id][-1] for id in carried])
    return carried


def get(shards: Shards, id: str) -> Operation[Info | None]:
    """As `looks.get`: what waits or runs, else what was buried last."""
    looked = yield from together([still_known(keys, looks.get(keys, id)) for keys in shards.homes(id)])
    found = [info for info in looked if info is not None]
    return max(found, key=lambda info: (info.state is not State.ERROR, info.buried_ms or 0), default=None)


def put_alarms(layout: Layout, alarms_: Sequence[Alarm]) -> Operation[str]:
    """Hold alarms, by the number that is in force. Gives why some are not held: '' for none."""
    shards = yield from layout.by_number()
    return (yield from shards.parted_reached(alarms_, _pk, puts.put_alarms))


def drop_alarms(shards: Shards, alarms_: Sequence[Alarm], again: Sequence[Alarm]) -> Operation[str]:
    """As `puts.drop_alarms`: what is held again is, before it is dropped from another home.

    Gives why some shards were not reached: '' for none.
    """
    both = [*((alarm, False) for alarm in alarms_), *((alarm, True) for alarm in again)]
    away = yield from shards.parted_reached(both, lambda each: each[0].pk, _drop_alarms)
    if shards.before is None or away:
        return away
    return (
        yield from shards.before.parted_reached(
            [alarm for alarm in alarms_ if len(shards.homes(alarm.pk)) > 1],
            _pk,
            lambda keys, own: puts.drop_alarms(keys, own, []),
        )
    )


def _drop_alarms(keys: Keys, alarms_: Sequence[tuple[Alarm, bool]]) -> Operation[None]:
    """Those marked are held again."""
    dropped = [alarm for alarm, is_again in alarms_ if not is_again]
    return puts.drop_alarms(keys, dropped, [alarm for alarm, is_again in alarms_ if is_again])


def find_alarms(shards: Shards, queue: str, key: str, pks: Sequence[str]) -> Operation[list[AlarmInfo]]:
    """Those there are of `pks`, in their order."""
    by_numbers = [shards] if shards.before is None else [shards.before, shards]
    parts = yield from together(
        [each.parted(pks, str, lambda keys, own: alarms.find_alarms(keys, queue, key, own)) for each in by_numbers]
    )
    found = {alarm.pk: alarm for alarm in chain(*chain(*parts))}
    return [found[pk] for pk in pks if pk in found]
