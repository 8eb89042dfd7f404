"""A store on each database, with the embedded Redis as its clock."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.store import DatabaseBackend
from tests import servers
from tests.servers import RabbitMQServer, Server
from tests.store.support import site_on
from tests.store.zones import zones_that_change
from tests.worker.processes import Site


@pytest.fixture
def redis_binary() -> str:
    """One will do: the brokers' suite holds each version of Redis to the promises that a clock makes to its store."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture
def stored_delayq(settings: Settings, redis_url: str, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store for this test."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",  # the settings of the suite have another
        "LOCATION": redis_url,
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def alone_delayq(settings: Settings, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with the database alone, whose clock decides everything: for a `stored_delayq` of a module."""
    alias = {
        "BROKER": "django_delayq.brokers.database.DatabaseBroker",
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def rabbitmq_delayq(settings: Settings, rabbitmq_server: RabbitMQServer, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store whose alarms RabbitMQ holds."""
    alias = {
        "BROKER": "django_delayq.brokers.rabbitmq.RabbitMQBroker",
        "LOCATION": rabbitmq_server.url,
        "DATABASE": database,
        "STORE": {},
        "OPTIONS": {"unknown_keys": "allow"},
    }
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def broker(stored_delayq: dict[str, Any]) -> DatabaseBackend:
    """The broker of that alias."""
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


@pytest.fixture
def site(
    stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server, tmp_path: Path
) -> Iterator[Site]:
    """A site on a store, with leases of a second and a file that handlers write to."""
    stored_delayq["OPTIONS"] |= {"lease": "1s"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        site.env["DELAYQ_TEST_RECORD"] = str(tmp_path / "record")
        yield site


@pytest.fixture
def gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is away is waited for a tenth of a second, not two."""
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.BUDGET", 0.1)


@pytest.fixture
def change_zone(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Return a function that gives one zone the rules of another."""
    with zones_that_change(tmp_path) as change:
        yield change
