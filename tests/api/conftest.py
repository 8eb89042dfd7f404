"""A memory broker whose clock stands still, and a handler."""

from typing import Any

import pytest
from pytest_django import Settings

from django_delayq import Handler, Message, brokers, delay_execute
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import get_alias
from django_delayq.signals import message_sent, send_failed
from tests.api.support import NOW, Noted


@pytest.fixture
def broker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """The broker of the default alias. By its clock it is `NOW`."""
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    broker = MemoryBroker(get_alias(), clock_ms=lambda: NOW)
    monkeypatch.setitem(brokers._backends, "default", broker)
    return broker


@pytest.fixture
def close_order(registry: None, broker: MemoryBroker) -> Handler[int, None]:
    """A handler of whole numbers."""

    @delay_execute("order.close")
    def close_order(message: Message[int]) -> None: ...

    return close_order


@pytest.fixture
def any_data(registry: None, broker: MemoryBroker) -> Handler[Any, None]:
    """A handler of whatever JSON carries."""

    @delay_execute("any")
    def any_data(message: Message[Any]) -> None: ...

    return any_data


@pytest.fixture
def sent_signals() -> Any:
    """Return what receivers of `message_sent` got."""
    with Noted(message_sent) as noted:
        yield noted


@pytest.fixture
def failed_signals() -> Any:
    """Return what receivers of `send_failed` got."""
    with Noted(send_failed) as noted:
        yield noted
