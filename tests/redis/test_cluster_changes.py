"""A cluster that changes: a primary dies and its replica follows, a slot moves under load. Nothing is lost or twice."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.shards import Shards
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable, SendError
from tests import servers
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, ids, rig_on, settlement
from tests.redis.test_sentinels import once_it_is_back
from tests.servers import ClusterServers
from tests.servers.cluster import until

HEADER = Header("q", "k")
SHARDS = Shards("delayq", 3)


@pytest.fixture
def cluster() -> Iterator[ClusterServers]:
    """The first primary has a replica."""
    binaries = servers.redis_binaries()
    binary = binaries[0] if binaries else servers.missing("redis-server")
    with closing(ClusterServers(binary, replicas=1, cluster_node_timeout=1000)) as cluster:
        yield cluster


@pytest.fixture
def rig(cluster: ClusterServers) -> Iterator[Rig]:
    rig = rig_on(cluster)
    with closing(rig.broker):
        yield rig


class Load:
    """Threads that send and run until they are stopped. What a send was not told of is sent again, with its id."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._stopping = threading.Event()
        self.sent: list[str] = []
        self.ran: Counter[str] = Counter()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._run)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        # The last messages are due a millisecond after their send, so a claim that comes before that finds none.
        until(lambda: not self.run_some() and len(self.ran) >= len(self.sent))

    def has_sent(self, count: int) -> bool:
        """Return whether so many were taken."""
        return len(self.sent) >= count

    def _send(self) -> None:
        while not self._stopping.is_set():
            some = [f"{len(self.sent) + n}" for n in range(5)]
            once_it_is_back(lambda some=some: self._try(some))  # type: ignore[misc]
            self.sent += some

    def _try(self, some: list[str]) -> None:
        try:
            self._rig.broker.queue.enqueue([NewMessage(id, HEADER, b"1") for id in some])
        except SendError as error:
            raise BrokerUnavailable(str(error)) from None

    def _run(self) -> None:
        while not self._stopping.is_set():
            once_it_is_back(self.run_some)

    def run_some(self) -> bool:
        """Claim and finish some."""
        claims = self._rig.broker.queue.claim([ClaimRequest("q", "k", 50)], lease_ms=LEASE_MS, worker="w")
        ends = [settlement(claimed, SettleAction.FINISH) for claimed in claims.messages]
        self.ran.update(ids(claims.messages))
        while ends:
            held = once_it_is_back(lambda ends=ends: self._rig.broker.queue.apply(ends))  # type: ignore[misc]
            ends = [end for end, was_held in zip(ends, held, strict=True) if was_held is None]
        return bool(claims.messages)


def test_a_replica_that_follows_its_primary_is_found(
    cluster: ClusterServers, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    own = next(keys for keys in SHARDS.all if cluster.owner(keys.msg) is cluster.primaries[0])
    mine = [id for id in map(str, range(30)) if SHARDS.of(id) is own]
    rig.broker.queue.enqueue([NewMessage(id, HEADER, b"1") for id in mine])
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    with cluster.primaries[0].client() as client:
        client.set(f"{own.tag}other", 1)  # WAIT waits for what its own connection has written
        assert client.wait(1, 60_000) == 1
    cluster.primaries[0].kill()
    once_it_is_back(lambda: sent_again(rig, mine[0]))
    assert asyncio.run(rig.broker.queue.aenqueue([NewMessage(mine[1], HEADER, b"1")]))[0].created is False
    assert sorted(ids(rig.claim_all())) == sorted(mine)
    assert (
        "lost" in rig.broker.queue.maintain(lease_ms=LEASE_MS).lost_record
    )  # a replica may not have had all: it is said
    assert rig.broker.queue.audit().differences == []
    assert [
        record.levelname for record in caplog.records if str(cluster.primaries[0].options["port"]) in record.message
    ] == [
        "WARNING",
        "INFO",
    ]


def sent_again(rig: Rig, id: str) -> None:
    try:
        assert rig.send(id)[0].created is False
    except SendError as error:
        raise BrokerUnavailable(str(error)) from None


def test_a_slot_that_moves_under_load_loses_and_doubles_nothing(cluster: ClusterServers, rig: Rig) -> None:
    moved = SHARDS.all[0]
    slot, source, target = cluster.slot(moved.msg), cluster.owner(moved.msg), cluster.primaries[0]
    with Load(rig) as load:
        for here, there in ((source, target), (target, source)):
            begun = len(load.sent)
            with cluster.moving(slot, here, there):
                cluster.move_keys(slot, here, there)
            until(partial(load.has_sent, begun + 50))  # it goes on after each
    assert set(load.ran.values()) == {1}
    assert sorted(load.ran) == sorted(load.sent)
    assert rig.total("finished") == len(load.sent)
    assert rig.broker.queue.audit().differences == []


@pytest.mark.parametrize("move", ["claim", "renew", "interrupt", "cancel"])
def test_what_empties_a_key_of_a_slot_that_moves_loses_nothing(
    redis_cluster: ClusterServers, cluster_rig: Rig, move: str
) -> None:
    """A script that emptied a key and then named it would end half-way: it would be looked for at the other node."""
    rig, shard = cluster_rig, SHARDS.all[0]
    first, second, suspect, merged = [id for id in map(str, range(90)) if SHARDS.of(id) is shard][:4]
    rig.send(suspect, key="m")
    rig.broker.queue.cancel([suspect])  # all the keys that a cancel names are there
    for _ in range(2):
        rig.send(merged, key="n", delay_ms=LEASE_MS, on_conflict="replace")
    rig.send(suspect)
    rig.crash(2)
    rig.send(first)
    (claimed,) = rig.claim()
    if move in ("claim", "cancel"):
        rig.send(second, key="l")  # the only one that waits, beside one that runs

    def act() -> object:
        if move == "claim":
            return ids(rig.claim(key="l"))
        if move == "cancel":
            return rig.broker.queue.cancel([second])
        if move == "renew":
            return rig.broker.queue.renew([claimed], LEASE_MS)
        return rig.broker.queue.apply([settlement(claimed, SettleAction.INTERRUPT)])

    source, target = redis_cluster.owner(shard.msg), redis_cluster.primaries[0]
    slot = redis_cluster.slot(shard.msg)
    with redis_cluster.moving_nothing(slot, source, target):
        assert act() == ([second] if move == "claim" else [True])
    assert rig.broker.queue.audit().differences == []


def test_a_confirmed_send_waits_for_the_replicas_of_all_its_nodes(cluster: ClusterServers) -> None:
    options = replace(OPTIONS, shards=3, confirm="replica")
    with closing(RedisBroker(Alias("default", location=cluster.location, options=options))) as broker:
        first = next(id for id in map(str, range(30)) if cluster.owner(SHARDS.of(id).msg) is cluster.primaries[0])
        other = next(id for id in map(str, range(30)) if cluster.owner(SHARDS.of(id).msg) is cluster.primaries[1])
        assert broker.queue.enqueue([NewMessage(first, HEADER, b"1")])[0].created
        with pytest.raises(SendError, match="no replica has it"):
            broker.queue.enqueue([NewMessage(id, HEADER, b"1") for id in (first, other)])
