"""The checks that ask a store's database, and what workers and senders say of the same."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.utils import ConnectionHandler
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import BrokerRefused, Message, delay_execute, get_delay_message, send_delay_message
from django_delayq.models import ReadyMessage
from django_delayq.worker import banner
from tests import databases
from tests.servers import PostgresServer

STORED: dict[str, Any] = {
    "BROKER": "django_delayq.brokers.memory.MemoryBroker",
    "STORE": {},
    "OPTIONS": {"unknown_keys": "allow"},
}


def found(*databases: str) -> list[CheckMessage]:
    return [
        message
        for message in run_checks(tags=["database"], include_deployment_checks=True, databases=databases or None)
        if (message.id or "").startswith("delayq.")
    ]


@pytest.fixture
def stored(settings: Settings, database: str, registry: None) -> str:
    """A store on each database in turn, and a handler; the alias of the database."""
    settings.DELAYQ = {"default": STORED | {"DATABASE": database}}

    @delay_execute("known", former_keys=["former"])
    def known(message: Message[int]) -> None: ...

    return database


def test_a_store_that_is_fit_passes(stored: str) -> None:
    send_delay_message("known", 1)
    send_delay_message("former", 1)
    assert found(stored) == []


def test_waiting_messages_without_a_handler_are_counted_by_key(stored: str) -> None:
    for _ in range(3):
        send_delay_message("gone", 1)
    send_delay_message("known", 1)
    (message,) = found(stored)
    assert message.id == "delayq.W003"
    assert "3 message(s) of alias 'default' wait for key 'gone'" in message.msg
    assert message.hint is not None
    assert "in the `delayed` module of each installed app" in message.hint
    assert "purge --key gone" in message.hint


def test_an_alias_with_a_wrong_setting_hides_nothing_of_those_after_it(stored: str, settings: Settings) -> None:
    settings.DELAYQ = {"wrong": {"STOER": {}}, **settings.DELAYQ}
    send_delay_message("gone", 1)
    assert [message.id for message in found(stored)] == ["delayq.W003"]


def test_only_the_databases_that_are_asked_for_are_asked(stored: str) -> None:
    send_delay_message("gone", 1)
    assert found() == []
    assert found("other") == []


def test_an_alias_without_a_store_is_not_asked(stored: str, settings: Settings) -> None:
    settings.DELAYQ = {"default": STORED | {"DATABASE": stored, "STORE": None}}
    assert found(stored) == []


@pytest.fixture
def empty(stored: str, settings: Settings, server_of: Callable[[str], databases.DatabaseServer]) -> Iterator[str]:
    """The alias of a database that was not migrated, with the store on it."""
    server = server_of(stored)
    server.create_database("empty")
    with databases.registered(f"{stored}_empty", server.settings("empty")) as alias:
        settings.DELAYQ = {"default": STORED | {"DATABASE": alias}}
        yield alias
    server.drop_database("empty")


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Callable[[str], databases.DatabaseServer]:
    """The server that a database is on."""
    names = {"sqlite": "sqlite_files", "postgresql": "postgres_server", "mysql": "mariadb_server"}

    def find(alias: str) -> databases.DatabaseServer:
        server: databases.DatabaseServer = request.getfixturevalue(names[connections[alias].vendor])
        return server

    return find


@pytest.fixture
def own_log_level(caplog: pytest.LogCaptureFixture) -> None:
    """The command of the worker sets the level of the log: it is as before at the end."""
    caplog.set_level(logging.NOTSET, "django_delayq")


@pytest.mark.usefixtures("own_log_level")
def test_without_its_tables_the_check_the_worker_and_a_send_say_what_to_do(empty: str) -> None:
    (message,) = found(empty)
    assert message.id == "delayq.E006"
    assert "lacks the tables of delayq" in message.msg
    fix = f"run `manage.py migrate --database {empty}`"
    assert fix in message.msg
    with pytest.raises(CommandError, match=fix):
        call_command("run_delayq", drain=True)
    with pytest.raises(BrokerRefused, match=fix):
        send_delay_message("known", 1)
    with pytest.raises(BrokerRefused, match=fix):
        get_delay_message("a")


class Elsewhere:
    """A router that has the tables of delayq in no database that there is."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "delayq" else None


@pytest.mark.usefixtures("own_log_level")
def test_where_a_router_allows_no_tables_another_database_is_asked_for(empty: str, settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    (message,) = found(empty)
    assert "DATABASE_ROUTERS lets delayq have no tables there" in message.msg
    assert 'DELAYQ["default"]["DATABASE"]' in message.msg
    assert "migrate --database" not in message.msg


@pytest.mark.alters_tables
def test_a_migration_that_was_not_run_is_found_by_its_column(stored: str) -> None:
    with connections[stored].schema_editor() as editor:
        editor.remove_field(ReadyMessage, ReadyMessage._meta.get_field("trace_id"))
    (message,) = found(stored)
    assert message.id == "delayq.E006"
    assert "lacks the column delayq_ready.trace_id:" in message.msg
    with pytest.raises(BrokerRefused, match="migrate --database"):
        send_delay_message("known", 1, trace_id="t")


def test_a_database_that_is_away_is_told(
    start_postgres: Callable[..., PostgresServer], settings: Settings, django_db_blocker: DjangoDbBlocker
) -> None:
    server = start_postgres()
    server.kill()
    with django_db_blocker.unblock(), databases.registered("away", server.settings("postgres")) as alias:
        settings.DELAYQ = {"default": STORED | {"DATABASE": alias}}
        (message,) = found(alias)
    assert message.id == "delayq.E006"
    assert "Database 'away':" in message.msg


def test_sqlite_as_django_sets_it_up_is_warned_of(
    tmp_path: Path, settings: Settings, django_db_blocker: DjangoDbBlocker
) -> None:
    plain = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "plain.sqlite3")}
    with django_db_blocker.unblock(), databases.registered("plain", plain) as alias:
        call_command("migrate", database=alias, verbosity=0)
        settings.DELAYQ = {"default": STORED | {"DATABASE": alias}}
        (message,) = found(alias)
    assert message.id == "delayq.W002"
    assert "PRAGMA journal_mode=WAL" in message.msg
    assert '"transaction_mode": "IMMEDIATE"' in message.msg


def test_more_connections_than_the_database_allows_are_warned_of(
    start_postgres: Callable[..., PostgresServer],
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
    registry: None,
) -> None:
    delay_execute("a", concurrency=20)(_handle)
    server = start_postgres(max_connections=20)
    with django_db_blocker.unblock(), databases.database_on(server) as alias:
        settings.DELAYQ = {"default": STORED | {"DATABASE": alias}}
        (message,) = found(alias)
    assert message.id == "delayq.W004"
    assert "may open 21 connections" in message.msg
    assert "allows 17 in all" in message.msg


def test_the_limits_of_the_database_and_of_its_user_count_too(
    start_postgres: Callable[..., PostgresServer],
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
    registry: None,
) -> None:
    delay_execute("a", concurrency=20)(_handle)
    server = start_postgres()
    with django_db_blocker.unblock(), databases.database_on(server) as alias, server.client() as client:
        settings.DELAYQ = {"default": STORED | {"DATABASE": alias}}
        assert found(alias) == []
        client.execute(f'ALTER DATABASE "{alias}" CONNECTION LIMIT 20')
        (of_database,) = found(alias)
        client.execute("ALTER ROLE delayq CONNECTION LIMIT 19")
        (of_user,) = found(alias)
    assert "allows 20 in all" in of_database.msg
    assert "allows 19 in all" in of_user.msg


@pytest.mark.usefixtures("own_log_level")
@pytest.mark.parametrize("pool", [True, {"max_size": 19}, {"min_size": 19}])
def test_a_pool_with_fewer_connections_than_a_worker_has_threads_is_warned_of_by_the_check_and_the_worker(
    stored: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, pool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    delay_execute("a", concurrency=16)(_handle)
    pooled = {"ENGINE": "django.db.backends.postgresql", "NAME": "pooled", "OPTIONS": {"pool": pool}}
    monkeypatch.setattr(banner, "connections", ConnectionHandler(dict.fromkeys(connections, pooled)))
    (message,) = found(stored)
    assert message.id == "delayq.W004"
    size = 4 if pool is True else 19
    text = f"may hold 20 connections to database {stored!r} at once, whose pool has {size}:"
    assert text in message.msg
    assert 'a "max_size" of at least 20' in message.msg
    call_command("run_delayq", drain=True)
    assert text in capsys.readouterr().out


def test_a_pool_with_a_connection_for_each_thread_is_fit(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = {"ENGINE": "django.db.backends.postgresql", "NAME": "pooled", "OPTIONS": {"pool": {"max_size": 8}}}
    monkeypatch.setattr(banner, "connections", ConnectionHandler(dict.fromkeys(connections, pooled)))
    assert found(stored) == []


def _handle(message: Message[int]) -> None: ...
