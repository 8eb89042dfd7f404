"""The demo's Redis, and its end of the world."""

from django.conf import settings
from redis import Redis

from django_delayq.brokers.redis import embedded


def flush() -> int:
    """Empty the Redis of the demo, as one that lost its disk, and return how many keys that were."""
    with Redis(unix_socket_path=embedded.start(settings.REDIS_DIR)) as client:
        keys: int = client.dbsize()
        client.flushall()
    return keys
