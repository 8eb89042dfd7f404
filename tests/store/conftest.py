"""A store on each database, with the embedded Redis as its clock."""

from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.store import DatabaseBackend
from tests import servers


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
def broker(stored_delayq: dict[str, Any]) -> DatabaseBackend:
    """The broker of that alias."""
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


@pytest.fixture
def gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is away is waited for a tenth of a second, not two."""
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.BUDGET", 0.1)
