"""Levels of isolation at which an atomic handler would not end are refused, by name; at all others it ends."""

import logging
import threading
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from psycopg import IsolationLevel

from django_delayq import Message, delay_execute, send_delay_message
from django_delayq.admin.bulk import jobs
from django_delayq.brokers.base import CancelRequest
from django_delayq.store import DatabaseBackend
from django_delayq.worker import attempt
from tests.store.support import LEASE_MS, claim
from tests.worker.rig import PATIENCE_S, make_handler

SNAPSHOTS = {"init_command": "SET innodb_snapshot_isolation = ON"}
WITH = " with innodb_snapshot_isolation"
EACH: list[tuple[str, dict[str, Any], str]] = [
    ("sqlite_database", {}, ""),
    ("postgres_database", {}, ""),
    ("postgres_database", {"isolation_level": IsolationLevel.REPEATABLE_READ}, "REPEATABLE READ"),
    ("postgres_database", {"isolation_level": IsolationLevel.SERIALIZABLE}, "SERIALIZABLE"),
    ("postgres_database", {"options": "-c default_transaction_isolation=serializable"}, "SERIALIZABLE"),
    ("mariadb_database", {}, ""),
    ("mariadb_database", {"isolation_level": "repeatable read"}, ""),
    ("mariadb_database", {"isolation_level": "serializable"}, ""),
    ("mariadb_database", SNAPSHOTS, ""),
    ("mariadb_database", SNAPSHOTS | {"isolation_level": "repeatable read"}, f"REPEATABLE READ{WITH}"),
    ("mariadb_database", SNAPSHOTS | {"isolation_level": "serializable"}, f"SERIALIZABLE{WITH}"),
]
"""A database, OPTIONS of its connections, and the level that is refused."""
LEVELS = pytest.mark.parametrize(
    ("database", "options", "refused"),
    [pytest.param(*each, id=f"{each[0].partition('_')[0]}{number}") for number, each in enumerate(EACH)],
    indirect=["database"],
)
REPEATABLE_READ = pytest.mark.parametrize(
    ("database", "options"),
    [("postgres_database", {"isolation_level": IsolationLevel.REPEATABLE_READ})],
    ids=["postgresql"],
    indirect=["database"],
)


@pytest.fixture(autouse=True)
def _connect_with(database: str, options: dict[str, Any]) -> None:
    """Connections of this test are made with these OPTIONS too."""
    connections[database].close()
    connections.settings[database].setdefault("OPTIONS", {}).update(options)
    del connections[database]


@pytest.fixture
def own_log_level(caplog: pytest.LogCaptureFixture) -> None:
    """The command of the worker sets the level of the log: it is as before at the end."""
    caplog.set_level(logging.NOTSET, "django_delayq")


def handle(message: Message[Any]) -> None: ...


def found(database: str) -> list[CheckMessage]:
    checks = run_checks(tags=["database"], include_deployment_checks=True, databases=[database])
    return [message for message in checks if message.id == "delayq.E012"]


def run_and_renew(broker: DatabaseBackend, database: str) -> BaseException | None:
    """Return what becomes of an atomic handler whose lease is renewed while it runs."""

    def renew() -> None:
        renewed.extend(broker.queue.renew([claimed], LEASE_MS))
        connections.close_all()

    def func(message: Message[Any]) -> None:
        assert not Group.objects.using(database).exists()  # what it sees from here on is as of now
        renewing = threading.Thread(target=renew)
        renewing.start()
        renewing.join(PATIENCE_S)

    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    renewed: list[bool | CancelRequest | None] = []
    handler = make_handler(func, atomic=True)
    message = attempt.begin(claimed, handler, claimed.due_ms, lambda: True)
    assert isinstance(message, Message)
    exception = attempt.run_sync(claimed, handler, message, database)
    assert renewed == [True]
    return exception


@LEVELS
def test_just_those_are_refused_at_which_a_renewal_keeps_it_from_its_end(
    broker: DatabaseBackend, database: str, refused: str, registry: None
) -> None:
    delay_execute(key="k", atomic=True)(handle)
    messages = found(database)
    assert [message.msg.partition(":")[0] for message in messages] == (
        [f"Database {database!r} runs transactions at {refused}"] if refused else []
    )
    if connections[database].vendor != "sqlite":  # which has one writer: nobody renews meanwhile
        assert (run_and_renew(broker, database) is None) == (not messages)


@pytest.mark.usefixtures("own_log_level")
@REPEATABLE_READ
def test_a_worker_does_not_start_there(broker: DatabaseBackend, registry: None) -> None:
    delay_execute(key="k.atomic", atomic=True)(handle)
    with pytest.raises(CommandError, match=r"at REPEATABLE READ: .*'k\.atomic'.*READ COMMITTED"):
        call_command("run_delayq", drain=True, verbosity=0)


@pytest.mark.usefixtures("own_log_level")
@REPEATABLE_READ
def test_handlers_that_are_not_atomic_run_there(broker: DatabaseBackend, database: str, registry: None) -> None:
    delay_execute(key="k")(handle)
    jobs.register("default")  # that of the admin's jobs, which every site with it has
    send_delay_message("k", 1, id="a")
    assert found(database) == []
    call_command("run_delayq", drain=True, verbosity=0)
    assert broker.queue.counts().waiting == []
