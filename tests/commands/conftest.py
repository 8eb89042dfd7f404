"""The brokers that the commands are tested on."""

import io
from collections.abc import Callable

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Broker
from tests.commands import support


@pytest.fixture(params=["memory", "redis"])
def broker(request: pytest.FixtureRequest, settings: Settings) -> Broker:
    """The broker of the default alias: a new memory broker, then an emptied Redis."""
    if request.param == "redis":
        request.getfixturevalue("redis_delayq")
    else:
        settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    return get_broker()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> support.Clock:
    """The clock of `clocked_broker`."""
    monkeypatch.setattr(support, "clock", support.Clock())
    return support.clock


@pytest.fixture
def clocked_broker(settings: Settings, clock: support.Clock) -> Broker:
    """A memory broker whose clock the test moves."""
    settings.DELAYQ = {"default": {"BROKER": "tests.commands.support.make_broker", "STORE": None}}
    return get_broker()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Types on standard input; nothing more comes after it."""
    return lambda typed: monkeypatch.setattr("sys.stdin", io.StringIO(typed))
