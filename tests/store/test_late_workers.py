"""A worker that is frozen past its lease, wherever it is then, changes no row when it goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from django.db import connections

from django_delayq import send_delay_message
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.servers import Server
from tests.store.support import site_on
from tests.worker.processes import PATIENCE_S, Site, WorkerProcess


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site on a store, with leases of a second."""
    stored_delayq["OPTIONS"] |= {"lease": "1s"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


def frozen_worker(site: Site, about_to: str) -> WorkerProcess:
    """A worker that froze itself when it was about to do this with its first message."""
    site.env["DELAYQ_TEST_FREEZE"] = about_to
    worker = site.worker()
    del site.env["DELAYQ_TEST_FREEZE"]
    while site.line.next().what != "freezes":
        pass
    while "\nState:\tT" not in Path(f"/proc/{worker.pid}/status").read_text():
        sleep(0.01)
    return worker


def take_over(site: Site, database: str) -> WorkerProcess:
    """Have another worker run it, once the lease is over."""
    other = site.worker()
    until = monotonic() + PATIENCE_S
    while not FinishMessage.objects.using(database).exists():
        assert monotonic() < until, f"nobody took over {rows(database)}: {other.text}"
        sleep(0.05)
    return other


def rows(database: str) -> list[dict[str, Any]]:
    """Every row, as it is."""
    tables = (ReadyMessage, FinishMessage, ErrorMessage)
    return [dict(row) for table in tables for row in table._default_manager.using(database).order_by("pk").values()]


@pytest.mark.parametrize(
    ("about_to", "again"),
    [("start", False), ("run on", True), ("settle", False), ("settle", True)],
    ids=["start, taken over", "run on, sent again", "settle, taken over", "settle, sent again"],
)
def test_a_worker_that_was_frozen_past_its_lease_changes_no_row(
    broker: DatabaseBackend, site: Site, database: str, about_to: str, again: bool
) -> None:
    send_delay_message("freeze", 1, id="a")
    late = frozen_worker(site, about_to)
    other = take_over(site, database)
    if again:
        assert send_delay_message("freeze", 2, id="a", delay="2h").created
    before = rows(database)
    assert [row["crashes"] for row in before if "outcome" in row] == [1]
    late.signal(signal.SIGCONT)
    late.until_says("overrun: message 'a'")
    assert [late.stop(), other.stop()] == [0, 0]
    assert rows(database) == before


@pytest.mark.alters_tables
def test_an_atomic_handler_of_a_late_worker_takes_back_what_it_wrote(
    broker: DatabaseBackend, site: Site, database: str
) -> None:
    with connections[database].cursor() as cursor:
        cursor.execute("CREATE TABLE account (balance bigint NOT NULL)")
        cursor.execute("INSERT INTO account VALUES (0)")
    send_delay_message("credit", 1, id="a")
    late = frozen_worker(site, "start")
    other = take_over(site, database)
    assert send_delay_message("credit", 2, id="a", delay="2h").created
    before = rows(database)
    late.signal(signal.SIGCONT)
    late.until_says("overrun: message 'a'")
    assert [late.stop(), other.stop()] == [0, 0]
    assert rows(database) == before
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT balance FROM account")
        assert cursor.fetchone() == (1,)
