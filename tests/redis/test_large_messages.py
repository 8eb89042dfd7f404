"""A message that no send would take is not read: it fails, and its data stays where it is."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from django_delayq.brokers.base import Claimed, Place
from django_delayq.brokers.redis.queue import RedisQueue
from django_delayq.brokers.redis.shards import HEADER_BYTES
from django_delayq.core.message import State
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


# What is over 1 MiB is not read by any look or move either, which find it by its place alone.

HUGE = b'"%s"' % (b"x" * 2**20)
WAIT, MSG = "{delayq:0}:wait:q:k", "{delayq:0}:msg"


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_a_huge_one_is_removed_like_any_other(rig: Rig, client: redis.Redis, verb: str) -> None:
    rig.send("huge", body=HUGE, delay_ms=60_000)
    assert getattr(rig.broker.queue, verb)(["huge"]) == [True]
    assert (client.exists(WAIT, MSG), rig.broker.queue.audit().differences) == (0, [])


@pytest.mark.parametrize("change", ["reschedule", "earliest", "latest"])
def test_a_huge_one_gets_another_due_time_and_keeps_its_data(rig: Rig, client: redis.Redis, change: Any) -> None:
    rig.send("huge", body=HUGE, delay_ms=60_000)
    before, message = client.zscore(WAIT, "huge") or 0, client.hget(MSG, "huge")
    delay_ms = 90_000 if change == "latest" else 30_000
    if change == "reschedule":
        assert rig.broker.queue.reschedule(["huge"], delay_ms=delay_ms) == [True]
    else:
        rig.send("huge", key="other", delay_ms=delay_ms, on_conflict=change)
    assert client.zscore(WAIT, "huge") == pytest.approx(before + delay_ms - 60_000, abs=5_000)
    assert client.hget(MSG, "huge") == message
    assert rig.broker.queue.audit().differences == []


def test_a_huge_one_is_kept_or_replaced_by_a_send_to_another_key(rig: Rig, client: redis.Redis) -> None:
    rig.send("huge", body=HUGE, delay_ms=60_000)
    message = client.hget(MSG, "huge")
    rig.send("huge", key="other", delay_ms=60_000)
    assert client.hget(MSG, "huge") == message
    rig.send("huge", key="other", delay_ms=60_000, on_conflict="replace")
    assert rig.get("huge").header.key == "other"
    assert (client.exists(WAIT), rig.broker.queue.audit().differences) == (0, [])


def test_a_huge_one_is_seen_where_it_is(rig: Rig) -> None:
    rig.send("huge", body=HUGE, delay_ms=60_000)
    for info in (rig.get("huge"), *rig.broker.queue.peek("q", 9)):
        assert (info.id, info.header.key, info.body, info.state) == ("huge", "?", b"", State.PENDING)


@pytest.mark.parametrize("lapses", [1, 2], ids=["lapsed", "suspect"])
def test_a_huge_one_fails_and_is_rescued_once_it_is_let_through(
    rig: Rig, redis_server: Server, client: redis.Redis, lapses: int
) -> None:
    rig.send("huge", body=HUGE)
    if lapses == 1:
        rig.claim()
        rig.advance(LEASE_MS)
        assert [each.id for each in rig.broker.queue.maintain(lease_ms=LEASE_MS).buried] == ["huge"]
    else:
        client.zrem(WAIT, "huge")
        client.zadd("{delayq:0}:suspect", {"huge": 1})
        assert "so it was not read" in _bury(rig, *rig.claim_suspect())
    assert rig.broker.queue.rescue(["huge"]) == [False]
    assert [failed.id for failed in rig.broker.queue.failed(9)] == ["huge"]
    larger = redis_rig(redis_server.url, client, replace(OPTIONS, max_data=len(HUGE)))
    assert larger.broker.queue.rescue(["huge"]) == [True]
    assert larger.claim_one().body == HUGE
    larger.broker.close()
