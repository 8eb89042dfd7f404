"""A store on a database that is not `default`: everything goes there, whatever the routers of the site say."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, models, transaction
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import (
    Send,
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.support.timestamps import HOUR_MS
from tests import databases
from tests.brokers.rig import settlement
from tests.servers import Server, SqliteFiles
from tests.store.support import LEASE_MS, claim, window_of
from tests.worker.processes import Line, Site

COMMANDS = """
import django
from django.core.management import call_command
django.setup()
for command in (["status"], ["peek", "default"], ["errors"], ["audit"], ["explain", "b"], ["cancel", "b"]):
    call_command("delayq", *command)
"""


class NeverAsked:
    """A router that has no say in the tables of the store."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        raise AssertionError(f"asked where to read {model.__name__}")

    db_for_write = db_for_read

    def allow_relation(self, *args: object, **hints: Any) -> bool:
        raise AssertionError("asked about a relation")


class OnlyElsewhere:
    """A router that keeps the app out of one database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "without" and app_label == "delayq" else None


@pytest.fixture
def other(sqlite_files: SqliteFiles, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The alias of one more database, which the store is not on."""
    with django_db_blocker.unblock(), databases.database_on(sqlite_files) as alias:
        yield alias


def test_no_router_is_asked(broker: DatabaseBackend, settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.NeverAsked"]
    send_delay_message("k", 1, id="a")
    send_delay_messages([Send("k", 1, id="b", delay="1h"), Send("k", 1, id="c", tag="t")])
    reschedule_delay_messages("b", delay="2h")
    cancel_delay_messages("b", tag="t")
    assert get_delay_message("a") is not None
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    broker.queue.maintain(lease_ms=LEASE_MS)
    schedule_window(broker.database, window_of(broker), HOUR_MS)
    (claimed,) = claim(broker)
    broker.queue.renew([claimed], LEASE_MS)
    broker.queue.apply([settlement(claimed, SettleAction.FINISH)])
    assert broker.queue.audit().differences == []


@pytest.mark.parametrize(
    "send",
    [lambda: send_delay_message("k", 1, id="a"), lambda: send_delay_messages([Send("k", 1, id="a")])],
    ids=["one", "bulk"],
)
def test_only_a_transaction_on_its_database_takes_a_send_along(
    broker: DatabaseBackend, other: str, database: str, send: Callable[[], object]
) -> None:
    with transaction.atomic(using=other):
        with pytest.warns(RuntimeWarning, match=f"takes no part in the transaction on database '{other}'") as warned:
            send()
        transaction.set_rollback(True, using=other)
    assert warned[0].filename == __file__
    assert ReadyMessage.objects.using(database).get().message_id == "a"


def test_inside_transactions_on_both_nothing_is_warned_of(broker: DatabaseBackend, other: str, database: str) -> None:
    with transaction.atomic(using=other), transaction.atomic(using=database):
        send_delay_message("k", 1)
        transaction.set_rollback(True, using=database)
    assert not ReadyMessage.objects.using(database).exists()


def test_migrate_makes_the_tables_where_routers_let_it(
    sqlite_files: SqliteFiles, django_db_blocker: DjangoDbBlocker, settings: Settings
) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.OnlyElsewhere"]
    with django_db_blocker.unblock():
        for alias in ("without", "with"):
            sqlite_files.create_database(alias)
            with databases.registered(alias, sqlite_files.settings(alias)):
                call_command("migrate", "delayq", database=alias, verbosity=0)
                tables = connections[alias].introspection.table_names()
            sqlite_files.drop_database(alias)
            assert ("delayq_ready" in tables) == (alias == "with")


@pytest.fixture
def line(redis_server: Server) -> Iterator[Line]:
    """On which the handlers of processes call."""
    path = redis_server.directory / "two-databases.sock"
    path.unlink(missing_ok=True)
    line = Line(path)
    yield line
    line.close()
    path.unlink()


@pytest.fixture
def env(
    stored_delayq: dict[str, Any],
    database: str,
    sqlite_files: SqliteFiles,
    line: Line,
) -> Iterator[dict[str, str]]:
    """For processes: the store on `queue`, and a `default` that has no table at all."""
    sqlite_files.create_database("empty")
    both = {"default": sqlite_files.settings("empty"), "queue": connections.settings[database]}
    yield {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
        "DELAYQ_TEST": json.dumps(stored_delayq | {"DATABASE": "queue"}),
        "DELAYQ_TEST_DATABASES": json.dumps(both),
        "DELAYQ_TEST_LINE": str(line.path),
    }
    sqlite_files.drop_database("empty")


def test_workers_and_commands_need_no_table_on_default(
    broker: DatabaseBackend, env: dict[str, str], line: Line
) -> None:
    site = Site(broker, env, line)
    try:
        site.send("a")
        worker = site.worker("--drain")
        assert worker.wait() == 0, worker.text
        assert site.totals()["finished"] == 1
        site.send("b", key="unknown")
        done = subprocess.run([sys.executable, "-c", COMMANDS], env=os.environ | env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert site.totals()["cancelled"] == 1
    finally:
        site.close()
