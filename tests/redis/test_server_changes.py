"""A server whose clock jumps, that is restarted, or that loses its data."""

import time
from collections.abc import Callable

import pytest

from django_delayq.brokers.redis.client import Client
from django_delayq.brokers.redis.client.client import Contact
from django_delayq.brokers.redis.maintenance import ShardMonitor
from django_delayq.brokers.redis.shards import Keys
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, redis_rig
from tests.servers import Server

KEYS = Keys("delayq")
DAY = 86_400_000


def reclaim_as_if(links: Client, expected_ms: int) -> int:
    """One upkeep by a worker whose own clock expects that server time. Gives how many were reclaimed."""
    monitor = ShardMonitor(KEYS, links)
    monitor._clock = expected_ms, time.monotonic()
    return links.run(monitor.maintain(OPTIONS, LEASE_MS)).reclaimed


def contact_of(links: Client) -> Contact:
    contact = links.contact(KEYS.epoch)
    assert contact is not None
    return contact


def server_ms(server: Server) -> int:
    with server.client() as client:
        seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_after_a_jump_of_the_clock_holders_may_renew_before_anything_is_reclaimed(
    rig: Rig, redis_server: Server, links: Client
) -> None:
    rig.send("a", "b")
    first, _ = rig.claim()
    rig.advance(DAY)
    assert reclaim_as_if(links, server_ms(redis_server) - DAY) == 0
    assert rig.broker.queue.renew([first], LEASE_MS) == [True]
    with redis_server.client() as client:
        client.hset(KEYS.epoch, "grace", 0)  # the grace of one lease is over
    assert reclaim_as_if(links, server_ms(redis_server)) == 1
    assert rig.states("a", "b") == [State.RUNNING, State.READY]


def test_a_jump_that_another_worker_saw_is_not_waited_for_twice(rig: Rig, redis_server: Server, links: Client) -> None:
    expected = server_ms(redis_server) - DAY
    reclaim_as_if(links, expected)
    with redis_server.client() as client:
        grace = client.hget(KEYS.epoch, "grace")
        reclaim_as_if(links, expected)
        assert client.hget(KEYS.epoch, "grace") == grace


def test_after_redis_hung_holders_may_renew_before_anything_is_reclaimed(rig: Rig, redis_server: Server) -> None:
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.send("a")
    claimed = rig.claim_one()
    rig.advance(LEASE_MS)
    with redis_server.client() as client:  # nobody got through since then
        client.hset(KEYS.epoch, "upkept", server_ms(redis_server) - LEASE_MS)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 0
    assert rig.broker.queue.renew([claimed], LEASE_MS) == [True]
    rig.advance(LEASE_MS)
    with redis_server.client() as client:  # its grace is over, and the next upkeep as late: the worker is slow
        now_ms = server_ms(redis_server)
        client.hset(KEYS.epoch, mapping={"grace": now_ms - 1, "upkept": now_ms - LEASE_MS})
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1


def test_a_worker_started_anew_does_not_wait_for_those_that_died(rig: Rig, redis_server: Server) -> None:
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.send("a")
    rig.claim_one()
    rig.advance(LEASE_MS)
    with redis_server.client() as client:
        client.hset(KEYS.epoch, "upkept", server_ms(redis_server) - LEASE_MS)
    broker = redis_rig(redis_server.url, redis_server.client()).broker
    assert broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1
    broker.close()


def test_after_redis_hung_again_holders_may_renew_again(rig: Rig, redis_server: Server, links: Client) -> None:
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.send("a")
    claimed = rig.claim_one()
    rig.advance(LEASE_MS)
    contact_of(links).lose()
    with redis_server.client() as client:  # the grace of the last time is just over
        now_ms = server_ms(redis_server)
        client.hset(KEYS.epoch, mapping={"grace": now_ms - 1, "upkept": now_ms - LEASE_MS})
    assert reclaim_as_if(links, server_ms(redis_server)) == 0
    assert rig.broker.queue.renew([claimed], LEASE_MS) == [True]


def test_a_worker_that_starts_while_redis_hangs_lets_holders_renew(
    rig: Rig, redis_server: Server, links: Client
) -> None:
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.send("a")
    claimed = rig.claim_one()
    rig.advance(LEASE_MS)
    contact_of(links).lose()
    with redis_server.client() as client:
        client.hset(KEYS.epoch, "upkept", server_ms(redis_server) - LEASE_MS)
    assert links.run(ShardMonitor(KEYS, links).maintain(OPTIONS, LEASE_MS)).reclaimed == 0
    assert rig.broker.queue.renew([claimed], LEASE_MS) == [True]


def test_a_call_that_waited_in_a_server_that_hung_ends_no_lease(rig: Rig, redis_server: Server, links: Client) -> None:
    rig.send("a")
    rig.claim()
    rig.advance(LEASE_MS)
    now_ms = server_ms(redis_server)
    with redis_server.client() as client:  # another call of that time has come before it
        client.hset(KEYS.epoch, mapping={"jumped": now_ms, "upkept": now_ms})
    assert reclaim_as_if(links, now_ms - LEASE_MS // 3 - 1) == 0
    assert reclaim_as_if(links, server_ms(redis_server)) == 1


def test_after_a_call_that_waited_so_holders_may_renew(rig: Rig, redis_server: Server, links: Client) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    rig.advance(LEASE_MS)
    with redis_server.client() as client:  # the grace of the last time is just over
        now_ms = server_ms(redis_server)
        client.hset(KEYS.epoch, mapping={"jumped": now_ms, "grace": now_ms - 1, "upkept": now_ms - LEASE_MS})
    reclaim_as_if(links, server_ms(redis_server) - LEASE_MS // 3 - 1)
    assert reclaim_as_if(links, server_ms(redis_server)) == 0
    assert rig.broker.queue.renew([claimed], LEASE_MS) == [True]


def test_after_a_jump_back_no_lease_lasts_for_a_day(rig: Rig) -> None:
    rig.send("a")
    rig.claim()
    rig.advance(-DAY)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.advance(LEASE_MS)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1


def test_a_new_server_is_no_loss(rig: Rig) -> None:
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record == ""
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record == ""


def test_flushed_data_are_told_once(rig: Rig, redis_server: Server) -> None:
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    with redis_server.client() as client:
        client.flushall()
    assert "flushed" in rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record == ""


@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_a_restart_is_told(start_redis: Callable[..., Server], appendonly: str) -> None:
    own_server = start_redis(appendonly=appendonly)
    own_rig = redis_rig(own_server.url, own_server.client())
    own_rig.send("a", delay_ms=DAY)
    own_rig.broker.queue.maintain(lease_ms=LEASE_MS)
    own_server.restart()
    told = own_rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record
    assert ("restarted" if appendonly == "yes" else "flushed") in told
    assert (own_rig.broker.queue.get("a") is not None) == (appendonly == "yes")
    own_rig.broker.close()
