"""A Redis broker of the test's own, and plain access to what it keeps."""

from collections.abc import Callable, Iterator

import pytest

from django_delayq.brokers.redis.client import Client, client_of, parse_location
from tests.brokers.rig import Rig, redis_rig
from tests.servers import Server


@pytest.fixture
def rig(redis_server: Server) -> Iterator[Rig]:
    """A broker on the shared, emptied server."""
    with redis_server.client() as client:
        rig = redis_rig(redis_server.url, client)
        yield rig
        rig.broker.close()


@pytest.fixture
def links(redis_server: Server) -> Iterator[Client]:
    """Connections to the shared server, to run single operations on."""
    links = client_of(parse_location(redis_server.url))
    yield links
    links.close()


@pytest.fixture
def own_server(start_redis: Callable[..., Server]) -> Server:
    """A server that the test may configure, freeze and kill."""
    return start_redis()


@pytest.fixture
def own_rig(own_server: Server) -> Iterator[Rig]:
    """A broker on it."""
    with own_server.client() as client:
        rig = redis_rig(own_server.url, client)
        yield rig
        rig.broker.close()
