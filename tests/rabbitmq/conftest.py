"""A RabbitMQ broker on a shared node, and sites whose workers use it."""

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
    """A broker that carries messages."""
    with broker_on(rabbitmq_server) as broker:
        yield broker


@pytest.fixture
def clock() -> Clock:
    """One for brokers whose time a test moves."""
    return Clock()


def delayq_on(server: RabbitMQServer, store: dict[str, Any] | None, lease: str = "2s") -> dict[str, Any]:
    """DELAYQ["default"] on this node."""
    return {
        "BROKER": "django_delayq.brokers.rabbitmq.RabbitMQBroker",
        "LOCATION": server.url,
        "STORE": store,
        "OPTIONS": {"unknown_keys": "allow", "lease": lease},
    }


@pytest.fixture(params=[None, {}], ids=["carrying", "with a store"])
def store(request: pytest.FixtureRequest) -> dict[str, Any] | None:
    """STORE of DELAYQ["default"]."""
    setting: dict[str, Any] | None = request.param
    return setting


@pytest.fixture
def database(sqlite_database: str) -> str:
    """The alias of a migrated database of its own."""
    return sqlite_database


@pytest.fixture
def lease() -> str:
    """How long a dead worker's messages wait."""
    return "2s"


@pytest.fixture
def site(
    settings: Settings,
    rabbitmq_server: RabbitMQServer,
    store: dict[str, Any] | None,
    lease: str,
    database: str,
    database_env: dict[str, str],
) -> Iterator[Site]:
    """A site whose messages RabbitMQ carries, or for whose rows it holds the alarms."""
    delayq = delayq_on(rabbitmq_server, store, lease) | {"DATABASE": database}
    settings.DELAYQ = {"default": delayq}
    with site_on(delayq, database_env, rabbitmq_server) as site:
        yield site
