"""A store takes another number of shards by another prefix: the alarms are built there from the rows."""

from typing import Any

import pytest
from django.db.models import F
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.core.errors import BrokerRefused
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.polling import Sweep
from tests.brokers.rig import ids
from tests.servers import ClusterServers, Server
from tests.store.support import WANT, claim, site_on, window_of

pytestmark = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
HOUR_MS = 3_600_000


@pytest.fixture(params=["one server", "cluster"])
def redis_url(request: pytest.FixtureRequest) -> str:
    """LOCATION of each."""
    if request.param == "cluster":
        cluster: ClusterServers = request.getfixturevalue("redis_cluster")
        return cluster.location
    server: Server = request.getfixturevalue("redis_server")
    return server.url


def test_workers_with_another_number_are_refused_and_run_it_all_under_another_prefix(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server
) -> None:
    assert broker.report().problems == []
    many = {f"{n}" for n in range(20)}
    for id in many:
        send_delay_message("run", "", id=id)
    stored_delayq["OPTIONS"] |= {"shards": 4}
    with site_on(stored_delayq, database_env, redis_server) as site:
        refused = site.worker()
        assert refused.wait() == 1
    assert 'CommandError: OPTIONS["shards"] is 4, but this Redis is used with 1 under prefix' in refused.text
    assert "another OPTIONS['prefix'] beside the new number. With a store its alarms are rebuilt there" in refused.text
    assert "Traceback" not in refused.text
    stored_delayq["OPTIONS"] |= {"prefix": "delayq-4"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        worker = site.worker()
        assert {site.line.next().id for _ in many} == many
        assert worker.stop() == 0
        assert site.totals()["finished"] == len(many)
        assert site.line.none_waits()


def test_what_workers_with_the_old_prefix_still_placed_there_is_found_by_the_sweep(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings, database: str
) -> None:
    send_delay_message("k", 1, id="late", delay="30m")
    assert schedule_window(broker.database, window_of(broker), HOUR_MS) == 1
    options = {"unknown_keys": "allow", "shards": 4, "prefix": "delayq-4"}
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": options}}
    new = get_backend()
    assert isinstance(new, DatabaseBackend)
    assert new is not broker
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - HOUR_MS)
    new.queue.backlog |= Sweep(new.database).find(WANT)
    assert ids(claim(new)) == ["late"]


def test_senders_with_another_number_are_refused_under_the_same_prefix(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings
) -> None:
    broker.open()
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"unknown_keys": "allow", "shards": 4}}}
    with pytest.raises(BrokerRefused, match=r'OPTIONS\["shards"\] is 4, but this Redis is used with 1'):
        get_backend().open()
