"""The broker of the demo, and its end of the world."""

from collections.abc import Callable
from typing import Protocol

from django.conf import settings
from redis import Redis

from django_delayq.brokers.redis.client import embedded
from django_delayq.conf import get_alias
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


class Tables:
    """The database alone."""

    name = "the database"

    def start(self) -> None:
        """It is there once it is migrated."""

    def lose_all(self) -> str:
        """Lose nothing. Why, in words."""
        return "There is no broker that could lose anything"

    def stop(self) -> None:
        """It is a file."""


BROKERS: dict[str, Callable[[], Backend]] = {
    "RedisBroker": EmbeddedRedis,
    "RabbitMQBroker": RabbitMQ,
    "DatabaseBroker": Tables,
}


def broker_of_demo() -> Backend:
    """The one that the settings name."""
    return BROKERS[get_alias().broker.rpartition(".")[2]]()
