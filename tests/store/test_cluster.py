"""A store on a cluster of which one node is gone: its alarms are replaced by the tables, as if all were gone."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.redis.shards import Shards
from django_delayq.errors import BrokerUnavailable
from django_delayq.models import ReadyMessage
from django_delayq.store import StoredBroker
from django_delayq.store.relay import rebuild
from tests.brokers.rig import ids
from tests.servers import ClusterServers
from tests.store.support import LEASE_MS, WANT, claim

pytestmark = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
SHARDS = Shards("delayq", 3)
HOUR_MS = 3_600_000


@pytest.fixture
def cluster(redis_binary: str) -> Iterator[ClusterServers]:
    with closing(ClusterServers(redis_binary, cluster_node_timeout=60_000)) as cluster:
        yield cluster


@pytest.fixture
def redis_url(cluster: ClusterServers) -> str:
    """LOCATION of that one."""
    return cluster.location


@pytest.fixture
def stored_delayq(stored_delayq: dict[str, object], settings: object) -> dict[str, object]:
    """As everywhere, with a shard on each node."""
    stored_delayq["OPTIONS"] = {"unknown_keys": "allow", "shards": 3}
    stored_delayq["STORE"] = {"DEGRADED_AFTER": 0}
    settings.DELAYQ = {"default": stored_delayq}  # type: ignore[attr-defined]
    return stored_delayq


def test_the_tables_give_what_the_alarms_of_a_gone_node_would(broker: StoredBroker, cluster: ClusterServers) -> None:
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
        broker.ask_clock(lease_ms=LEASE_MS)
    broker.degraded.begin_if_due()
    assert broker.degraded.on
    assert set(ids(broker.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)) == own
    node.start()
    cluster.wait_until_whole()
    broker.ask_clock(lease_ms=LEASE_MS)
    assert broker.alarms_lost
    assert rebuild(broker.database, broker.clock, HOUR_MS) is not None
    broker.ask_clock(lease_ms=LEASE_MS)
    assert not broker.alarms_lost
