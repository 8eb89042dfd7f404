"""How the keys are laid out is said under the prefix: a process that has it otherwise is refused, and loses nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused
from tests import servers
from tests.brokers.rig import LEASE_MS, OPTIONS, ids
from tests.servers import ClusterServers, Server

MANY = [f"{n}" for n in range(40)]

Process = Callable[..., RedisBroker]


ONE_SERVER = pytest.mark.parametrize("location", ["one server"], indirect=True)


@pytest.fixture
def redis_binary() -> str:
    """One will do."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture(params=["one server", "cluster"])
def location(request: pytest.FixtureRequest) -> str:
    """Return where the keys are."""
    if request.param == "cluster":
        cluster: ClusterServers = request.getfixturevalue("redis_cluster")
        return cluster.location
    server: Server = request.getfixturevalue("redis_server")
    return server.url


@pytest.fixture
def process(location: str) -> Iterator[Process]:
    """Start a process there, whose settings have these OPTIONS."""
    with ExitStack() as stack:

        def start(**options: object) -> RedisBroker:
            alias = Alias("default", location=location, options=replace(OPTIONS, **options))  # type: ignore[arg-type]
            return stack.enter_context(closing(RedisBroker(alias)))

        yield start


def send(broker: RedisBroker, *ids: str) -> None:
    broker.queue.enqueue([NewMessage(id, Header("q", "k"), b"1") for id in ids])


def claim(broker: RedisBroker) -> list[str]:
    """Claim all that is due, or will be in a moment."""
    claimed: list[str] = []
    while len(claimed) < len(MANY):
        claims = broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=LEASE_MS, worker="w")
        claimed += ids(claims.messages)
        if not claims.messages and claims.next_due_ms is None:
            break
    return sorted(claimed)


@pytest.mark.parametrize(("first", "other"), [(4, 16), (16, 4), (1, 3)])
def test_another_number_of_shards_is_refused_by_name_and_loses_nothing(
    process: Process, first: int, other: int
) -> None:
    ours = process(shards=first)
    send(ours, *MANY)
    for refused in (
        lambda: process(shards=other).open(),
        lambda: send(process(shards=other), "new", MANY[0]),
        lambda: process(shards=other).queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LEASE_MS, worker="w"),
        lambda: process(shards=other).queue.cancel(MANY),
        lambda: process(shards=other).queue.get(MANY[0]),
    ):
        with pytest.raises(BrokerRefused) as error:
            refused()
        told = str(error.value)
        assert f"OPTIONS[\"shards\"] is {other}, but this Redis is used with {first} under prefix 'delayq'" in told
        assert f"give all processes {first}, or another OPTIONS['prefix']" in told
    assert claim(ours) == sorted(MANY)
    assert ours.queue.audit().differences == []


def test_what_waits_by_the_old_number_ends_there_beside_a_new_prefix(process: Process) -> None:
    old, new = process(shards=4), process(shards=16, prefix="delayq-16")
    send(old, *MANY[:20])
    new.open()
    send(new, *MANY[20:])
    assert claim(new) == sorted(MANY[20:])
    assert claim(old) == sorted(MANY[:20])


@ONE_SERVER
def test_a_layout_of_another_version_is_refused_by_name(process: Process, redis_server: Server) -> None:
    process().open()
    with redis_server.client() as client:
        assert client.hget("{delayq:meta}", "layout") == b"1"
        client.hset("{delayq:meta}", "layout", 2)
    with pytest.raises(BrokerRefused, match=r"layout 2 under prefix 'delayq'.* knows layout 1: give this process the"):
        send(process(), "a")


@ONE_SERVER
def test_what_was_said_before_layouts_had_versions_is_the_first(process: Process, redis_server: Server) -> None:
    with redis_server.client() as client:
        client.hset("{delayq:meta}", "shards", 4)
    process(shards=4).open()
    with pytest.raises(BrokerRefused, match="is used with 4"):
        process(shards=5).open()
