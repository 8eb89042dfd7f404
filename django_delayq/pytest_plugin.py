"""Define the fixtures that pytest finds by itself if django-delayq is installed, by the entry point `pytest11`.

pytest imports this module before Django is set up, so it imports the helpers of tests only in the fixtures.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_delayq.core.message import MessageInfo
    from django_delayq.testing import Attempt


@pytest.fixture
def delayq_memory() -> Iterator[None]:
    """Use an empty memory broker with a clock that can be moved for this test."""
    from django_delayq import testing

    with testing.use_memory_broker():
        yield


@pytest.fixture
def run_due(delayq_memory: None) -> "Callable[..., list[Attempt]]":
    """Return `testing.run_due`, with a memory broker for this test: `run_due(until="3d")`."""
    from django_delayq import testing

    return testing.run_due


@pytest.fixture
def sent_messages(delayq_memory: None) -> "Callable[..., list[MessageInfo]]":
    """Return `testing.sent_messages`, with a memory broker for this test."""
    from django_delayq import testing

    return testing.sent_messages


@pytest.fixture
def assert_sent(delayq_memory: None) -> "Callable[..., MessageInfo]":
    """Return `testing.assert_sent`, with a memory broker for this test: `assert_sent("order.close", delay="30m")`."""
    from django_delayq import testing

    return testing.assert_sent


@pytest.fixture
def assert_not_sent(delayq_memory: None) -> "Callable[..., None]":
    """Return `testing.assert_not_sent`, with a memory broker for this test."""
    from django_delayq import testing

    return testing.assert_not_sent
