"""A store on each database that it can use, with the memory broker as its clock."""

from typing import Any

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.store import DatabaseBackend


@pytest.fixture
def stored_delayq(settings: Settings, database: str) -> dict[str, Any]:
    """DELAYQ["default"] with a store for this test."""
    alias = {
        "BROKER": "django_delayq.brokers.memory.MemoryBroker",
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
