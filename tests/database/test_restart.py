"""A PostgreSQL that is restarted, or cuts its connections: workers go on, and are notified again."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import Every, pause_delay_schedules, schedule_delay_message
from django_delayq.brokers import get_backend
from django_delayq.core.occurrences import occurrence_of
from django_delayq.models import FinishMessage
from tests import databases
from tests.database.conftest import ALONE
from tests.servers import PostgresServer
from tests.worker.processes import Site, site_with


@pytest.fixture
def server(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """One that a test may restart."""
    return start_postgres()


@pytest.fixture
def site(settings: Settings, server: PostgresServer, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    """A site on that server alone."""
    with django_db_blocker.unblock(), databases.database_on(server) as database:
        alias = {"BROKER": ALONE, "STORE": {}, "OPTIONS": {"unknown_keys": "allow", "lease": "2s"}}
        settings.DELAYQ = {"default": alias | {"DATABASE": database}}
        env = databases.environment(connections.settings[database])
        with site_with(alias, get_backend(), env, Path("/tmp")) as site:
            yield site


def test_a_restarted_database_costs_no_message_and_notifies_again(site: Site, server: PostgresServer) -> None:
    worker = site.worker()
    site.send("first")
    assert site.line.next().id == "first"
    server.restart()
    worker.until_says("notifies of commits again")
    connections[get_backend().store.database.using].close()  # type: ignore[union-attr]
    ids = {f"{n}" for n in range(20)}
    for id in sorted(ids):
        site.send(id)
    while ids:  # the first may run again: its end could not be told
        ids.discard(site.line.next().id)
    assert worker.stop() == 0
    assert site.totals()["finished"] == 21


def test_each_occurrence_of_a_schedule_ends_once_however_often_the_database_restarts(
    site: Site, server: PostgresServer
) -> None:
    using = get_backend().store.database.using  # type: ignore[union-attr]
    worker = site.worker()
    schedule_delay_message("run", "x", name="s", every=Every(seconds=1), catch_up="all", overlap="after")
    for restart in range(1, 4):
        site.line.next()
        server.restart()
        worker.until_says_times("notifies of commits again", restart)
    site.line.next()
    connections[using].close()
    pause_delay_schedules("s", reason="the test is over")
    assert worker.stop() == 0
    rows = FinishMessage.objects.using(using).filter(outcome="finished")
    times = sorted(at for _, at in filter(None, map(occurrence_of, rows.values_list("message_id", flat=True))))
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(seconds=1)}
