"""A worker on a Redis Cluster outlives a node."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.shards import Keys, Shards
from django_delayq.conf import Alias
from tests import servers
from tests.brokers.rig import OPTIONS
from tests.servers import ClusterServers
from tests.worker.processes import Site, site_with

SHARDS = Shards("delayq", 3)
MANY = [f"{n:02}" for n in range(30)]


@pytest.fixture
def redis_binary() -> str:
    """One will do: it is about the worker."""
    return next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")


@pytest.fixture
def cluster(redis_binary: str) -> Iterator[ClusterServers]:
    """Its nodes keep their data over a restart."""
    with closing(
        ClusterServers(redis_binary, appendonly="yes", appendfsync="always", cluster_node_timeout=60_000)
    ) as cluster:
        yield cluster


@pytest.fixture
def own_site(cluster: ClusterServers, process_env: dict[str, str]) -> Iterator[Site]:
    """A site on it."""
    alias = {
        "BROKER": "django_delayq.brokers.redis.RedisBroker",
        "LOCATION": {"cluster": cluster.location.removeprefix("redis+cluster://").split(",")},
        "STORE": None,
        "OPTIONS": {"shards": 3},
    }
    broker = RedisBroker(Alias("default", location=cluster.location, options=replace(OPTIONS, shards=3)))
    with site_with(alias, broker, process_env, cluster.nodes[0].directory) as site:
        yield site


def parted(gone: Keys) -> tuple[list[str], list[str]]:
    """The ids of a shard, and all others."""
    own = [id for id in MANY if SHARDS.of(id) is gone]
    return own, [id for id in MANY if id not in own]


def test_a_worker_that_starts_while_a_node_is_gone_runs_the_rest_once_it_is_back(
    own_site: Site, cluster: ClusterServers
) -> None:
    own, others = parted(SHARDS.all[0])
    own_site.send(*MANY)
    cluster.owner(SHARDS.all[0].msg).kill()
    worker = own_site.worker()
    assert sorted(own_site.line.next().id for _ in others) == others
    cluster.owner(SHARDS.all[0].msg).start()
    assert sorted(own_site.line.next().id for _ in own) == own
    assert worker.stop() == 0
    assert own_site.line.none_waits()
    assert own_site.totals()["finished"] == len(MANY)


def test_a_worker_that_runs_outlives_the_node_that_holds_heartbeats_and_pauses_too(
    own_site: Site, cluster: ClusterServers
) -> None:
    gone = SHARDS.first.meta
    own, others = parted(SHARDS.all[1])
    assert cluster.owner(gone) is cluster.owner(SHARDS.all[1].msg)
    own_site.send(own[0], others[0], key="hold")
    worker = own_site.worker()
    held = [own_site.line.next(), own_site.line.next()]
    cluster.owner(gone).kill()
    worker.until_says("is away, and what its shards hold waits")
    held[0].release()
    own_site.send(*others[1:])
    heard = [own_site.line.next() for _ in others]
    assert sorted(call.id for call in heard) == sorted([held[0].id, *others[1:]])
    cluster.owner(gone).start()
    worker.until_says("is back")
    cluster.wait_until_whole()
    held[1].release()
    own_site.send(*own[1:])
    heard = [own_site.line.next() for _ in own]
    assert sorted(call.id for call in heard) == sorted([held[1].id, *own[1:]])
    assert worker.stop() == 0
    assert own_site.line.none_waits()
    assert own_site.totals()["finished"] == len(MANY)
    assert "Trying again" not in worker.text
    assert "overrun" not in worker.text
