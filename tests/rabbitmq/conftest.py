"""A RabbitMQ timer on a shared node, and sites whose workers use it."""

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers.rabbitmq import RabbitMQBroker
from tests.rabbitmq.support import Clock, broker_on
from tests.servers import RabbitMQServer
from tests.store.support import site_on
from tests.worker.processes import Site


@pytest.fixture
def broker(rabbitmq_server: RabbitMQServer) -> Iterator[RabbitMQBroker]:
    """A timer."""
    with broker_on(rabbitmq_server) as broker:
        yield broker


@pytest.fixture
def clock() -> Clock:
    """One for timers whose time a test moves."""
    return Clock()


def delayq_on(server: RabbitMQServer, database: str, lease: str = "2s") -> dict[str, Any]:
    """DELAYQ["default"] on this node."""
    return {
        "BROKER": "django_delayq.brokers.rabbitmq.RabbitMQBroker",
        "LOCATION": server.url,
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow", "lease": lease},
    }


@pytest.fixture
def database(sqlite_database: str) -> str:
    """The alias of a migrated database of its own."""
    return sqlite_database


@pytest.fixture
def lease() -> str:
    """Return how long a dead worker's messages wait."""
    return "2s"


@pytest.fixture
def site(
    settings: Settings, rabbitmq_server: RabbitMQServer, lease: str, database: str, database_env: dict[str, str]
) -> Iterator[Site]:
    """A site for whose rows RabbitMQ holds the alarms."""
    delayq = delayq_on(rabbitmq_server, database, lease)
    settings.DELAYQ = {"default": delayq}
    with site_on(delayq, database_env, rabbitmq_server) as site:
        yield site
