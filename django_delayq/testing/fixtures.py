"""Define pytest fixtures, for a site that names this module in `pytest_plugins` of its top conftest.py."""

from collections.abc import Callable, Iterator

import pytest

from django_delayq import testing
from django_delayq.core.message import MessageInfo
from django_delayq.testing import Attempt


@pytest.fixture
def delayq_memory() -> Iterator[None]:
    """Use an empty memory broker with a clock that can be moved for this test."""
    with testing.use_memory_broker():
        yield


@pytest.fixture
def run_due(delayq_memory: None) -> Callable[..., list[Attempt]]:
    """Return `testing.run_due`, with a memory broker for this test: `run_due(until="3d")`."""
    return testing.run_due


@pytest.fixture
def sent_messages(delayq_memory: None) -> Callable[..., list[MessageInfo]]:
    """Return `testing.sent_messages`, with a memory broker for this test."""
    return testing.sent_messages
