"""The database connections of a thread: kept while they are good, closed when they are broken or old."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler, OperationalError
from pytest_django import DjangoDbBlocker

from django_delayq.core.message import Message
from django_delayq.worker import transactions as module
from django_delayq.worker.executors import asyncio as asyncio_executor, threads
from django_delayq.worker.transactions import LEAST_AGE_S, close_stale_connections
from tests import databases
from tests.servers import PostgresServer
from tests.servers.cluster import until
from tests.worker.rig import PATIENCE_S, Rig, make_handler

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@pytest.fixture
def connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: DjangoDbBlocker
) -> Iterator[BaseDatabaseWrapper]:
    """An open connection to a database file, the only one of this thread; CONN_MAX_AGE is 0, the default."""
    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")}})
    monkeypatch.setattr(module, "connections", handler)
    with django_db_blocker.unblock():
        connection = handler["default"]
        connection.ensure_connection()
        yield connection
        handler.close_all()


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(module, "monotonic", lambda: monotonic() + seconds)


def test_a_good_connection_is_kept_beyond_conn_max_age(
    connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time(monkeypatch, LEAST_AGE_S - 1)
    close_stale_connections()
    assert connection.connection is not None


def test_an_old_connection_is_closed(connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time(monkeypatch, LEAST_AGE_S + 1)
    close_stale_connections()
    assert connection.connection is None


def test_a_longer_conn_max_age_counts(connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    connection.settings_dict["CONN_MAX_AGE"] = 600
    connection.ensure_connection()
    pass_time(monkeypatch, 599)
    close_stale_connections()
    assert connection.connection is not None
    pass_time(monkeypatch, 601)
    close_stale_connections()
    assert connection.connection is None


def test_a_broken_connection_is_closed(connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM missing")
    monkeypatch.setattr(connection, "is_usable", lambda: False)  # SQLite's always is, a server's may be gone
    close_stale_connections()
    assert connection.connection is None


def test_a_connection_that_survived_an_error_is_kept(connection: BaseDatabaseWrapper) -> None:
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM missing")
    close_stale_connections()
    assert connection.connection is not None
    assert not connection.errors_occurred


def test_a_transaction_that_a_handler_left_open_ends(connection: BaseDatabaseWrapper) -> None:
    connection.set_autocommit(False)
    close_stale_connections()
    assert connection.connection is None


def test_what_is_inside_a_transaction_is_left_alone(
    connection: BaseDatabaseWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time(monkeypatch, LEAST_AGE_S + 1)
    connection.in_atomic_block = True  # as in a TestCase
    close_stale_connections()
    assert connection.connection is not None
    assert not connection.closed_in_transaction
    connection.in_atomic_block = False


@pytest.mark.parametrize("is_async", [False, True])
def test_a_connection_cut_while_idle_costs_no_attempt_with_conn_health_checks(
    rig: Rig, start_postgres: Callable[..., PostgresServer], django_db_blocker: DjangoDbBlocker, is_async: bool
) -> None:
    server = start_postgres()
    checked = server.settings("postgres") | {"CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}
    with django_db_blocker.unblock(), databases.registered("checked", checked):

        def ask(message: Message[None]) -> None:
            with connections["checked"].cursor() as cursor:
                cursor.execute("SELECT 1")

        async def aask(message: Message[None]) -> None:
            await sync_to_async(ask)(message)

        rig.start(make_handler(aask if is_async else ask, concurrency=1, max_attempts=1))
        for id in ("a", "b"):
            rig.send(id)
            rig.until_gone(id)
            server.cut()
        assert rig.broker.queue.counts().error == 0
        rig.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_burst_leaves_no_connection_open(
    rig: Rig,
    start_postgres: Callable[..., PostgresServer],
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 0.1)
    monkeypatch.setattr(asyncio_executor, "IDLE_S", 0.1)
    server = start_postgres()
    with django_db_blocker.unblock(), databases.registered("burst", server.settings("postgres")):

        def ask(message: Message[None]) -> None:
            with connections["burst"].cursor() as cursor:
                cursor.execute("SELECT pg_sleep(0.05)")

        async def aask(message: Message[None]) -> None:
            await sync_to_async(ask)(message)

        ids = [f"m{n}" for n in range(8)]
        rig.send(*ids)
        rig.start(make_handler(aask if is_async else ask, concurrency=4))
        rig.until_gone(*ids)
        with server.client() as client:
            until(lambda: client.execute(SESSIONS).fetchone() == (0,), PATIENCE_S)
        rig.stop()
