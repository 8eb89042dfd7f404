"""The Redis broker."""

from django_delayq.brokers.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
