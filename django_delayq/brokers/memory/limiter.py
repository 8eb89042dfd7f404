"""Keep limits over all workers of this process: permits of each (key, value), turns of each (key, rate)."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Lock

from django_delayq.brokers.base import PermitRequest, Throttled, check_batch, in_order
from django_delayq.core.limits import Limit, Permits, acquire, by_limit, spread


class MemoryLimiter:
    """The `Limiter` (brokers/base.py) in this process. `clock_ms` returns epoch milliseconds."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._permits: defaultdict[tuple[str, str], Permits] = defaultdict(Permits)
        self._turns_us: dict[tuple[str, str], int] = {}
        self._changing = Lock()

    def acquire(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        check_batch(requests)
        limits = by_limit(requests)
        with self._changing:
            answers = [self._acquire(limit, [requests[i] for i in own], lease_ms) for limit, own in limits.items()]
        return spread(requests, in_order(limits.values(), answers))

    def renew(self, requests: Sequence[PermitRequest], *, lease_ms: int) -> None:
        check_batch(requests)
        with self._changing:
            for request in requests:
                self._permits[request.key, request.value].take(request.token, self._now_us() // 1000 + lease_ms)

    def release(self, requests: Sequence[PermitRequest]) -> None:
        check_batch(requests)
        with self._changing:
            for request in requests:
                self._permits[request.key, request.value].release([request.token])

    def forget_over(self) -> None:
        """Forget permits that no message holds or has requested lately, and turns that have come."""
        with self._changing:
            now_ms = self._now_us() // 1000
            for name in [name for name, permits in self._permits.items() if permits.is_over(now_ms)]:
                del self._permits[name]
            for rate in [rate for rate, turn_us in self._turns_us.items() if turn_us <= self._now_us()]:
                del self._turns_us[rate]

    def _acquire(self, limit: Limit, requests: Sequence[PermitRequest], lease_ms: int) -> list[Throttled | None]:
        permits, rate = self._permits[limit.key, limit.value], (limit.key, limit.rate_value)
        turn_us = self._turns_us.get(rate, 0)
        answers, turn_us = acquire(limit, permits, turn_us, requests, lease_ms, self._now_us())
        if limit.interval_us is not None:
            self._turns_us[rate] = turn_us
        return answers

    def _now_us(self) -> int:
        return int(self._clock_ms() * 1000)
