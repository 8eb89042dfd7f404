"""The public fixtures, and handlers that remember nothing of the test before."""

from collections.abc import Iterator

import pytest

from django_delayq.testing.fixtures import (
    delayq_memory as delayq_memory,
    run_due as run_due,
    sent_messages as sent_messages,
)
from tests.testing import handlers


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    handlers.seen.clear()
    yield
    handlers.seen.clear()
