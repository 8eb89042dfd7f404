"""A node of a cluster that is gone: what its shard holds waits for it, and all other shards go on."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from django_delayq.brokers.base import Alarm, ClaimRequest, Header, NewMessage, PermitRequest, SettleAction, WorkerInfo
from django_delayq.brokers.redis import claim
from django_delayq.brokers.redis.shards import Keys, LimitKeys, Shards
from django_delayq.core.errors import BrokerUnavailable, PartlyUnavailable, SendError
from tests import servers
from tests.brokers.rig import LEASE_MS, Rig, ids, rig_on, settlement
from tests.servers import ClusterServers, Server
from tests.servers.cluster import until

SHARDS = Shards("delayq", 3)
MANY = [f"{n:02}" for n in range(30)]
Soon = Callable[[], AbstractContextManager[None]]
WORKER = WorkerInfo("w", ["q"], ["k"], 0, 0)


def of(keys: Keys) -> list[str]:
    return [id for id in MANY if SHARDS.of(id) is keys]


@pytest.fixture(scope="module")
def _cluster() -> Iterator[ClusterServers]:
    binaries = servers.redis_binaries()
    binary = binaries[0] if binaries else servers.missing("redis-server")
    # A node that is back before the others agree that it is gone need not wait for their consent.
    kept: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "cluster_node_timeout": 60_000}
    with closing(ClusterServers(binary, **kept)) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: ClusterServers) -> Iterator[ClusterServers]:
    """A cluster whose nodes the test may kill and freeze: those that it left so are back for the next."""
    _cluster.flush()
    yield _cluster
    for node in _cluster.nodes:
        if node.running:
            node.thaw()
        else:
            node.start()
    _cluster.wait_until_whole()


@pytest.fixture
def rig(cluster: ClusterServers) -> Iterator[Rig]:
    rig = rig_on(cluster)
    with closing(rig.broker):
        rig.broker.open()
        yield rig


@pytest.fixture(params=[SHARDS.all[0], SHARDS.all[1]], ids=["alone", "with the meta key"])
def gone(request: pytest.FixtureRequest) -> Keys:
    """The shard whose node will be gone."""
    keys: Keys = request.param
    return keys


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Soon:
    """Within `soon()` a call that is made again is given up after a fifth of the usual time."""

    @contextmanager
    def soon() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr("django_delayq.brokers.redis.client.client.BUDGET", 0.4)
            yield

    return soon


def node_of(cluster: ClusterServers, keys: Keys) -> Server:
    return cluster.owner(keys.msg)


def test_the_others_go_on_and_its_own_run_once_it_is_back(
    cluster: ClusterServers, rig: Rig, gone: Keys, soon: Soon
) -> None:
    rig.send(*MANY)
    rig.broker.presence.pauses()
    node_of(cluster, gone).kill()
    others = [id for id in MANY if id not in of(gone)]
    claims = rig.broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=LEASE_MS, worker="w")
    assert sorted(ids(claims.messages)) == others
    assert "away" in claims.away
    ends = [settlement(claimed, SettleAction.FINISH) for claimed in claims.messages]
    assert rig.broker.queue.renew(claims.messages, LEASE_MS) == [True] * len(others)
    assert rig.broker.queue.apply(ends) == [True] * len(others)
    rig.broker.presence.heartbeat(WORKER)  # said when that can be
    assert rig.timer.owner("default 1") == ("" if gone is SHARDS.all[1] else "default 1")
    assert rig.broker.presence.pauses() == []
    assert "away" in rig.broker.queue.maintain(lease_ms=LEASE_MS).away
    assert rig.send(others[0])[0].created
    with soon(), pytest.raises(SendError) as unsent:
        rig.send(of(gone)[0])
    assert unsent.value.unknown == (), "its node refuses connections: nothing was sent"
    with soon(), pytest.raises(BrokerUnavailable, match=str(node_of(cluster, gone).options["port"])):
        rig.broker.queue.audit()
    node_of(cluster, gone).start()
    cluster.wait_until_whole()
    assert [one.created for one in rig.send(*of(gone))] == [False] * len(of(gone))
    assert sorted(ids(rig.claim_all())) == sorted([others[0], *of(gone)])
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).away == ""
    assert rig.broker.queue.audit().differences == []


def test_alarms_of_the_others_are_held_and_dropped(cluster: ClusterServers, rig: Rig) -> None:
    gone, every = SHARDS.all[0], [Alarm("q", "k", pk) for pk in MANY]
    others = [pk for pk in MANY if pk not in of(gone)]
    assert rig.claim() == []
    node_of(cluster, gone).kill()
    with pytest.raises(PartlyUnavailable, match=str(node_of(cluster, gone).options["port"])):
        rig.timer.schedule(every)
    claimed: list[str] = []
    while len(claimed) < len(others):
        claimed += _claim_alarms(rig)
        rig.broker.queue.wait(0.1)
    assert sorted(claimed) == others
    with pytest.raises(PartlyUnavailable):
        rig.timer.drop(every)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).next_lease_end_ms is None


def _claim_alarms(rig: Rig) -> list[str]:
    alarms = rig.broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=LEASE_MS, worker="w").alarms
    return [alarm.pk for alarm in alarms]


def test_one_that_is_known_to_hang_is_not_waited_for_by_alarms_and_slots(
    cluster: ClusterServers, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = [PermitRequest("k", value, n, 1) for n, value in enumerate(MANY)]
    assert rig.broker.limiter.acquire(asks, lease_ms=LEASE_MS) == [None] * len(asks)
    monkeypatch.setattr("django_delayq.brokers.redis.client.cluster.AWAY_S", 3600)
    for node in cluster.nodes:  # the permits of limits are on any
        node.freeze()
    alarms = [Alarm("q", "k", pk) for pk in MANY]
    with pytest.raises(PartlyUnavailable):
        rig.timer.schedule(alarms, within_s=0.5)
    asked: list[object] = []
    monkeypatch.setattr(
        "django_delayq.brokers.redis.client.client.Transport.connect", lambda self, timeout: asked.append(self.shown)
    )
    uses = (partial(rig.timer.schedule, alarms), partial(rig.timer.drop, alarms))
    for use in (*uses, partial(rig.broker.limiter.release, asks)):
        with pytest.raises(BrokerUnavailable):
            use()
    assert asked == []


def test_who_claims_beside_one_that_is_gone_asks_everywhere_at_once(
    cluster: ClusterServers, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "FIRST", 0)  # of several, none looks before long
    rig.claim()
    until(lambda: rig.broker.presence.pause_version > 0)
    rig.broker.presence.heartbeat(replace(WORKER, name="other"))
    rig.broker.presence.heartbeat(WORKER)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    node_of(cluster, SHARDS.all[0]).freeze()
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).away == ""  # it need not look yet
    until(lambda: bool(rig.broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w").away))
    assert "away" in rig.broker.queue.maintain(lease_ms=LEASE_MS).away


def test_who_can_not_tell_its_heartbeat_asks_everywhere_at_once(
    cluster: ClusterServers, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "FIRST", 0)  # of several, none looks before long
    rig.claim()
    until(lambda: rig.broker.presence.pause_version > 0)
    rig.broker.presence.heartbeat(replace(WORKER, name="other"))
    rig.broker.presence.heartbeat(WORKER)
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    cluster.owner(SHARDS.first.meta).freeze()
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).away == ""  # it need not look yet
    rig.broker.presence.heartbeat(WORKER)
    assert "away" in rig.broker.queue.maintain(lease_ms=LEASE_MS).away


def test_one_that_hangs_is_waited_for_once(
    cluster: ClusterServers, rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = SHARDS.all[0]
    assert rig.claim() == []  # its listener is there
    rig.send(*MANY)
    asked: list[object] = []
    monkeypatch.setattr("django_delayq.brokers.redis.client.cluster.AWAY_S", 3600)
    node_of(cluster, gone).freeze()
    first = rig.claim(1)
    monkeypatch.setattr(
        "django_delayq.brokers.redis.client.client.Transport.connect", lambda self, timeout: asked.append(self.shown)
    )
    claimed = [*first, *(one for _ in MANY for one in rig.claim(1))]
    assert sorted(ids(claimed)) == [id for id in MANY if id not in of(gone)]
    assert asked == []
    assert [record.message for record in caplog.records if "is away, and what its shards hold waits" in record.message]


def test_an_end_whose_answer_was_lost_is_not_taken_for_a_lost_lease(cluster: ClusterServers, rig: Rig) -> None:
    gone = SHARDS.all[0]
    for _ in range(2):  # the second time the node has the scripts, and does what it is sent
        rig.send(*MANY)
        held = rig.claim_all()
        ends = [settlement(claimed, SettleAction.FINISH) for claimed in held]
        if not rig.total("finished"):
            rig.broker.queue.apply(ends)
    own = [end for end in ends if end.id in of(gone)]
    node = node_of(cluster, gone)
    node.freeze()
    assert rig.broker.queue.apply(ends) == [None if end in own else True for end in ends]
    assert rig.broker.queue.apply(own[:1]) == [None]
    first = next(claimed for claimed in held if claimed.id == own[0].id)
    assert rig.broker.queue.renew([first], LEASE_MS) == [None]
    node.thaw()  # it does what it was sent
    cluster.wait_until_whole()
    while None in (settled := rig.broker.queue.apply(own)):
        pass
    assert settled == [True] * len(own)
    assert rig.total("finished") == 2 * len(MANY)


def test_async_sends_go_on_and_wait_for_one_that_comes_back(cluster: ClusterServers, rig: Rig, soon: Soon) -> None:
    gone = SHARDS.all[0]
    node_of(cluster, gone).kill()

    async def send(*ids_: str) -> int:
        return sum(
            one.created or 0
            for one in await rig.broker.queue.aenqueue([NewMessage(id, Header("q", "k"), b"1") for id in ids_])
        )

    others = [id for id in MANY if id not in of(gone)]
    assert asyncio.run(send(*others)) == len(others)
    with soon(), pytest.raises(SendError):
        asyncio.run(send(*MANY))
    node_of(cluster, gone).start()
    cluster.wait_until_whole()
    assert asyncio.run(send(*MANY)) == len(of(gone))


def test_a_process_that_starts_meanwhile_works_on_the_others(cluster: ClusterServers) -> None:
    gone = SHARDS.all[0]  # the one with the meta key is waited for
    node_of(cluster, gone).kill()
    rig = rig_on(cluster)
    others = [id for id in MANY if id not in of(gone)]
    with closing(rig.broker):
        rig.broker.open()
        rig.send(*others)
        assert sorted(ids(rig.claim_all())) == others


def test_all_nodes_gone_is_an_outage_like_any_other(cluster: ClusterServers, rig: Rig) -> None:
    for node in cluster.nodes:
        node.kill()
    for call in (rig.claim, rig.claim_suspect, partial(rig.broker.queue.maintain, lease_ms=LEASE_MS)):
        with pytest.raises(BrokerUnavailable):
            call()


def test_a_slot_that_moves_keeps_its_own_shard_waiting_only(cluster: ClusterServers, rig: Rig, soon: Soon) -> None:
    moved = SHARDS.all[0]
    slot, source, target = cluster.slot(moved.msg), node_of(cluster, moved), node_of(cluster, SHARDS.all[1])
    others = [id for id in MANY if id not in of(moved)]
    rig.send(*MANY)
    with cluster.moving(slot, source, target):
        with soon(), pytest.raises(SendError, match="being moved"):
            rig.send(*of(moved))
        assert sorted(ids(rig.claim_all())) == others
        cluster.move_keys(slot, source, target)
        assert rig.claim_all() == []
    assert sorted(ids(rig.claim_all())) == of(moved)  # MOVED is followed
    with cluster.moving(slot, target, source):
        cluster.move_keys(slot, target, source)
    assert rig.broker.queue.audit().differences == []


def test_limits_wait_for_those_that_run_where_a_node_was_away_and_nowhere_else(
    cluster: ClusterServers, rig: Rig, soon: Soon
) -> None:
    here, elsewhere = (PermitRequest(_key_on(cluster, node), "", 1, 9) for node in cluster.primaries[:2])
    rig.broker.limiter.acquire([here, elsewhere], lease_ms=LEASE_MS)
    rig.broker.limiter.release([here, elsewhere])
    cluster.primaries[0].freeze()
    with soon(), pytest.raises(BrokerUnavailable):
        rig.broker.limiter.acquire([here], lease_ms=LEASE_MS)
    assert rig.broker.limiter.acquire([elsewhere], lease_ms=LEASE_MS) == [None]
    cluster.primaries[0].thaw()
    until(lambda: rig.broker.queue.maintain(lease_ms=LEASE_MS).away == "")
    assert rig.broker.limiter.acquire([replace(here, token=2)], lease_ms=LEASE_MS) != [None]
    rig.broker.limiter.renew([replace(here, token=2)], lease_ms=LEASE_MS)


def _key_on(cluster: ClusterServers, node: Server) -> str:
    keys = (f"k{n}" for n in count())
    return next(key for key in keys if cluster.owner(LimitKeys("delayq", key, "").permits) is node)
