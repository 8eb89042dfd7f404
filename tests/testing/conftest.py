"""A broker in memory with virtual time for each test, as the public fixture gives it."""

from collections.abc import Iterator

import pytest

from django_delayq.testing.fixtures import (
    delayq_memory as delayq_memory,
    run_due as run_due,
    sent_messages as sent_messages,
)
from tests.testing import handlers


@pytest.fixture(autouse=True)
def _clean(delayq_memory: None) -> Iterator[None]:
    handlers.seen.clear()
    yield
    handlers.seen.clear()
