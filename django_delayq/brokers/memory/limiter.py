"""The limits over all workers of this process: slots of each (key, value), turns of each key."""

from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import PermitRequest, Throttled, in_order
from django_delayq.brokers.limits import Limit, Slots, acquire, by_limit


class Limits:
    """See `Limiter.acquire`; brokers/limits.py has the arithmetic."""

    def __init__(self) -> None:
        self._slots: defaultdict[tuple[str, str], Slots] = defaultdict(Slots)
        self._turns_us: dict[str, int] = {}

    def acquire(self, asks: Sequence[PermitRequest], lease_ms: int, now_us: int) -> list[Throttled | None]:
        """Return None for each ask that is granted, a refusal for each other."""
        limits = by_limit(asks)
        answers = [
            self._acquire(limit, [asks[i].token for i in own], lease_ms, now_us) for limit, own in limits.items()
        ]
        return in_order(limits.values(), answers)

    def _acquire(self, limit: Limit, tokens: Sequence[int], lease_ms: int, now_us: int) -> list[Throttled | None]:
        slots, turn_us = self._slots[limit.key, limit.value], self._turns_us.get(limit.key, 0)
        answers, self._turns_us[limit.key] = acquire(limit, slots, turn_us, tokens, lease_ms, now_us)
        return answers

    def release(self, asks: Sequence[PermitRequest]) -> None:
        """Free the slots of these asks."""
        for ask in asks:
            self._slots[ask.key, ask.value].give_back([ask.token])

    def forget_over(self, now_ms: int) -> None:
        """Forget the slots of values that nobody has asked for lately."""
        for name in [name for name, slots in self._slots.items() if slots.is_over(now_ms)]:
            del self._slots[name]
