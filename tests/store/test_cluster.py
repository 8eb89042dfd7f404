"""A store on a cluster of which one node is gone or full: the tables stand in for its alarms, the others go on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from time import monotonic

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.redis.shards import Shards
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, enqueue, queue
from django_delayq.store.alarms import schedule_window
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.maintenance import TableMaintenance
from tests.brokers.rig import ids
from tests.servers import ClusterServers, Server
from tests.store.support import LEASE_MS, WANT, alarms, claim, window_of
from tests.worker.rig import PATIENCE_S

pytestmark = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
SHARDS = Shards("delayq", 3)
HOUR_MS = 3_600_000


@pytest.fixture
def cluster(redis_binary: str) -> Iterator[ClusterServers]:
    with closing(ClusterServers(redis_binary, cluster_node_timeout=60_000)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def patient_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a node that is there may need over 250 ms; sends would leave its alarms to the sweep."""
    monkeypatch.setattr(enqueue, "WITHIN_S", PATIENCE_S)


@pytest.fixture
def redis_url(cluster: ClusterServers) -> str:
    """LOCATION of that one."""
    return cluster.location


@pytest.fixture
def stored_delayq(stored_delayq: dict[str, object], settings: object) -> dict[str, object]:
    """Return the usual settings, with a shard on each node."""
    stored_delayq["OPTIONS"] = {"unknown_keys": "allow", "shards": 3}
    stored_delayq["STORE"] = {"DEGRADED_AFTER": 0}
    settings.DELAYQ = {"default": stored_delayq}  # type: ignore[attr-defined]
    return stored_delayq


def test_the_tables_give_what_the_alarms_of_a_gone_node_would(broker: DatabaseBackend, cluster: ClusterServers) -> None:
    many = [f"{n}" for n in range(20)]
    for id in many:
        send_delay_message("k", 1, id=id)
    rows = ReadyMessage.objects.using(broker.database.using)
    rows.update(due_at=F("due_at") - 1)
    pks = {str(pk): id for pk, id in rows.values_list("pk", "message_id")}
    gone = SHARDS.all[0]
    own = {id for pk, id in pks.items() if SHARDS.of(pk) is gone}
    assert 0 < len(own) < len(many)
    node = cluster.owner(gone.msg)
    node.kill()
    assert set(ids(claim(broker))) == set(many) - own
    assert broker.degraded.away
    with pytest.raises(BrokerUnavailable):
        broker.queue.ask_timer(lease_ms=LEASE_MS)
    broker.degraded.begin_if_due()
    assert broker.degraded.on
    assert set(ids(broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)) == own
    node.start()
    cluster.wait_until_whole()
    broker.queue.ask_timer(lease_ms=LEASE_MS)
    schedule_window(broker.database, window_of(broker))
    assert window_of(broker).cursor() is not None


def _full(cluster: ClusterServers, node: Server) -> AbstractContextManager[None]:
    return node.memory_full()


@contextmanager
def _gone(cluster: ClusterServers, node: Server) -> Iterator[None]:
    node.kill()
    yield
    node.start()
    cluster.wait_until_whole()


@contextmanager
def _degraded(broker: DatabaseBackend, fault: AbstractContextManager[None]) -> Iterator[None]:
    """A fault because of which the tables are asked too."""
    broker.queue.maintain(lease_ms=LEASE_MS)
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
    with fault:
        broker.queue.maintain(lease_ms=LEASE_MS)
        broker.degraded.begin_if_due()
        assert broker.degraded.on
        yield


@pytest.mark.parametrize("fault", [_gone, _full])
def test_of_a_node_that_is_gone_or_full_the_tables_tell_and_of_the_others_their_alarms(
    broker: DatabaseBackend,
    cluster: ClusterServers,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[ClusterServers, Server], AbstractContextManager[None]],
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr("django_delayq.store.queue.monotonic", lambda: clock[0])
    monkeypatch.setattr("django_delayq.store.timer._now_ms", lambda: int(clock[0] * 1000))
    gone = SHARDS.all[0]
    with _degraded(broker, fault(cluster, cluster.owner(gone.msg))):
        assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []  # the tables were asked just now
        many = [send_delay_message("k", 1, id=f"{n}").id for n in range(20)]
        rows = ReadyMessage.objects.using(broker.database.using)
        own = {id for pk, id in rows.values_list("pk", "message_id") if SHARDS.of(str(pk)) is gone}
        assert 0 < len(own) < len(many)
        found: list[str] = []
        for _ in range(50):
            found += ids(broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)
            if len(found) >= len(many) - len(own):
                break
            broker.queue.wait(0.1)
        assert set(found) == set(many) - own
        clock[0] += 1
        assert broker.queue.wait(0)
        assert set(ids(broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)) == own


def test_a_commit_whose_node_is_full_keeps_no_later_one_from_its_own(
    broker: DatabaseBackend, cluster: ClusterServers, caplog: pytest.LogCaptureFixture
) -> None:
    gone = SHARDS.all[0]
    with cluster.owner(gone.msg).memory_full():
        for n in range(20):
            send_delay_message("k", 1, id=f"{n}")
        pks = map(str, ReadyMessage.objects.using(broker.database.using).values_list("pk", flat=True))
        assert alarms(broker) == sum(SHARDS.of(pk) is not gone for pk in pks)
    told = [record.message for record in caplog.records if "was not told" in record.message]
    assert len(told) == 1
    assert "has no memory left" in told[0]


def test_the_window_goes_on_with_the_nodes_that_answer(
    broker: DatabaseBackend, cluster: ClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "schedule_window", partial(schedule_window, window_ms=HOUR_MS))
    gone = SHARDS.all[0]
    thread = TableMaintenance(broker.queue, LEASE_MS, OutageLog())
    with _degraded(broker, cluster.owner(gone.msg).memory_full()):
        for n in range(20):
            send_delay_message("k", 1, id=f"{n}", delay="30m")
        pks = list(map(str, ReadyMessage.objects.using(broker.database.using).values_list("pk", flat=True)))
        thread.start()
        _until(lambda: alarms(broker) == sum(SHARDS.of(pk) is not gone for pk in pks))
    _until(lambda: alarms(broker) == len(pks) and not broker.degraded.away)
    thread.close(PATIENCE_S)


@pytest.mark.parametrize("saved", [False, True], ids=["empty", "older"])
def test_a_node_that_comes_back_without_its_latest_alarms_gets_them_again_and_no_other_twice(
    broker: DatabaseBackend, cluster: ClusterServers, saved: bool
) -> None:
    node = cluster.owner(SHARDS.all[0].msg)
    schedule_window(broker.database, window_of(broker))
    window_of(broker).set_cursor_back(broker.database.now_ms())
    send_delay_message("k", 1, id="before", delay="9s")
    if saved:
        with node.client() as client:
            client.save()
    for n in range(20):
        send_delay_message("k", 1, id=f"{n}", delay="9s")
    assert alarms(broker) == 21
    _pass(broker)
    node.kill()
    node.start()
    cluster.wait_until_whole()
    assert alarms(broker) < 21
    schedule_window(broker.database, window_of(broker))
    assert alarms(broker) == 21


def _pass(broker: DatabaseBackend) -> None:
    """A pass that does not wait for the cursor to lag."""
    window_of(broker).set_cursor_back(broker.database.now_ms())
    schedule_window(broker.database, window_of(broker))


def _until(is_so: Callable[[], bool]) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < until, "it did not come to that"
