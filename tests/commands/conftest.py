"""The brokers that the commands are tested on."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.brokers.redis.client import embedded
from tests import servers
from tests.commands import support
from tests.servers import Servers

MEMORY = "memory"


@pytest.fixture(params=[MEMORY, *(servers.redis_binaries() or [""])], ids=lambda binary: binary or "no redis-server")
def broker(request: pytest.FixtureRequest, settings: Settings, session_servers: Servers) -> Backend:
    """The broker of the default alias: a new memory broker, then each redis-server that is installed, emptied."""
    if request.param == MEMORY:
        settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    elif request.param:
        url = session_servers.shared(request.param).url
        alias = {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": url, "STORE": None}
        settings.DELAYQ = {"default": alias}
    else:
        servers.missing("redis-server")
    return get_backend()


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
