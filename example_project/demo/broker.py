"""The broker of the demo, and how it loses everything."""

from collections.abc import Callable
from typing import Protocol

from django.conf import settings
from redis import Redis

from django_delayq.brokers.redis.client import embedded
from django_delayq.conf import get_alias
from example_project.demo.rabbitmq import RabbitMQ


class Backend(Protocol):
    """The steps that the demo takes with its broker."""

    name: str

    def start(self) -> None: ...

    def lose_all(self) -> str:
        """Lose all data. Return what happened, in words."""

    def stop(self) -> None: ...


class EmbeddedRedis:
    """The Redis server behind embedded://, which starts when it is first needed."""

    name = "Redis"

    def start(self) -> None:
        """Do nothing: the server starts when it is needed."""

    def lose_all(self) -> str:
        """Remove all data from the server, as if its disk were lost."""
        with Redis(unix_socket_path=embedded.start(settings.REDIS_DIR)) as client:
            keys: int = client.dbsize()
            client.flushall()
        return f"Redis is emptied (FLUSHALL): {keys} keys are gone"

    def stop(self) -> None:
        """End the server."""
        embedded.stop(settings.REDIS_DIR)


class Tables:
    """The database alone."""

    name = "the database"

    def start(self) -> None:
        """Do nothing: the database is there once it is migrated."""

    def lose_all(self) -> str:
        """Lose nothing, and return a sentence that says why."""
        return "There is no broker that could lose anything"

    def stop(self) -> None:
        """Do nothing: the database is a file."""


BROKERS: dict[str, Callable[[], Backend]] = {
    "RedisBroker": EmbeddedRedis,
    "RabbitMQBroker": RabbitMQ,
    "DatabaseBroker": Tables,
}


def broker_of_demo() -> Backend:
    """Return the broker that the settings name."""
    return BROKERS[get_alias().broker.rpartition(".")[2]]()
