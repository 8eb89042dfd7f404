"""A send that must be confirmed fails when it is not, and says that the message may be there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from django_delayq.brokers.base import Header, Put
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused, SendError
from tests.brokers.rig import OPTIONS
from tests.servers import Server, free_port

MESSAGE = [Put("a", Header("q", "k"), b"1")]


def broker_on(server: Server, confirm: str) -> RedisBroker:
    return RedisBroker(Alias("default", location=server.url, options=replace(OPTIONS, confirm=confirm)))


@pytest.fixture
def primary(start_redis: Callable[..., Server]) -> Server:
    return start_redis(port=free_port(), repl_diskless_sync_delay=0)


@pytest.fixture
def broker(primary: Server) -> Iterator[RedisBroker]:
    with closing(broker_on(primary, "replica")) as broker:
        yield broker


def test_what_a_replica_has_is_sent(broker: RedisBroker, primary: Server, start_redis: Callable[..., Server]) -> None:
    replica = start_redis(replicaof=f"127.0.0.1 {primary.options['port']}")
    with primary.client() as client:
        client.set("other", 1)
        assert client.wait(1, 60_000) == 1
        broker.open()
        client.config_resetstat()
        assert broker.put(MESSAGE)[0].created
        # The server did not have the script: what is waited for is the call that brought it.
        assert client.info("commandstats")["cmdstat_wait"]["calls"] == 2
    primary.kill()
    with replica.client() as client:
        assert client.hexists("{delayq:0}:msg", "a")


def test_what_no_replica_has_is_not_known(broker: RedisBroker) -> None:
    with pytest.raises(SendError, match="took it, but after 1 s no replica has it") as failed:
        broker.put(MESSAGE)
    assert failed.value.unknown == ("a",)
    assert broker.get("a") is not None
    with pytest.raises(SendError, match="no replica"):  # again, and it is still in one place only
        asyncio.run(broker.aput(MESSAGE))


def test_what_is_on_disk_is_sent_where_the_server_can_tell(start_redis: Callable[..., Server]) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")  # once a second may be too late on a busy disk
    with server.client() as client:
        version = tuple(map(int, client.info("server")["redis_version"].split(".")[:2]))
    with closing(broker_on(server, "fsync")) as broker:
        if version >= (7, 2):
            assert broker.put(MESSAGE)[0].created
        else:
            with pytest.raises(BrokerRefused, match="WAITAOF"):
                broker.put(MESSAGE)


def test_a_server_without_a_file_is_told_at_once(start_redis: Callable[..., Server]) -> None:
    with closing(broker_on(start_redis(), "fsync")) as broker, pytest.raises(BrokerRefused, match="WAITAOF"):
        broker.put(MESSAGE)
