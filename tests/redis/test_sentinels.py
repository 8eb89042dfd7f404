"""A primary that dies is followed by its replica: senders and workers go on by themselves."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis.connection import SSLConnection

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, Pause, PermitRequest, SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.client import parse_location
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, OPTIONS, ids, redis_rig, settlement
from tests.servers.sentinel import Failover

HEADER = Header("q", "k")
HOUR = 3_600_000
R = TypeVar("R")


@pytest.fixture
def failover(redis_binary: str) -> Iterator[Failover]:
    with closing(Failover(redis_binary)) as failover:
        yield failover


@pytest.fixture
def broker(failover: Failover) -> Iterator[RedisBroker]:
    with closing(RedisBroker(Alias("default", location=failover.location(), options=OPTIONS))) as broker:
        yield broker


def once_it_is_back(call: Callable[[], R]) -> R:
    """Return what a worker's loop does with a broker that is away; each try waits by itself."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except BrokerUnavailable:
            assert time.monotonic() < end


def test_all_goes_on_with_the_replica_once_the_primary_is_dead(failover: Failover, broker: RedisBroker) -> None:
    broker.queue.enqueue([NewMessage(f"{n}", HEADER, b"1") for n in range(9)])
    assert asyncio.run(broker.queue.aenqueue([NewMessage("9", HEADER, b"1")]))[0].created
    broker.queue.claim([ClaimRequest("q", "none", 1)], lease_ms=LEASE_MS, worker="w")  # listens for wake-ups
    broker.queue.maintain(lease_ms=LEASE_MS)
    failover.fail_over()
    (placed,) = once_it_is_back(lambda: broker.queue.enqueue([NewMessage("after", HEADER, b"1")]))
    assert placed.created
    assert asyncio.run(broker.queue.aenqueue([NewMessage("after", HEADER, b"1")]))[0].created is False
    claimed = broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=LEASE_MS, worker="w").messages
    assert sorted(ids(claimed)) == [*(f"{n}" for n in range(10)), "after"]
    assert "lost" in broker.queue.maintain(lease_ms=LEASE_MS).lost_record  # a replica may not have had all: it is said
    assert broker.queue.audit().differences == []


def test_what_was_begun_before_a_failover_is_ended_after_it(failover: Failover) -> None:
    """The moves of the brokers' suite, of what was sent, claimed, buried, paused and limited before. The first is made
    while nobody is primary."""
    rig = redis_rig(failover.location(), failover.replica.client())
    with closing(rig.broker) as broker:
        rig.bury("rescued")
        rig.send("held")
        late = rig.claim_one()
        assert rig.settle(late, SettleAction.RELEASE)
        held = rig.claim_one()
        claimed = {verb: rig.claim_one() for verb in SettleAction if rig.send(verb)}
        rig.send("cancelled", "sooner", "replaced", "waits", delay_ms=HOUR)
        rig.send("due")
        broker.presence.pause(Pause("other", None, "a migration"))
        assert broker.limiter.acquire([PermitRequest("k", "", 1, 1)], lease_ms=HOUR) == [None]
        failover.fail_over()

        ends = [settlement(lease, verb, error="x", delay_ms=HOUR) for verb, lease in claimed.items()]
        assert once_it_is_back(lambda: broker.queue.apply(ends)) == [True] * len(SettleAction)
        assert not any(rig.settle(late, verb) for verb in SettleAction)
        assert broker.queue.renew([held], LEASE_MS) == [True]
        assert rig.send("waits", on_conflict="keep")[0].created is False
        rig.send("replaced", body=b"2", delay_ms=HOUR, on_conflict="replace")
        assert broker.queue.cancel(["cancelled"]) == broker.queue.rescue(["rescued"]) == [True]
        assert broker.queue.reschedule(["sooner"], at_ms=0) == [True]
        assert sorted(ids(rig.claim())) == ["crash", "due", "lapse", "rescued", "sooner"]
        assert broker.queue.get("finish") is broker.queue.get("cancelled") is None
        assert rig.states("retry", "snooze", "release", "waits") == [State.PENDING] * 4
        assert rig.states("interrupt", "held", "bury") == [State.RUNNING, State.RUNNING, State.FAILED]
        assert [rig.get(id).failures for id in ("retry", "snooze", "release")] == [1, 0, 0]
        assert rig.get("replaced").body == b"2"
        assert [pause.queue for pause in broker.presence.pauses()] == ["other"]
        assert broker.limiter.acquire([PermitRequest("k", "", 2, 1)], lease_ms=HOUR) != [None]
        assert broker.queue.audit().differences == []


def test_a_sender_wakes_who_sleeps_on_the_new_primary(failover: Failover, broker: RedisBroker) -> None:
    broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
    failover.primary.kill()
    once_it_is_back(lambda: broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w"))
    with closing(RedisBroker(Alias("default", location=failover.location(), options=OPTIONS))) as sender:
        sender.queue.enqueue([NewMessage("a", HEADER, b"1")])
    broker.queue.wait(30)
    assert ids(broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w").messages) == ["a"]


def test_a_name_that_no_sentinel_knows_is_told(failover: Failover) -> None:
    with (
        closing(RedisBroker(Alias("default", location=failover.location(name="shpo")))) as broker,
        pytest.raises(BrokerUnavailable, match="no sentinel answers that knows a living primary named 'shpo'"),
    ):
        broker.open()


def test_the_sentinels_password_is_not_the_servers(failover: Failover) -> None:
    with (
        closing(RedisBroker(Alias("default", location=failover.location(password="s3cr3t")))) as broker,
        pytest.raises(BrokerRefused, match="a sentinel's login: sentinel_username, sentinel_password") as refused,
    ):
        broker.open()
    assert "s3cr3t" not in str(refused.value)


def test_a_location_of_sentinels_is_read() -> None:
    found = parse_location("rediss+sentinel://site:pw@a:1,b,[::1]:3/my%20shop/2?ssl_ciphers=HIGH&sentinel_password=x")
    asked = found.options["sentinels"]
    assert asked.addresses == (("a", 1), ("b", 26379), ("::1", 3))
    assert asked.name == "my shop"
    assert asked.options == {
        "ssl_ciphers": "HIGH",
        "ssl_check_hostname": True,  # with redis-py before 6 they would be trusted under any name
        "ssl": True,
        "password": "x",
    }
    assert (found.options["username"], found.options["password"], found.options["db"]) == ("site", "pw", 2)
    assert issubclass(found.make, SSLConnection)  # type: ignore[arg-type]
    assert found.shown == (
        "rediss+sentinel://site:***@a:1,b,[::1]:3/my%20shop/2?ssl_ciphers=HIGH&sentinel_password=***"
    )


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("redis+sentinel://a:1", "can't be read"),
        ("redis+sentinel://a:port/shop", "can't be read"),
        ("redis+sentinel://,a/shop", "can't be read"),
        ("redis+sentinel://a/shop/x", "can't be read"),
        (
            "redis+sentinel://a/shop?sentinel_pasword=s3cr3t",
            "unknown option 'sentinel_pasword'; it .* sentinel_password",
        ),
        ("redis+sentinel://a/shop?colour=red", "unknown option 'colour'"),
        ("rediss+sentinel://a/shop?ssl_ca_certs=/nowhere", "which is no file here"),
    ],
)
def test_a_location_of_sentinels_that_is_wrong_names_the_fix(location: str, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message) as wrong:
        parse_location(location)
    assert "s3cr3t" not in str(wrong.value)
