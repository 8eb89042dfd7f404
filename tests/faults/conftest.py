"""A site whose Redis, and whose way to it, can be made to fail."""

from collections.abc import Callable, Iterator

import pytest
from pytest_django import Settings

from tests.proxy import Proxy, proxy_before
from tests.servers import Server


@pytest.fixture
def server(start_redis: Callable[..., Server]) -> Server:
    """A server of the test's own."""
    return start_redis(appendonly="yes", appendfsync="always")


@pytest.fixture
def network(server: Server) -> Iterator[Proxy]:
    """The way to it."""
    with proxy_before(server) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def site(settings: Settings, network: Proxy) -> None:
    """A site that sends any key, by way of that network."""
    settings.DELAYQ = {"default": {"LOCATION": network.url, "STORE": None, "OPTIONS": {"unknown_keys": "allow"}}}
