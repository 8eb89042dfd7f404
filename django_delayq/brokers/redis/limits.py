"""Limits over all workers: a key of Redis for each, in a slot of its own. Operations, as `scripts.py` defines them."""

from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import Ask, Refusal, in_order
from django_delayq.brokers.limits import Limit, by_limit
from django_delayq.brokers.redis.keys import LimitKeys
from django_delayq.brokers.redis.scripts import Call, Hasty, Operation, load


def acquire(prefix: str, asks: Sequence[Ask], lease_ms: int) -> Operation[list[Refusal | None]]:
    """None for each ask that is granted."""
    limits = by_limit(asks)
    # Hasty: a worker that waited for a node that is away would claim nothing of the others.
    replies = yield Hasty(
        _acquire(prefix, limit, [asks[i].token for i in own], lease_ms) for limit, own in limits.items()
    )
    return in_order(limits.values(), [_read(limit, reply) for limit, reply in zip(limits, replies, strict=True)])


def _acquire(prefix: str, limit: Limit, tokens: Sequence[int], lease_ms: int) -> Call:
    keys = LimitKeys(prefix, limit.key, limit.value)
    most, interval_us = ("" if each is None else each for each in (limit.most, limit.interval_us))
    return Call(load("acquire"), (keys.slots, keys.line, keys.turn), (most, lease_ms, interval_us, *tokens))


def _read(limit: Limit, reply: Sequence[int]) -> list[Refusal | None]:
    return [
        Refusal(wait_ms, bool(is_for_turn) or not limit.value) if wait_ms else None
        for wait_ms, is_for_turn in zip(reply[::2], reply[1::2], strict=True)
    ]


def give_back(prefix: str, asks: Sequence[Ask]) -> Operation[None]:
    """Free their slots."""
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for ask in asks:
        tokens[LimitKeys(prefix, ask.key, ask.value).slots].append(ask.token)
    # Hasty as above: what can't be given back lapses.
    yield Hasty(Call(load("give_back"), (slots,), own) for slots, own in tokens.items())
