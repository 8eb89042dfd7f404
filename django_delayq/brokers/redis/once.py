"""Put what a job has not sent before. An operation, as `scripts.py` defines them."""

from collections.abc import Sequence

from django_delayq.brokers.base import NewMessage, in_order
from django_delayq.brokers.redis.client import Call, Operation
from django_delayq.brokers.redis.enqueue import grouped, packed
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.slots import Slots


def put_once(keys: Keys, slots: Slots, puts: Sequence[NewMessage], job: str, keep_ms: int) -> Operation[list[int]]:
    """Put the messages whose id neither waits nor runs, nor is in the job's ledger.

    Return 1 for each that was taken, 0 for each other.
    """
    groups = grouped(puts, range(len(puts)), {})
    if not groups:
        return []
    names = [slots.take() for _ in groups]
    try:
        replies = yield [
            _call(keys, slot, slots.number(), [puts[i] for i in group], job, keep_ms)
            for slot, group in zip(names, groups, strict=True)
        ]
    finally:
        slots.give_back(names)
    return in_order(groups, replies)


def _call(keys: Keys, slot: str, number: int, puts: list[NewMessage], job: str, keep_ms: int) -> Call:
    wait = keys.wait(set_name(puts[0].header.queue, puts[0].header.key))
    names = [keys.msg, keys.sets, keys.timer, keys.count, keys.call(slot), wait, keys.job(job)]
    return Call(load("put_once"), names, [number, keys.channel, keep_ms, *packed(puts)])
