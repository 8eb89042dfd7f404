"""Through PgBouncer in transaction mode no notice arrives: a worker says so once, and looks."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connections
from pytest_django import Settings

from django_delayq.brokers import get_backend
from tests import databases, servers
from tests.database.conftest import ALONE
from tests.servers import PgBouncer, PostgresServer, pgbouncer_program
from tests.worker.processes import Site, site_with

SAID = "a notice did not arrive, as through PgBouncer in transaction mode"


@pytest.fixture
def pooled_site(settings: Settings, postgres_server: PostgresServer, postgres_database: str) -> Iterator[Site]:
    """A site whose processes reach their database through PgBouncer."""
    program = pgbouncer_program() or servers.missing("pgbouncer")
    name = connections[postgres_database].settings_dict["NAME"]
    alias = {"BROKER": ALONE, "STORE": {}, "OPTIONS": {"unknown_keys": "allow", "lease": "2s"}}
    settings.DELAYQ = {"default": alias | {"DATABASE": postgres_database}}
    with closing(PgBouncer(program, postgres_server)) as pool:
        env = databases.environment(pool.settings(name))
        with site_with(alias, get_backend(), env, Path("/tmp")) as site:
            yield site


def test_workers_say_why_they_look_and_run_everything(pooled_site: Site) -> None:
    worker = pooled_site.worker()
    worker.until_says(SAID)
    ids = {f"{n}" for n in range(20)}
    for id in sorted(ids):
        pooled_site.send(id)
    assert {pooled_site.line.next().id for _ in ids} == ids
    assert worker.stop() == 0
    assert worker.text.count(SAID) == 1
    assert pooled_site.totals()["finished"] == 20
