"""Handlers that remember nothing of the test before. The public fixtures are found by pytest itself."""

import sys
from collections.abc import Iterator

import pytest

from tests.testing import handlers


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    handlers.seen.clear()
    handlers.batches_done.clear()
    yield
    handlers.seen.clear()


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no library be installed that moves the clock, so that messages get older."""
    monkeypatch.setitem(sys.modules, "time_machine", None)
    monkeypatch.setitem(sys.modules, "freezegun", None)
    monkeypatch.delitem(sys.modules, "freezegun.api", raising=False)
