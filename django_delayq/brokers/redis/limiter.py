"""Keep limits over all workers in Redis. The keys of one handler's limits are in one cluster slot.

Redis may forget a permit while its message runs on: permits lapse while Redis hangs, and are lost with its data. So
once a worker that has lost touch with Redis reaches it again, it waits for the length of one lease before it starts
anything that needs a permit. Within that time all holders renew their permits.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import PermitRequest, Throttled, check_batch, in_order
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.client import Call, Operation, SkipUnavailable
from django_delayq.brokers.redis.shards import LimitKeys, load
from django_delayq.core.limits import Limit, by_limit, spread


class RedisLimiter:
    """The `Limiter` (brokers/base.py) in Redis."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        check_batch(requests)
        return self._access.run(self._acquire(requests, lease_ms)) if requests else []

    def renew(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        check_batch(requests)
        if requests:
            self._access.run(self._renew(requests, lease_ms))

    def release(self, requests: Sequence[PermitRequest]) -> None:
        check_batch(requests)
        if requests:
            self._access.run(_release(self._access.options.prefix, requests))

    def _acquire(self, requests: Sequence[PermitRequest], lease_ms: int) -> Operation[list[Throttled | None]]:
        """Return None for each request that is granted, and a refusal for every other one."""
        prefix, limits = self._access.options.prefix, by_limit(requests)
        # A worker that waited for a node that is away would claim nothing from the other nodes.
        replies = yield SkipUnavailable(
            _acquire_call(prefix, limit, [requests[i] for i in own], lease_ms) for limit, own in limits.items()
        )
        granted = []
        for limit, (*answered, identity) in zip(limits, replies, strict=True):
            self._access.client.hear(LimitKeys(prefix, limit.key, limit.value).permits, identity)
            granted.append(_read(limit, answered))
        answers = spread(requests, in_order(limits.values(), granted))
        refusals = self._too_soon(requests, answers, lease_ms)
        if refusals:
            yield from _release(prefix, [requests[i] for i in refusals])
        return [refusals.get(i, answer) for i, answer in enumerate(answers)]

    def _renew(self, requests: Sequence[PermitRequest], lease_ms: int) -> Operation[None]:
        """Renew the permits of these requests."""
        prefix, limits = self._access.options.prefix, by_limit(requests)
        keys = [LimitKeys(prefix, limit.key, limit.value) for limit in limits]
        identities = yield SkipUnavailable(
            Call(load("renew_permits"), (each.permits, each.line), (lease_ms, *(requests[i].token for i in own)))
            for each, own in zip(keys, limits.values(), strict=True)
        )
        for each, identity in zip(keys, identities, strict=True):
            self._access.client.hear(each.permits, identity)

    def _too_soon(
        self, requests: Sequence[PermitRequest], answers: Sequence[Throttled | None], lease_ms: int
    ) -> dict[int, Throttled]:
        """Return a refusal, by position, for each granted request whose permit another worker may still hold."""
        refusals: dict[int, Throttled] = {}
        for i, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if request.most is not None and (answer is None or answer.starts):
                permits = LimitKeys(self._access.options.prefix, request.key, request.value).permits
                left_ms = lease_ms - 1000 * self._access.client.unbroken_s(permits)
                if left_ms > 0:
                    refusals[i] = Throttled(math.ceil(left_ms) + len(refusals), of_key=True)
        return refusals


def _acquire_call(prefix: str, limit: Limit, requests: Sequence[PermitRequest], lease_ms: int) -> Call:
    keys = LimitKeys(prefix, limit.key, limit.value)
    most, interval_us = ("" if each is None else each for each in (limit.most, limit.interval_us))
    expires = int(bool(limit.rate_value))  # a turn for all messages stays: with some policies Redis evicts what expires
    asked = (each for request in requests for each in (request.token, request.starts))
    arguments = most, lease_ms, interval_us, limit.tolerance_us, limit.within_us, expires, *asked
    return Call(load("acquire"), (keys.permits, keys.line, keys.turn_of(limit.rate_value)), arguments)


def _read(limit: Limit, reply: Sequence[int]) -> list[Throttled | None]:
    return [
        Throttled(
            wait_ms, not (limit.rate_value if is_for_turn else limit.value), of_rate=bool(is_for_turn), starts=starts
        )
        if wait_ms
        else None
        for wait_ms, is_for_turn, starts in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    ]


def _release(prefix: str, requests: Sequence[PermitRequest]) -> Operation[None]:
    """Release the permits of these requests."""
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for request in requests:
        tokens[LimitKeys(prefix, request.key, request.value).permits].append(request.token)
    # A permit that can't be released lapses.
    yield SkipUnavailable(Call(load("release"), (permits,), own) for permits, own in tokens.items())
