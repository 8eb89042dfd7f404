"""A send that must be confirmed fails when it is not, and says that the message may be there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from django.core.checks import run_checks
from pytest_django import Settings

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.shards import Shards
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused, SendError
from tests.brokers.rig import OPTIONS
from tests.redis_users import allow, location_of
from tests.servers import ClusterServers, Server, free_port

SHARDS = Shards("delayq", 3)
IDS = [f"{n}" for n in range(30)]
MESSAGE = [NewMessage("a", Header("q", "k"), b"1")]


def broker_on(server: Server, confirm: str, location: str = "") -> RedisBroker:
    options = replace(OPTIONS, confirm=confirm)
    return RedisBroker(Alias("default", location=location or server.url, store=None, options=options))


def has_waitaof(server: Server) -> bool:
    with server.client() as client:
        return tuple(map(int, client.info("server")["redis_version"].split(".")[:2])) >= (7, 2)


def assert_refused(broker: RedisBroker, reason: str) -> None:
    """With the fix, however it is asked, and nothing was sent."""
    for ask in (
        broker.open,
        lambda: broker.queue.enqueue(MESSAGE),
        lambda: asyncio.run(broker.queue.aenqueue(MESSAGE)),
    ):
        with pytest.raises(BrokerRefused, match=reason) as refused:
            ask()
        assert 'OPTIONS["confirm"]' in str(refused.value)
    assert broker.queue.get("a") is None


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
        assert broker.queue.enqueue(MESSAGE)[0].created
        # The server did not have the script: what is waited for is the call that brought it.
        assert client.info("commandstats")["cmdstat_wait"]["calls"] == 2
    primary.kill()
    with replica.client() as client:
        assert client.hexists("{delayq:0}:msg", "a")


def test_what_no_replica_has_is_not_known(broker: RedisBroker) -> None:
    with pytest.raises(SendError, match="took it, but after 1 s no replica has it") as failed:
        broker.queue.enqueue(MESSAGE)
    assert failed.value.unknown == ("a",)
    assert broker.queue.get("a") is not None
    with pytest.raises(SendError, match="no replica"):  # again, and it is still in one place only
        asyncio.run(broker.queue.aenqueue(MESSAGE))


def test_what_is_on_disk_is_sent_where_the_server_can_tell(start_redis: Callable[..., Server]) -> None:
    server = start_redis(appendonly="yes", appendfsync="always")  # once a second may be too late on a busy disk
    with closing(broker_on(server, "fsync")) as broker:
        if has_waitaof(server):
            assert broker.queue.enqueue(MESSAGE)[0].created
        else:
            assert_refused(broker, "needs Redis 7.2 or newer")


def test_a_server_without_a_file_is_told_before_anything_is_sent(redis_server: Server) -> None:
    with closing(broker_on(redis_server, "fsync")) as broker:
        assert_refused(broker, 'give Redis "appendonly yes"' if has_waitaof(redis_server) else "needs Redis 7.2")


@pytest.mark.parametrize(("confirm", "needed"), [("replica", "wait"), ("fsync", "waitaof")])
def test_a_user_who_may_not_wait_is_told_before_anything_is_sent(
    redis_server: Server, confirm: str, needed: str
) -> None:
    if needed == "waitaof" and not has_waitaof(redis_server):
        pytest.skip("this Redis has no WAITAOF, which is told before who may use it")
    with closing(broker_on(redis_server, confirm, location_of(redis_server, "site"))) as broker:
        assert_refused(broker, rf"needs \+{needed} for this user")


def test_a_check_before_a_deploy_asks_the_broker(settings: Settings, redis_server: Server, registry: None) -> None:
    alias = {"LOCATION": redis_server.url, "STORE": None, "OPTIONS": {"confirm": "fsync"}}
    stored = alias | {"STORE": {}, "OPTIONS": {"confirm": "fsync", "prefix": "stored"}}
    settings.DELAYQ = {"default": alias, "stored": stored}
    assert [message.id for message in run_checks(tags=["delayq"])] == ["delayq.W006"]  # the store's: it does nothing
    settings.DELAYQ = {"default": alias}
    (message,) = run_checks(tags=["delayq"], include_deployment_checks=True)
    assert message.id == "delayq.E010"
    assert 'OPTIONS["confirm"]="fsync" needs' in message.msg
    settings.DELAYQ = {"default": alias | {"OPTIONS": {"confirm": "replica"}}}
    assert run_checks(tags=["delayq"], include_deployment_checks=True) == []
    settings.DELAYQ = {"default": alias | {"LOCATION": "redis://127.0.0.1:1"}}  # away: a deploy does not wait for it
    assert run_checks(tags=["delayq"], include_deployment_checks=True) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_what_can_be_confirmed_no_more_is_not_known(redis_server: Server, is_async: bool) -> None:
    """The permission is taken away after the first send: what is sent then is written, and is not refused."""
    location = location_of(redis_server, "site", "+wait")
    with closing(broker_on(redis_server, "replica", location)) as broker, redis_server.client() as client:
        broker.open()
        client.execute_command("ACL", "SETUSER", "delayq-site", "-wait")
        for _ in range(2):  # again under its id is safe
            with pytest.raises(SendError, match="Redis took it, but does not answer WAIT any more") as failed:
                asyncio.run(broker.queue.aenqueue(MESSAGE)) if is_async else broker.queue.enqueue(MESSAGE)
            assert "may have been taken; send again with the same id" in str(failed.value)
            assert failed.value.unknown == ("a",)
        assert broker.queue.get("a") is not None
        assert client.hget("{delayq:0}:count", "sent") == b"1"


def test_of_a_cluster_one_node_that_can_confirm_no_more_is_enough(redis_cluster: ClusterServers) -> None:
    rules = ("+cluster|slots", "+wait")
    login = {allow(node, "site", *rules) for node in redis_cluster.primaries}.pop()
    alias = Alias("default", location=redis_cluster.location.replace("://", f"://{login}@"), store=None)
    options = replace(OPTIONS, shards=3, confirm="replica")
    first, second = redis_cluster.primaries[:2]
    own = [next(id for id in IDS if redis_cluster.owner(SHARDS.of(id).msg) is node) for node in (first, second)]
    with closing(RedisBroker(replace(alias, options=options))) as broker:
        broker.open()
        with first.client() as client:
            client.execute_command("ACL", "SETUSER", "delayq-site", "-wait")
        with pytest.raises(SendError, match="does not answer WAIT any more") as failed:
            broker.queue.enqueue([NewMessage(id, Header("q", "k"), b"1") for id in own])
        assert failed.value.unknown == tuple(own)
        assert all(broker.queue.get(id) for id in own)
    with (
        closing(RedisBroker(replace(alias, options=options))) as broker,
        pytest.raises(BrokerRefused, match=r"needs \+wait"),
    ):
        broker.queue.enqueue([NewMessage("c", Header("q", "k"), b"1")])
