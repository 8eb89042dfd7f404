"""The brokers that the commands are tested on."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.brokers.redis.client import embedded
from tests import servers
from tests.commands import support
from tests.servers import Servers

MEMORY = "memory"
ALONE = "the database alone"


CARRYING = [MEMORY, *(servers.redis_binaries() or [""])]


def _name(kind: str) -> str:
    return kind or "no redis-server"


@pytest.fixture(params=[*CARRYING, ALONE], ids=_name)
def broker(request: pytest.FixtureRequest, settings: Settings) -> Backend:
    """The broker of the default alias: a new memory broker, each installed redis-server, and a database alone."""
    settings.DELAYQ = {"default": _alias(request, request.param)}
    return get_backend()


@pytest.fixture(params=CARRYING, ids=_name)
def carrying(request: pytest.FixtureRequest, settings: Settings) -> Backend:
    """The same without the database alone: the messages are in no table."""
    settings.DELAYQ = {"default": _alias(request, request.param)}
    return get_backend()


def _alias(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    if kind == MEMORY:
        return {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}
    if kind == ALONE:
        broker = "django_delayq.brokers.database.DatabaseBroker"
        database = request.getfixturevalue("sqlite_database")
        return {"BROKER": broker, "DATABASE": database, "OPTIONS": {"unknown_keys": "allow"}}
    if not kind:
        servers.missing("redis-server")
    all_servers: Servers = request.getfixturevalue("session_servers")
    url = all_servers.shared(kind).url
    return {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": url, "STORE": None}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> support.Clock:
    """The clock of `clocked_broker`."""
    monkeypatch.setattr(support, "clock", support.Clock())
    return support.clock


@pytest.fixture
def clocked_broker(settings: Settings, clock: support.Clock) -> Backend:
    """A memory broker whose clock the test moves."""
    settings.DELAYQ = {"default": {"BROKER": "tests.commands.support.ClockedBroker", "STORE": None}}
    return get_backend()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Types on standard input; nothing more comes after it."""
    return lambda typed: monkeypatch.setattr("sys.stdin", io.StringIO(typed))


@pytest.fixture
def embedded_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose embedded server, if any, ends with the test."""
    yield tmp_path
    embedded.stop(tmp_path)
