"""Real workers on a store: what dies under them costs no message, and runs none twice at once."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from django_delayq.brokers.base import ClaimRequest
from django_delayq.models import FinishMessage
from django_delayq.store import DatabaseBackend
from tests import databases
from tests.proxy import proxy_before
from tests.servers import PostgresServer, Server
from tests.store.support import site_on
from tests.worker.processes import Site, kill_and_take_over, kill_once_settled


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site on a store, with leases of a second."""
    stored_delayq["OPTIONS"] |= {"lease": "1s"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


def test_another_worker_takes_over_what_a_killed_one_ran(site: Site) -> None:
    kill_and_take_over(site)
    assert site.totals()["finished"] == 2


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_what_a_killed_process_had_settled_without_knowing_is_no_overrun(
    stored_delayq: dict[str, Any], database: str, postgres_server: PostgresServer, redis_server: Server
) -> None:
    with proxy_before(postgres_server) as network:
        far = connections.settings[database] | {"HOST": "127.0.0.1", "PORT": str(network.port)}
        with site_on(stored_delayq, databases.environment(far), redis_server) as site:
            worker = site.worker("--processes", "1")
            settled = network.hold_reply(b"finished AS (INSERT INTO delayq_finish")
            kill_once_settled(site, worker, settled, finished=1)
            assert FinishMessage.objects.using(database).count() == 1


def test_a_flushed_redis_costs_no_message(site: Site, redis_server: Server) -> None:
    worker = site.worker()
    site.send("first")
    assert site.line.next().id == "first"
    ids = {f"{n}" for n in range(50)}
    for id in ids:
        site.send(id, key="run")
    with redis_server.client() as client:
        client.flushall()
    heard = {site.line.next().id for _ in ids}
    assert heard == ids
    assert worker.stop() == 0
    assert site.totals()["finished"] == 51
    assert site.line.none_waits()


def test_drain_runs_what_is_due(site: Site) -> None:
    site.send(*(f"{n}" for n in range(20)))
    worker = site.worker("--drain")
    assert worker.wait() == 0
    assert "Drained: 20 finished" in worker.text
    assert site.totals()["finished"] == 20


def test_drain_runs_what_is_due_by_the_tables_though_the_broker_has_lost_it(site: Site, database: str) -> None:
    assert isinstance(site.broker, DatabaseBackend)
    site.send(*(f"{n}" for n in range(20)))
    lost = 0
    while lost < 20:
        alarms = site.broker.queue.timer.take_due(
            [ClaimRequest("default", "run", 20)], lease_ms=60_000, worker="w"
        ).alarms
        site.broker.queue.timer.drop(alarms)
        lost += len(alarms)
    worker = site.worker("--drain")
    assert worker.wait() == 0
    assert "Drained: 20 finished" in worker.text
    assert site.totals()["finished"] == 20
