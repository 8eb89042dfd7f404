"""Several shards on one server: what is spread over them, what it costs, and that all processes know of them."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import redis

from django_delayq.brokers.base import Alarm, ClaimRequest, Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.shards import Shards
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, ids, redis_rig
from tests.servers import Server

SHARDS = 16
MANY = [f"{n:03}" for n in range(200)]


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def rig(redis_server: Server, client: redis.Redis) -> Iterator[Rig]:
    rig = redis_rig(redis_server.url, client, replace(OPTIONS, shards=SHARDS))
    with closing(rig.broker):
        yield rig
        assert rig.broker.queue.audit().differences == []


def broker_of(rig: Rig, server: Server, shards: int) -> RedisBroker:
    return RedisBroker(Alias("default", location=server.url, options=replace(OPTIONS, shards=shards)))


def calls(client: redis.Redis) -> Counter[str]:
    """Return how often each command was called since the server's figures were reset."""
    stats = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): stats[name]["calls"] for name in stats})


def test_messages_are_spread_over_all_shards(rig: Rig, client: redis.Redis) -> None:
    rig.send(*MANY)
    sizes = [client.hlen(keys.msg) for keys in Shards(OPTIONS.prefix, SHARDS).all]
    assert sum(sizes) == len(MANY)
    assert min(sizes) > 0


def test_a_claim_gives_no_more_than_is_wanted_of_all_shards(rig: Rig) -> None:
    rig.send(*MANY)
    claims = rig.broker.queue.claim([ClaimRequest("q", "k", 7)], lease_ms=LEASE_MS, worker="w")
    assert len(claims.messages) == 7
    assert claims.more_available


def test_a_claim_finds_the_few_that_are_spread_thinly(rig: Rig) -> None:
    rig.send(*MANY[:20])
    assert sorted(ids(rig.claim(100))) == MANY[:20]


def test_the_shard_that_is_behind_is_served_first(rig: Rig) -> None:
    for id in MANY[:50]:
        rig.send(id)
        rig.advance(1)
    assert [claimed.id for _ in range(5) for claimed in rig.claim(1)] == MANY[:5]


def test_a_backlog_costs_few_calls_at_any_number_of_shards(rig: Rig, client: redis.Redis) -> None:
    for part in range(10):
        rig.send(*(f"{part}-{id}" for id in MANY))
    rig.claim(1)  # the scripts are there now
    client.config_resetstat()
    rig.claim(100)
    counted = calls(client)
    assert counted["evalsha"] <= SHARDS + 2


def test_a_backlog_is_looked_at_once_a_second_also_while_other_slots_are_free(
    rig: Rig, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.claim.LONGEST_S", 3_600)
    rig.send(*MANY)
    wants = [ClaimRequest("q", "k", 2), ClaimRequest("q", "other", 1)]
    rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")  # it has looked, and the scripts are there now
    client.config_resetstat()
    for _ in range(20):
        assert len(rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages) == 2
    assert calls(client)["evalsha"] <= 20 + SHARDS


@pytest.mark.parametrize("delay_ms", [0, 10])
def test_what_falls_due_beside_a_backlog_is_seen_before_that_is_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, delay_ms: int
) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.claim.FRESH_S", 0)
    monkeypatch.setattr("django_delayq.brokers.redis.claim.LONGEST_S", 3_600)
    for part in range(5):
        rig.send(*(f"{part}-{id}" for id in MANY))
    wants = [ClaimRequest("q", "k", 1), ClaimRequest("q", "other", 1)]

    def claim() -> list[str]:
        return ids(rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages)

    claim()
    rig.send("other", key="other", delay_ms=delay_ms)
    while "other" not in claim():
        pass
    assert [waits.key for waits in rig.broker.queue.counts().waiting] == ["k"]


def test_no_message_is_given_to_two_that_claim_at_once(rig: Rig) -> None:
    rig.send(*MANY)
    given: list[str] = []

    def claim_all() -> None:
        while claimed := rig.claim(3):
            given.extend(ids(claimed))

    threads = [threading.Thread(target=claim_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == MANY


def test_one_sleeps_until_the_earliest_of_all_shards(rig: Rig) -> None:
    placed = rig.send(*MANY, delay_ms=60_000)
    (first,) = rig.send("first", delay_ms=30_000)
    claims = rig.broker.queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LEASE_MS, worker="w")
    assert placed[0].due_ms > first.due_ms
    assert claims.next_due_ms == first.due_ms


def test_what_a_shard_told_of_serves_the_next_claim_too(rig: Rig) -> None:
    of = Shards(OPTIONS.prefix, SHARDS).of
    first, later, *_ = (id for id in MANY if of(id).shard == 0)
    second = next(id for id in MANY if of(id).shard == 1)
    for id in (first, second):
        rig.send(id)
        rig.advance(1)
    (placed,) = rig.send(later, delay_ms=60_000)
    claimed = [rig.broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w") for _ in range(2)]
    assert [ids(claims.messages) for claims in claimed] == [[first], [second]]
    assert [claims.next_due_ms for claims in claimed][1] == placed.due_ms


def test_a_send_to_any_shard_wakes_the_sleeper(rig: Rig) -> None:
    for id in MANY[: 2 * SHARDS]:
        assert rig.claim() == []
        rig.send(id)
        rig.broker.queue.wait(30)
        assert ids(rig.claim()) == [id]


def test_alarms_lie_where_their_row_is_looked_for(rig: Rig) -> None:
    rig.timer.schedule([Alarm("q", "k", pk, 60_000) for pk in MANY])
    assert [found.pk for found in rig.timer.find_alarms("q", "k", MANY)] == MANY
    seen, after = rig.timer.alarms("q", "k")
    while after:
        page, after = rig.timer.alarms("q", "k", after=after)
        seen += page
    assert {found.pk for found in seen} == set(MANY)


def test_errors_are_bounded_over_all_shards(rig: Rig) -> None:
    rig.bury(*MANY)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert rig.broker.queue.counts().error <= max(OPTIONS.error_max, SHARDS)


def test_a_process_that_knows_another_number_of_shards_is_refused(rig: Rig, redis_server: Server) -> None:
    rig.send("a")
    with closing(broker_of(rig, redis_server, shards=4)) as other:
        with pytest.raises(BrokerRefused, match=r'OPTIONS\["shards"\] is 4, but this Redis is used with 16'):
            other.open()
        with pytest.raises(BrokerRefused, match="is 4"):
            other.queue.enqueue([NewMessage("b", Header("q", "k"), b"1")])
    assert rig.broker.queue.get("b") is None


def test_after_a_flush_the_workers_say_the_number_again(rig: Rig, client: redis.Redis, redis_server: Server) -> None:
    from django_delayq.brokers.base import WorkerInfo

    rig.send("a")
    client.flushall()
    rig.broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    with closing(broker_of(rig, redis_server, shards=4)) as other, pytest.raises(BrokerRefused):
        other.open()
