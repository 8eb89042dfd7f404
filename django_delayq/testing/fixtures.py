"""pytest fixtures, for a site that names this module in `pytest_plugins` of its top conftest.py."""

from collections.abc import Callable, Iterator

import pytest

from django_delayq import testing
from django_delayq.core.sends import MessageInfo
from django_delayq.testing import Attempt


@pytest.fixture
def delayq_memory() -> Iterator[None]:
    """An empty memory broker with virtual time for this test."""
    with testing.use_memory_broker():
        yield


@pytest.fixture
def run_due(delayq_memory: None) -> Callable[..., list[Attempt]]:
    """`run_due(until="3d")`, on a memory broker of this test."""
    return testing.run_due


@pytest.fixture
def sent_messages(delayq_memory: None) -> Callable[..., list[MessageInfo]]:
    """`sent_messages()`, on a memory broker of this test."""
    return testing.sent_messages
