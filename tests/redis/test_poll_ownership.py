"""Who looks first at the idle shards of a cluster, and that nothing is late for it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NoReturn

import pytest
import redis

from django_delayq.brokers.base import ClaimRequest, WorkerInfo
from django_delayq.brokers.redis import claim
from django_delayq.brokers.redis.claim import PollOwnership
from django_delayq.brokers.redis.shards import Shards
from django_delayq.brokers.shared_state import HEARTBEAT_MS
from django_delayq.core.errors import BrokerUnavailable
from tests.brokers.rig import OPTIONS, Rig, ids, redis_rig
from tests.servers import ClusterServers
from tests.servers.cluster import until

SHARDS = 9
ALL = Shards(OPTIONS.prefix, SHARDS).all
CALLS = 2
"""Of one look at a shard: leases and errors, wait sets."""
LONG_MS = 3 * 3_600_000
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def clients(redis_cluster: ClusterServers) -> Iterator[list[redis.Redis]]:
    with ExitStack() as opened:
        yield [opened.enter_context(node.client()) for node in redis_cluster.primaries]


class Workers:
    """Several on one cluster, as far as their brokers go."""

    def __init__(self, clients: Sequence[redis.Redis], rigs: dict[str, Rig]) -> None:
        self._clients = clients
        self.rigs = rigs

    def tell(self, *names: str, keys: Sequence[str] = ("k",)) -> None:
        """Heartbeats, and all have heard them."""
        for name in [*names, *names]:
            self.rigs[name].broker.presence.heartbeat(WorkerInfo(name, ["q"], list(keys), 0, 0))

    def find_nothing(self) -> None:
        """Each may sleep then."""
        for rig in self.rigs.values():
            assert rig.broker.queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LONG_MS, worker="w").messages == []

    def look(self, *names: str, lease_ms: int = LONG_MS) -> None:
        """Let each do what is due once a second."""
        for name in names:
            self.rigs[name].broker.queue.maintain(lease_ms=lease_ms)

    def looks(self, *names: str) -> dict[str, int]:
        """At how many shards each of them looks by then."""
        found = {}
        for name in names:
            for client in self._clients:
                client.config_resetstat()
            self.look(name)
            stats = [client.info("commandstats") for client in self._clients]
            found[name] = sum(each.get("cmdstat_evalsha", {"calls": 0})["calls"] for each in stats) // CALLS
        return found


@pytest.fixture
def workers(
    redis_cluster: ClusterServers, clients: list[redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    """Four, who know of no other yet. At each shard one is first, which looks now and then; the others look again in an
    hour, if nothing has them look before."""
    monkeypatch.setattr(claim, "FIRST", 1)
    monkeypatch.setattr(claim, "FIRST_S", 1.0)
    monkeypatch.setattr(claim, "OTHERS_S", 3_600)
    options = replace(OPTIONS, shards=SHARDS)
    at = dict(zip(redis_cluster.primaries, clients, strict=True))
    with ExitStack() as opened:
        rigs = {
            name: redis_rig(redis_cluster.location, clients[0], options, lambda key: at[redis_cluster.owner(key)])
            for name in NAMES
        }
        for rig in rigs.values():
            opened.enter_context(closing(rig.broker))
            rig.claim()
            _hear_anew(rig)
        for rig in rigs.values():
            rig.broker.queue.maintain(lease_ms=LONG_MS)
        yield Workers(clients, rigs)


def _hear_anew(rig: Rig) -> None:
    """A new connection may have missed something: that ends one wait."""
    until(lambda: rig.broker.presence.pause_version > 0)
    rig.broker.queue.wait(0)


def test_a_worker_alone_looks_at_all_shards(workers: Workers) -> None:
    workers.tell("a")
    assert workers.looks("a") == {"a": SHARDS}


def test_of_several_workers_one_looks_at_each_shard(workers: Workers) -> None:
    workers.tell(*NAMES)
    assert sum(workers.looks(*NAMES).values()) == SHARDS


def test_what_a_worker_looked_at_that_left_or_died_others_do(workers: Workers) -> None:
    workers.tell(*NAMES)
    workers.rigs["a"].broker.presence.leave("a")
    workers.tell("b", "c", "d")
    assert sum(workers.looks("b", "c", "d").values()) == SHARDS
    workers.rigs["a"].advance(HEARTBEAT_MS)  # since the heartbeat of b
    workers.tell("c", "d")
    assert sum(workers.looks("c", "d").values()) == SHARDS


def test_one_that_is_heard_of_no_more_counts_no_more_also_where_no_heartbeat_can_be_told(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.tell(*NAMES)
    monkeypatch.setattr(claim, "HEARTBEAT_MS", 0)
    assert workers.looks("a") == {"a": SHARDS}


def test_one_that_does_not_hear_what_is_published_looks_at_all_shards(
    workers: Workers, clients: list[redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.tell(*NAMES)
    with monkeypatch.context() as patch:
        patch.setattr("django_delayq.brokers.redis.client.cluster.Cluster.connect", _fail)
        for client in clients:
            client.client_kill_filter(_type="pubsub")
        until(lambda: workers.looks("a") == {"a": SHARDS})
    until(lambda: workers.looks("a") != {"a": SHARDS})


def test_one_that_does_not_look_for_the_same_keys_leaves_them_to_no_other(workers: Workers) -> None:
    workers.tell("b", "c", "d", keys=["other"])
    workers.tell("a")
    assert workers.looks("a") == {"a": SHARDS}


@pytest.mark.parametrize(
    ("lease_ms", "spans_s"),
    [(1_500, {1.0, 3.0}), (9_000, {2.0, 18.0}), (15_000, {4.0, 30.0}), (10**6, {4.0, 30.0})],
)
def test_the_first_look_before_it_seems_that_nobody_got_through(lease_ms: int, spans_s: set[float]) -> None:
    shards = Shards("delayq", 100).all
    known = PollOwnership(shards, lambda key: key, lambda: True)
    known.learn(WorkerInfo("a", [], [], 0, 0), [WorkerInfo(name, [], [], 0, 0, seen_ms=1) for name in NAMES], 1)
    assert set(known.spans_s(lease_ms)) == spans_s


@pytest.mark.parametrize("delay_ms", [0, 30])
def test_a_send_to_any_shard_wakes_also_who_is_not_its_first(workers: Workers, delay_ms: int) -> None:
    workers.tell(*NAMES)
    workers.find_nothing()
    for nth in range(2 * SHARDS):
        workers.rigs["d"].send(str(nth), delay_ms=delay_ms)
        for rig in workers.rigs.values():
            assert rig.broker.queue.wait(30)
        assert [one.id for rig in workers.rigs.values() for one in rig.claim()] == [str(nth)]


def test_the_mark_of_a_shard_is_no_earlier_than_the_next_look_of_any(
    workers: Workers, redis_cluster: ClusterServers, clients: list[redis.Redis]
) -> None:
    workers.tell(*NAMES)
    workers.find_nothing()
    at = dict(zip(redis_cluster.primaries, clients, strict=True))
    marks = [int(at[redis_cluster.owner(keys.timer)].hget(keys.timer, "q:k") or 0) for keys in ALL]
    assert min(marks) > workers.rigs["a"].now_us() / 1000 + claim.OTHERS_S * 1000 - 60_000


def test_a_message_that_nobody_was_told_of_is_found_by_the_first_who_calls_the_others(
    workers: Workers, redis_cluster: ClusterServers, clients: list[redis.Redis]
) -> None:
    workers.tell(*NAMES)
    workers.find_nothing()
    lost = workers.rigs["a"]
    for keys in ALL:
        clients[redis_cluster.primaries.index(redis_cluster.owner(keys.timer))].delete(keys.timer)
    lost.send("m")
    workers.look(*NAMES)
    for rig in workers.rigs.values():
        assert rig.broker.queue.wait(30)
    assert ids(lost.claim()) == ["m"]


def test_a_lease_that_ends_is_seen_by_all_who_knew_of_it(workers: Workers) -> None:
    dying, *others = workers.rigs.values()
    dying.send(*map(str, range(2 * SHARDS)))
    assert (
        len(dying.broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=300, worker="dying").messages)
        == 2 * SHARDS
    )
    workers.look("b")
    workers.tell(*NAMES)

    def reclaimed() -> bool:
        workers.look("b")
        return others[0].total("reclaimed") == 2 * SHARDS

    until(reclaimed)


def test_after_a_failure_all_shards_are_asked(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.tell(*NAMES)
    with monkeypatch.context() as patch:
        patch.setattr("django_delayq.brokers.redis.client.cluster.Cluster.round_trip", _fail)
        with pytest.raises(BrokerUnavailable):
            workers.rigs["a"].broker.queue.counts()
    assert workers.looks("a") == {"a": SHARDS}


def _fail(*args: object) -> NoReturn:
    raise BrokerUnavailable("gone")
