"""Handlers that remember nothing of the test before. The public fixtures are found by pytest itself."""

from collections.abc import Iterator

import pytest

from tests.testing import handlers


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    handlers.seen.clear()
    handlers.batches_done.clear()
    yield
    handlers.seen.clear()
