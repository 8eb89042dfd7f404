"""Keep limits over all workers of this process: permits of each (key, value), turns of each key."""

from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import PermitRequest, Throttled, in_order
from django_delayq.core.limits import Limit, Permits, acquire, by_limit


class Limits:
    """The permits of each (key, value), and when each key may start next. core/limits.py has the arithmetic."""

    def __init__(self) -> None:
        self._permits: defaultdict[tuple[str, str], Permits] = defaultdict(Permits)
        self._turns_us: dict[str, int] = {}

    def acquire(self, requests: Sequence[PermitRequest], lease_ms: int, now_us: int) -> list[Throttled | None]:
        """Return None for each request that is granted, and a refusal for every other one."""
        limits = by_limit(requests)
        answers = [
            self._acquire(limit, [requests[i].token for i in own], lease_ms, now_us) for limit, own in limits.items()
        ]
        return in_order(limits.values(), answers)

    def _acquire(self, limit: Limit, tokens: Sequence[int], lease_ms: int, now_us: int) -> list[Throttled | None]:
        permits, turn_us = self._permits[limit.key, limit.value], self._turns_us.get(limit.key, 0)
        answers, self._turns_us[limit.key] = acquire(limit, permits, turn_us, tokens, lease_ms, now_us)
        return answers

    def release(self, requests: Sequence[PermitRequest]) -> None:
        """Release the permits of these requests."""
        for request in requests:
            self._permits[request.key, request.value].release([request.token])

    def forget_over(self, now_ms: int) -> None:
        """Forget permits that no message holds or has requested lately."""
        for name in [name for name, permits in self._permits.items() if permits.is_over(now_ms)]:
            del self._permits[name]
