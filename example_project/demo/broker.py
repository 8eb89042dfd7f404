"""The broker of the demo, and its end of the world."""

from typing import Protocol

from django.conf import settings
from redis import Redis

from django_delayq.brokers.redis.client import embedded
from example_project.demo.rabbitmq import RabbitMQ


class Backend(Protocol):
    """What the demo does to its broker."""

    name: str

    def start(self) -> None: ...

    def lose_all(self) -> str:
        """Have it lose all that it holds. What happened, in words."""

    def stop(self) -> None: ...


class EmbeddedRedis:
    """The Redis that starts by itself."""

    name = "Redis"

    def start(self) -> None:
        """It starts when it is needed."""

    def lose_all(self) -> str:
        """Empty it, as one that lost its disk."""
        with Redis(unix_socket_path=embedded.start(settings.REDIS_DIR)) as client:
            keys: int = client.dbsize()
            client.flushall()
        return f"Redis is emptied (FLUSHALL): {keys} keys are gone"

    def stop(self) -> None:
        """End it."""
        embedded.stop(settings.REDIS_DIR)


def broker_of_demo() -> Backend:
    """The one that the settings name."""
    return RabbitMQ() if settings.DELAYQ["default"]["LOCATION"].startswith("amqp:") else EmbeddedRedis()
