"""LOCATION of a cluster: how it is written, what is wrong with it, and what a worker is told that uses it."""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis.connection import SSLConnection

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.client import parse_location
from django_delayq.conf import Alias, parse_alias
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, SendError
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, ids, settlement
from tests.redis_users import allow
from tests.servers import ClusterServers, Server, free_port

NODES = ["a:1", "b", "[::1]:3"]


def test_a_location_of_a_cluster_is_read() -> None:
    found = parse_location("rediss+cluster://site:p%2Fw@a:1,b,[::1]:3?ssl_cert_reqs=none")
    assert found.nodes == (("a", 1), ("b", 6379), ("::1", 3))
    assert found.make is SSLConnection
    tls = {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert found.options == {"username": "site", "password": "p/w", **tls}
    assert found.shown == "rediss+cluster://site:***@a:1,b,[::1]:3?ssl_cert_reqs=none"
    node = found.at(("a", 1))
    assert (node.shown, node.options["host"], node.options["port"], node.nodes) == ("a:1", "a", 1, ())


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ({"cluster": NODES}, "redis+cluster://a:1,b,[::1]:3"),
        (
            {"cluster": NODES, "username": "si/te", "password": "p@:/?#w", "tls": True},
            "rediss+cluster://si%2Fte:p%40%3A%2F%3F%23w@a:1,b,[::1]:3",
        ),
        (
            {"cluster": ["a"], "password": "pw", "tls": {"cert_reqs": "none", "check_hostname": False}},
            "rediss+cluster://:pw@a?ssl_cert_reqs=none&ssl_check_hostname=False",
        ),
        ({"sentinels": NODES, "name": "my shop"}, "redis+sentinel://a:1,b,[::1]:3/my%20shop/0"),
        (
            {
                "sentinels": ["a"],
                "name": "shop",
                "db": 2,
                "password": "pw",
                "sentinel_password": "s&=",
                "tls": {"cert_reqs": "none"},
            },
            "rediss+sentinel://:pw@a/shop/2?sentinel_password=s%26%3D&ssl_cert_reqs=none",
        ),
    ],
)
def test_a_dict_is_the_same_as_its_url(location: Mapping[str, Any], url: str) -> None:
    found, told = parse_location(parse_alias("a", {"LOCATION": location}).location), parse_location(url)
    assert (found.nodes, found.make, found.options, found.shown) == (told.nodes, told.make, told.options, told.shown)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("redis+cluster://", "can't be read"),
        ("redis+cluster://a:port", "can't be read"),
        ("redis+cluster://a/1", "can't be read"),
        ("redis+cluster://a?db=1", "a cluster has only one"),
        ("redis+cluster://,a", "can't be read"),
        ("redis+cluster://:s3cr3t@a?colour=red", "unknown option 'colour'"),
        ("redis+cluster://a?ssl_cert_reqs=none", "unknown option 'ssl_cert_reqs'"),
        ("rediss+cluster://:s3cr3t@a?ssl_ca_certs=/nowhere", "which is no file here"),
        ({}, 'a dict with no address; give it one of "host", "socket", "cluster"'),
        ({"cluster": ["a"], "sentinels": ["b"]}, 'with "cluster" and "sentinels"'),
        ({"cluster": "a:1"}, r'LOCATION\["cluster"\] is no list of "HOST:PORT"'),
        ({"cluster": []}, r'LOCATION\["cluster"\] is no list'),
        ({"cluster": ["site:s3cr3t@a"]}, 'has more than "HOST:PORT" in it'),
        ({"cluster": ["a"], "pasword": "s3cr3t"}, "no setting 'pasword': did you mean 'password'"),
        ({"cluster": ["a"], "db": 1}, "no setting 'db'"),
        ({"cluster": ["a"], "password": b"s3cr3t"}, r'LOCATION\["password"\] is bytes; give a str'),
        ({"cluster": ["a"], "tls": "yes"}, r'LOCATION\["tls"\] is str; give True, or a dict of ca_certs'),
        ({"cluster": ["a"], "tls": {"ca_cert": "x"}}, r'LOCATION\["tls"\] has no setting \'ca_cert\''),
        ({"cluster": ["a"], "tls": {"ca_certs": "/nowhere"}}, "which is no file here"),
        ({"sentinels": ["a"]}, 'has no "name"'),
        ({"sentinels": ["a"], "name": "shop", "db": "one"}, r'LOCATION\["db"\] is \'one\''),
    ],
)
def test_a_location_of_a_cluster_that_is_wrong_names_the_fix(location: object, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message) as wrong:
        parse_location(location)
    assert "s3cr3t" not in str(wrong.value)


def test_a_single_server_is_no_cluster(redis_server: Server, start_redis: Any) -> None:
    server = start_redis(port=free_port())
    location = f"redis+cluster://127.0.0.1:{server.options['port']}"
    with (
        closing(RedisBroker(Alias("default", location=location))) as broker,
        pytest.raises(BrokerRefused, match=r"cluster support disabled; write redis://HOST:PORT/DB in LOCATION"),
    ):
        broker.open()


def test_one_node_of_a_cluster_is_no_single_server(redis_cluster: ClusterServers) -> None:
    with (
        closing(RedisBroker(Alias("default", location=redis_cluster.primaries[0].tcp_url))) as broker,
        pytest.raises(BrokerRefused, match=r"one node of a cluster: name it with redis\+cluster://"),
    ):
        broker.open()


def test_no_node_that_answers_is_an_outage() -> None:
    location = f"redis+cluster://:s3cr3t@127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with closing(RedisBroker(Alias("default", location=location, options=OPTIONS))) as broker:
        with pytest.raises(BrokerUnavailable, match="no node of the cluster has answered yet") as away:
            broker.open()
        with pytest.raises(SendError) as unsent:
            asyncio.run(broker.queue.aenqueue([NewMessage("a", Header("q", "k"), b"1")]))
    assert "s3cr3t" not in f"{away.value}{unsent.value}"


def test_a_worker_is_told_what_it_is_on(cluster_rig: Rig) -> None:
    found = cluster_rig.broker.report()
    assert found.problems == []
    assert "redis+cluster://" in found.server


def test_what_is_published_on_one_node_is_heard_on_all(cluster_rig: Rig) -> None:
    broker = cluster_rig.broker
    for id in ("a", "b", "c", "d", "e"):  # on all nodes
        assert cluster_rig.claim() == []
        cluster_rig.send(id)
        broker.queue.wait(30)
        assert ids(broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w").messages) == [id]


def test_async_sends_reach_every_node_over_several_loops(cluster_rig: Rig, redis_cluster: ClusterServers) -> None:
    many = [f"{n}" for n in range(20)]
    for half in (many[:10], many[10:]):
        placed = asyncio.run(cluster_rig.broker.queue.aenqueue([NewMessage(id, Header("q", "k"), b"1") for id in half]))
        assert [one.id for one in placed if one.created] == half
    assert sorted(ids(cluster_rig.claim_all())) == sorted(many)


def test_scripts_that_a_node_forgot_are_sent_again(cluster_rig: Rig, redis_cluster: ClusterServers) -> None:
    many = [f"{n}" for n in range(20)]
    cluster_rig.send(*many[:10])
    for node in redis_cluster.primaries:
        node.forget_scripts()
    cluster_rig.send(*many[10:])
    assert sorted(ids(cluster_rig.claim_all())) == sorted(many)


def test_each_node_is_looked_at_before_a_worker_starts(cluster_rig: Rig, redis_cluster: ClusterServers) -> None:
    first = redis_cluster.primaries[0]
    with first.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("cluster-require-full-coverage", "yes")
        try:
            found = cluster_rig.broker.report()
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("cluster-require-full-coverage", "no")
    assert [problem for problem in found.problems if "allkeys-lru" in problem]
    assert [warning for warning in found.warnings if "the whole cluster is down" in warning]


def test_a_worker_with_the_least_permissions_works_on_a_cluster(redis_cluster: ClusterServers) -> None:
    login = {allow(node, "worker", "+cluster|slots") for node in redis_cluster.primaries}.pop()
    location = redis_cluster.location.replace("://", f"://{login}@")
    with closing(RedisBroker(Alias("default", location=location, options=replace(OPTIONS, shards=3)))) as broker:
        assert broker.report().problems == []
        broker.queue.enqueue([NewMessage(f"{n}", Header("q", "k"), b"1") for n in range(9)])
        claimed = broker.queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LEASE_MS, worker="w").messages
        assert sorted(ids(claimed)) == [f"{n}" for n in range(9)]
        assert broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claimed]) == [True] * 9
        assert broker.queue.audit().differences == []


def test_what_a_node_forbids_is_told_by_its_name(redis_cluster: ClusterServers) -> None:
    login = {allow(node, "site", "+cluster|slots") for node in redis_cluster.primaries}.pop()
    location = redis_cluster.location.replace("://", f"://{login}@")
    with (
        closing(RedisBroker(Alias("default", location=location, options=OPTIONS))) as broker,
        pytest.raises(BrokerRefused, match=r" refused claim\.lua: .*; use the user that docs/how-to/deploy\.md lists"),
    ):
        broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
