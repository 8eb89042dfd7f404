"""Two stores on one broker with one prefix: the second is refused by name, and what it may do is told."""

import io
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import WorkerInfo
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.models import StoreIdentity
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import Degraded
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.maintenance import TableMaintenance
from tests import databases
from tests.servers import Server, SqliteFiles
from tests.store.support import LEASE_MS, alarms, claim, site_on
from tests.worker.processes import Site
from tests.worker.rig import PATIENCE_S

META = "{delayq:meta}"
WORKER = WorkerInfo("w", ["default"], ["k"], 0, 0)


@pytest.fixture
def elsewhere(sqlite_files: SqliteFiles, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The database of another site."""
    with django_db_blocker.unblock(), databases.database_on(sqlite_files) as alias:
        yield alias


@pytest.fixture
def other(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings, elsewhere: str
) -> DatabaseBackend:
    """The broker of that site, which has come to the same Redis as `broker`."""
    settings.DELAYQ = {"default": stored_delayq | {"DATABASE": elsewhere}}
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    assert found is not broker
    return found


def _owner(server: Server) -> str | None:
    with server.client() as client:
        owner = client.hget(META, "store")
    return None if owner is None else str(owner.decode())


def _forget_owner(server: Server) -> None:
    with server.client() as client:
        assert client.hdel(META, "store") == 1


def test_the_first_store_keeps_its_redis_and_the_second_is_told_both_ways_out(
    broker: DatabaseBackend, other: DatabaseBackend, redis_server: Server, database: str
) -> None:
    assert broker.report().problems == []
    ours = str(StoreIdentity.objects.using(database).get())
    assert _owner(redis_server) == ours
    with pytest.raises(BrokerRefused) as refused:
        other.report()
    told = str(refused.value)
    assert told.startswith(f"Another site uses prefix 'delayq' here: the alarms are those of store {ours!r}")
    assert 'a prefix of its own, DELAYQ["default"]["OPTIONS"]["prefix"]' in told
    assert f"HDEL {META} store" in told
    assert _owner(redis_server) == ours
    assert broker.report().problems == []
    _forget_owner(redis_server)
    assert other.report().problems == []
    with pytest.raises(BrokerRefused, match="Another site"):
        broker.report()


def test_a_worker_of_the_second_site_does_not_start(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], elsewhere: str, redis_server: Server
) -> None:
    broker.report()
    with site_on(stored_delayq, databases.environment(connections.settings[elsewhere]), redis_server) as site:
        _assert_refused(site)
        stored_delayq["OPTIONS"] |= {"prefix": "another"}
    with site_on(stored_delayq, databases.environment(connections.settings[elsewhere]), redis_server) as site:
        assert site.worker("--drain").wait() == 0


def _assert_refused(site: Site) -> None:
    worker = site.worker()
    assert worker.wait() == 1
    assert "CommandError: Another site uses prefix 'delayq' here" in worker.text
    assert "Traceback" not in worker.text


def test_status_tells_of_it_and_changes_nothing(
    broker: DatabaseBackend, other: DatabaseBackend, redis_server: Server, elsewhere: str
) -> None:
    assert "problem:" not in _status()
    assert _owner(redis_server) is None
    assert not StoreIdentity.objects.using(elsewhere).exists()
    broker.report()
    assert "problem: Another site uses prefix 'delayq' here" in _status()


def _status() -> str:
    out = io.StringIO()
    call_command("delayq", "status", stdout=out)
    return out.getvalue()


def test_a_redis_that_was_emptied_is_again_that_of_the_store_whose_workers_live(
    broker: DatabaseBackend, other: DatabaseBackend, redis_server: Server
) -> None:
    broker.report()
    with redis_server.client() as client:
        client.flushall()
    broker.presence.heartbeat(WORKER)
    with pytest.raises(BrokerRefused, match="Another site"):
        other.report()


def test_a_forged_mark_stops_no_worker_that_runs(broker: DatabaseBackend, redis_server: Server) -> None:
    assert broker.report().problems == []
    with redis_server.client() as client:
        client.hset(META, mapping={"store": "default 0123456789abcdef", "shards": "99", "layout": "7"})
    assert send_delay_message("k", 1, id="a").created
    assert [message.id for message in claim(broker)] == ["a"]


def test_a_forged_mark_stops_no_send(broker: DatabaseBackend, redis_server: Server) -> None:
    with redis_server.client() as client:
        client.hset(META, mapping={"shards": "99", "layout": "7"})
    assert send_delay_message("k", 1, id="a").created
    with pytest.raises(BrokerRefused, match="layout 7"):
        broker.report()


def test_a_heartbeat_of_another_store_is_refused_and_not_shown(broker: DatabaseBackend, other: DatabaseBackend) -> None:
    broker.presence.heartbeat(WORKER)
    with pytest.raises(BrokerRefused, match="Another site"):
        other.presence.heartbeat(WorkerInfo("of the other", ["default"], ["k"], 0, 0))
    assert [worker.name for worker in broker.presence.workers()] == [WORKER.name]


def test_two_aliases_on_one_database_are_two_stores(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings
) -> None:
    broker.report()
    settings.DELAYQ = {"mail": stored_delayq}
    with pytest.raises(BrokerRefused, match=r'Another site .* DELAYQ\["mail"\]'):
        get_backend("mail").report()


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_worker_that_was_degraded_puts_no_alarms_into_the_redis_of_another_store(
    broker: DatabaseBackend, other: DatabaseBackend, caplog: pytest.LogCaptureFixture
) -> None:
    broker.report()
    send_delay_message("k", 1, id="a", delay="10m")
    other.queue.degraded = Degraded(0)
    with pytest.raises(BrokerUnavailable):
        other.queue.degraded.ask(Mock(side_effect=BrokerUnavailable("it is away")))
    other.queue.degraded.begin_if_due()
    maintenance = TableMaintenance(other.queue, LEASE_MS, OutageLog())
    maintenance.start()
    try:
        until = monotonic() + PATIENCE_S
        while "Another site uses prefix" not in caplog.text:
            assert monotonic() < until
            sleep(0.02)
    finally:
        maintenance.close(PATIENCE_S)
    assert other.queue.degraded.on
    assert alarms(broker) == 0
