"""Fixtures of the worker's tests."""

import threading
from collections.abc import Iterator

import pytest

from tests.worker.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A broker for workers, which end with the test."""
    rig = Rig()
    yield rig
    rig.stop()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Something that handlers wait for; opened at the end of the test, so that no thread stays."""
    gate = threading.Event()
    yield gate
    gate.set()
