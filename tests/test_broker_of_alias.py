"""Which broker an alias uses: one for the process, until the settings change or the process forks."""

import os
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.memory import MemoryBroker

MEMORY: dict[str, Any] = {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}


class ClosingBroker(MemoryBroker):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_an_alias_has_one_broker(settings: Settings) -> None:
    settings.DELAYQ = {"default": MEMORY, "other": MEMORY}
    assert get_backend() is get_backend("default")
    assert get_backend("other") is not get_backend("default")


def test_changed_settings_close_the_broker(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": f"{__name__}.ClosingBroker", "STORE": None}}
    before = get_backend()
    assert isinstance(before, ClosingBroker)
    settings.DELAYQ = {"default": MEMORY}
    assert before.closed
    assert get_backend() is not before


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child only answers
def test_a_forked_process_has_a_broker_of_its_own(settings: Settings) -> None:
    settings.DELAYQ = {"default": MEMORY}
    before = get_backend()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if get_backend() is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert get_backend() is before


def test_a_broker_that_is_not_there_is_named(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.Nowhere"}}
    with pytest.raises(ImproperlyConfigured, match=r'DELAYQ\["default"\]\["BROKER"\]=.*Nowhere.* can\'t be imported'):
        get_backend()


def test_rabbitmq_without_its_client_names_the_extra(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("django_delayq.brokers.rabbitmq")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "amqp", None)
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.rabbitmq.RabbitMQBroker"}}
    with pytest.raises(ImproperlyConfigured, match=r"amqp.*; pip install 'django-delayq\[rabbitmq\]'"):
        get_backend()


def test_a_class_that_is_no_broker_is_named(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django.db.models.Model"}}
    with pytest.raises(ImproperlyConfigured, match=r"'django.db.models.Model' is no broker class, such as 'django_"):
        get_backend()
