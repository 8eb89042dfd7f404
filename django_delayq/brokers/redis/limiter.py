"""Limits over all workers, kept in Redis."""

from collections.abc import Sequence

from django_delayq.brokers.base import PermitRequest, Throttled, check_batch
from django_delayq.brokers.redis import limits
from django_delayq.brokers.redis.access import Access


class RedisLimiter:
    """See `Limiter` in brokers/base.py."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        check_batch(asks)
        if not asks:
            return []
        access = self._access
        return access.run(
            limits.acquire(access.options.prefix, asks, lease_ms, access.client.hear, access.client.unbroken_s)
        )

    def release(self, asks: Sequence[PermitRequest]) -> None:
        check_batch(asks)
        if asks:
            self._access.run(limits.release(self._access.options.prefix, asks))
