"""A message that no send would take is not read: it fails, and its data stays where it is."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from django_delayq.brokers.base import Claimed
from django_delayq.brokers.redis.queries import Place
from django_delayq.brokers.redis.queue import RedisQueue
from django_delayq.brokers.redis.shards import HEADER_BYTES
from django_delayq.worker.attempt import bury_foreign
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, redis_rig
from tests.servers import Server

MOST = 1_000
LARGE = b'"%s"' % (b"x" * (MOST + HEADER_BYTES))


@pytest.fixture
def rig(redis_server: Server) -> Iterator[Rig]:
    with redis_server.client() as client:
        rig = redis_rig(redis_server.url, client, replace(OPTIONS, max_data=MOST))
        yield rig
        rig.broker.close()


def _bury(rig: Rig, claimed: Claimed) -> str:
    assert (claimed.header, claimed.body) == (None, b"")
    transition = bury_foreign(claimed)
    assert rig.broker.queue.apply([transition]) == [True]
    return transition.error or ""


def test_a_claim_reads_what_a_send_takes_and_no_more(rig: Rig) -> None:
    rig.send("large", body=LARGE)
    rig.send("ours", body=b'"%s"' % (b"x" * (MOST - 2)), tag="t" * 200, trace_id="☕" * 200)
    by_id = {claimed.id: claimed for claimed in rig.claim()}
    assert len(by_id["ours"].body) == MOST
    assert f"over the {MOST + HEADER_BYTES} that OPTIONS['max_data'] lets through" in _bury(rig, by_id["large"])
    (failed,) = rig.broker.queue.failed(9)
    assert (failed.id, failed.header.queue, failed.header.key, failed.body) == ("large", "q", "k", b"")


def test_a_suspect_is_not_read_either(rig: Rig) -> None:
    rig.send("large", body=LARGE)
    rig.crash(2)
    (claimed,) = rig.claim_suspect()
    assert "so it was not read" in _bury(rig, claimed)


def test_a_claim_whose_reply_was_lost_does_not_read_it_the_second_time(rig: Rig, redis_server: Server) -> None:
    rig.send("large", body=LARGE)
    with redis_server.client() as client:
        (first,) = rig.claim()
        client.zadd("{delayq:0}:wait:q:k", {"large": 1})
        (second,) = rig.claim()
    assert (first.body, second.body) == (b"", b"")


def test_looks_show_its_header_alone(rig: Rig) -> None:
    rig.send("large", body=LARGE, delay_ms=60_000)
    for info in (rig.broker.queue.get("large"), *rig.broker.queue.peek("q", 9)):
        assert info is not None
        assert (info.header.key, info.body) == ("k", b"")


def test_what_reads_all_that_waits_in_bulk_gets_its_header_alone(rig: Rig) -> None:
    rig.send("large", body=LARGE, delay_ms=60_000)
    queue = rig.broker.queue
    assert isinstance(queue, RedisQueue)
    found, _next = queue.scan(0, "q:k", Place(0), 10**15, 9)
    assert [(message.id, message.header.key, message.body) for message in found] == [("large", "k", b"")]


def test_a_state_of_such_a_size_is_not_read(rig: Rig, redis_server: Server) -> None:
    rig.send("a", delay_ms=60_000)
    with redis_server.client() as client:
        client.hset("{delayq:0}:state", "a", b"7\x1f0\x1f0\x1f1\x1fw\x1f" + LARGE)
    info = rig.broker.queue.get("a")
    assert info is not None
    assert len(info.error) < MOST


def test_it_can_be_rescued_once_more_is_let_through(rig: Rig, redis_server: Server) -> None:
    rig.send("large", body=LARGE)
    _bury(rig, *rig.claim())
    with redis_server.client() as client:
        larger = redis_rig(redis_server.url, client, replace(OPTIONS, max_data=len(LARGE)))
        assert larger.broker.queue.rescue(["large"]) == [True]
        assert larger.claim_one().body == LARGE
        larger.broker.close()


def test_its_state_and_its_lease_are_those_of_any_other(rig: Rig) -> None:
    rig.send("large", body=LARGE)
    rig.claim()
    rig.advance(LEASE_MS)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1
    assert rig.broker.queue.cancel(["large"]) == [True]
    assert rig.broker.queue.audit().differences == []
