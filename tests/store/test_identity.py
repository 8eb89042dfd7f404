"""Two stores on one broker with one prefix: the second is refused by name. A forged mark stops no store of before."""

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from health_check.exceptions import ServiceUnavailable, ServiceWarning
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.core import transitions
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.health import Delayq
from django_delayq.models import StoreIdentity
from django_delayq.monitor import kept
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import Degraded
from django_delayq.store.mark import FRESH_S
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
    ours = str(StoreIdentity.objects.using(database).get(alias="default"))
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
    assert other.report().foreign == ""
    assert broker.report().foreign.startswith("Another site")  # and it goes on, because it has worked there


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
    """Return what `delayq status` writes, also where it fails in the end."""
    out = io.StringIO()
    with suppress(CommandError):
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


def test_a_heartbeat_of_another_store_is_not_sent_and_each_store_sees_its_own_workers(
    broker: DatabaseBackend, other: DatabaseBackend
) -> None:
    broker.presence.heartbeat(WORKER)
    other.presence.heartbeat(WorkerInfo("of the other", ["default"], ["k"], 0, 0))
    assert other.degraded.on
    assert [worker.name for worker in broker.presence.workers()] == [WORKER.name]
    with pytest.raises(BrokerRefused, match="Another site"):
        other.presence.workers()


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


FORGED = [{"store": "default 0123456789abcdef"}, {"shards": "99"}, {"layout": "7"}]
on_sqlite = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)


@pytest.fixture(params=FORGED, ids=lambda fields: next(iter(fields)))
def forged(
    request: pytest.FixtureRequest, broker: DatabaseBackend, redis_server: Server
) -> Iterator[Callable[[], None]]:
    """A Redis in which the store has worked, and whose mark was then forged. The call puts the right one back."""
    broker.report()
    with redis_server.client() as client:
        right = client.hgetall(META)
        client.hset(META, mapping=request.param)
        yield lambda: client.hset(META, mapping=right) and None


@pytest.fixture
def restarted(forged: object, stored_delayq: dict[str, Any], settings: Settings) -> DatabaseBackend:
    """The backend of a process that starts while the forged mark is there."""
    settings.DELAYQ = {"default": stored_delayq}
    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


def _dump(server: Server) -> dict[bytes, bytes]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.scan_iter()}


@on_sqlite
def test_a_store_that_has_worked_there_starts_in_spite_of_a_forged_mark_and_leaves_that_redis_alone(
    forged: Callable[[], None], restarted: DatabaseBackend, redis_server: Server
) -> None:
    before = _dump(redis_server)
    assert send_delay_message("k", 1, id="a").created  # before a worker has noticed
    report = restarted.report()
    assert (report.problems, report.warnings) == ([], [report.foreign])
    (given,) = claim(restarted)
    assert given.id == "a"
    send_delay_message("k", 1, id="soon", delay="5s")
    restarted.presence.heartbeat(WORKER)
    restarted.presence.pause(Pause(None, "k", "forged"))
    restarted.presence.resume(None, "k")
    restarted.queue.maintain(lease_ms=LEASE_MS)
    restarted.queue.repair()
    with pytest.raises(BrokerRefused, match="HDEL"):
        restarted.queue.keep_window(lease_ms=LEASE_MS)
    assert restarted.queue.apply([transitions.release(given)]) == [True]
    with pytest.raises(BrokerRefused, match="HDEL"):
        restarted.presence.leave(WORKER.name)
    assert _dump(redis_server) == before

    forged()
    restarted.queue.keep_window(lease_ms=LEASE_MS)
    assert (restarted.degraded.on, restarted.degraded.may_ask) == (False, True)
    assert alarms(restarted) == 1  # "soon"; the other is due, and found by the sweep
    restarted.presence.heartbeat(WORKER)
    assert [worker.name for worker in restarted.presence.workers()] == [WORKER.name]


@on_sqlite
def test_a_worker_that_runs_when_the_mark_is_forged_leaves_that_redis_alone_from_its_next_heartbeat_on(
    broker: DatabaseBackend, forged: Callable[[], None], redis_server: Server
) -> None:
    broker.presence.heartbeat(WORKER)
    before = _dump(redis_server)
    send_delay_message("k", 1, id="a")
    assert [message.id for message in claim(broker)] == ["a"]
    assert _dump(redis_server) == before


@on_sqlite
def test_a_process_starts_in_spite_of_a_forged_mark_says_so_and_goes_on_once_it_is_right(
    forged: Callable[[], None], stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server
) -> None:
    send_delay_message("run", "", id="a")
    with site_on(stored_delayq, database_env, redis_server) as site:
        worker = site.worker()
        site.line.next_of("a").release()
        worker.until_says("Trying again until it works")
        forged()
        worker.until_says("No longer degraded")
        assert worker.stop() == 0
    (error,) = [line for line in worker.text.splitlines() if " ERROR " in line]
    assert "under prefix 'delayq'" in error or "Another site uses prefix 'delayq' here" in error
    assert f"in Redis at {redis_server.url}: HDEL {META} " in error


@on_sqlite
@pytest.mark.parametrize("key", [META, "{delayq:0}:msg"])
def test_a_key_of_another_type_keeps_no_store_from_starting_that_has_worked_there(
    key: str, broker: DatabaseBackend, redis_server: Server, stored_delayq: dict[str, Any], settings: Settings
) -> None:
    broker.report()
    with redis_server.client() as client:
        client.delete(key)
        client.set(key, "x")
    settings.DELAYQ = {"default": stored_delayq}
    report = get_backend().report()
    assert (report.problems, report.is_away) == ([], True)
    assert "someone else writes under our prefix" in report.foreign


@on_sqlite
def test_status_the_check_and_the_health_tell_of_a_forged_mark(restarted: DatabaseBackend) -> None:
    told = _status()
    assert "with another site's mark" in told or "problem: Another site uses prefix 'delayq' here" in told
    assert "problem: As long as that mark is there" in told
    assert "workers: not known" in told
    found = run_checks(tags=["database"], include_deployment_checks=True, databases=[restarted.database.using])
    assert "delayq.W014" in [message.id for message in found]
    with pytest.raises(ServiceWarning, match="marked as another site's"):
        Delayq().run()
    send_delay_message("k", 1, id="late")
    kept.forget()
    with pytest.raises(ServiceUnavailable, match="too late"):
        Delayq(max_lag=timedelta(milliseconds=-1)).run()
    assert "can't be looked at" in " ".join(restarted.queue.audit().differences)


@on_sqlite
def test_what_a_store_remembers_is_of_one_server_prefix_and_number_of_shards(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings, redis_server: Server
) -> None:
    broker.report()
    for options in ({"prefix": "another"}, {"shards": 2}):
        settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": options}}
        found = get_backend()
        assert isinstance(found, DatabaseBackend)
        assert not found.mark.is_known()
    settings.DELAYQ = {"default": stored_delayq}
    again = get_backend()
    assert isinstance(again, DatabaseBackend)
    assert again.mark.is_known()


@on_sqlite
def test_a_store_that_got_another_identity_while_a_worker_runs_is_remembered_by_that(
    broker: DatabaseBackend, database: str, redis_server: Server
) -> None:
    broker.report()
    StoreIdentity.objects.using(database).all().delete()  # as `manage.py flush` does
    _forget_owner(redis_server)
    broker.presence.heartbeat(WORKER)
    assert broker.mark.is_known()


@on_sqlite
def test_a_sender_reads_the_mark_again_after_ten_seconds_and_not_before(
    broker: DatabaseBackend, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.report()
    with redis_server.client() as client:
        client.hset(META, mapping=FORGED[0])
    broker.mark.check()
    monkeypatch.setattr("django_delayq.store.mark.monotonic", lambda: monotonic() + FRESH_S)
    with pytest.raises(BrokerRefused, match="Another site"):
        broker.mark.check()
