"""A child process that dies between the commit of its atomic handler and its answer: the message is finished."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from django_delayq import send_delay_message
from django_delayq.models import FinishMessage, ReadyMessage
from tests.servers import Server
from tests.store.support import site_on
from tests.worker.processes import Site


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database, with an account on which there is nothing."""
    with connections[sqlite_database].cursor() as cursor:
        cursor.execute("CREATE TABLE account (balance bigint NOT NULL)")
        cursor.execute("INSERT INTO account VALUES (0)")
    return sqlite_database


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


def test_it_is_told_as_finished_and_runs_once(site: Site, database: str) -> None:
    send_delay_message("credit and die", 1, id="a")
    worker = site.worker("--processes", "1", "--drain")
    assert worker.wait() == 0
    assert "Drained: 1 finished" in worker.text
    assert "'a' (credit and die) is finished: its transaction was committed before its process died" in worker.text
    assert "overrun" not in worker.text
    assert not ReadyMessage.objects.using(database).exists()
    assert FinishMessage.objects.using(database).get().failures == 0
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT balance FROM account")
        assert cursor.fetchone() == (1,)
