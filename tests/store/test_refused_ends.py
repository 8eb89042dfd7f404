"""An end that the database refuses for good is counted as a failed attempt, and never has a handler run for ever."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import Message, delay_execute, send_delay_message
from django_delayq.api.handlers import Handler
from django_delayq.brokers import get_backend
from django_delayq.core import transitions
from django_delayq.core.history import read
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.worker import settler as settling_module
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.threads import in_thread
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog, guarded
from django_delayq.worker.settler import Settler
from tests import databases
from tests.servers import PostgresServer
from tests.store.support import LEASE_MS, WANT, claim
from tests.worker.rig import PATIENCE_S, make_handler

EMOJI = "\U0001f389"
CARD = "4111 1111"


@pytest.fixture(autouse=True)
def _tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_module, "REFUSED_PAUSE_S", 0.01)


@pytest.fixture
def own_log_level(caplog: pytest.LogCaptureFixture) -> None:
    """The command of the worker sets the level of the log: it is as before at the end."""
    caplog.set_level(logging.NOTSET, "django_delayq")


def work(broker: DatabaseBackend, handler: Handler[Any, Any]) -> int:
    """Run what waits, once, as a worker does, and tell how it ended. Gives for how many ms it waits then."""
    outage = OutageLog()
    settling = Settler(broker, Leases(broker, LEASE_MS, outage), outage)
    ReadyMessage.objects.using(broker.database.using).update(due_at=broker.database.now_ms())
    settling.start()
    with in_thread(broker.database.using, AttemptEvents("w")) as run:
        for claimed in broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages:
            lease = Lease(claimed, handler, 0.0, math.inf, 0.0)
            settlement = run(lease)
            assert settlement is not None
            settling.add(lease, settlement)
    settling.close(PATIENCE_S)
    now_ms = broker.database.now_ms()
    rows = ReadyMessage.objects.using(broker.database.using)
    return max((to_epoch_ms(row.due_at) - now_ms for row in rows), default=0)


@pytest.fixture
def utf8mb3_database(mariadb_database: str) -> str:
    """One on MariaDB that takes no character beyond U+FFFF as the text of an error."""
    with connections[mariadb_database].cursor() as cursor:
        for table, columns in {"ready": ("error", "history"), "error": ("error", "history", "detail")}.items():
            for column in columns:
                cursor.execute(f"ALTER TABLE delayq_{table} MODIFY {column} LONGTEXT CHARACTER SET utf8mb3 NOT NULL")
    return mariadb_database


@pytest.fixture
def latin1_database(postgres_server: PostgresServer, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """One on PostgreSQL that takes no character beyond U+00FF."""
    with postgres_server.client() as client:
        client.execute("CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1'")
    with django_db_blocker.unblock(), databases.registered("latin1", postgres_server.settings("latin1")) as alias:
        call_command("migrate", "delayq", database=alias, verbosity=0)
        yield alias
    postgres_server.drop_database("latin1")


@pytest.fixture
def limited(database: str) -> Iterator[str]:
    """The same database, as a user who may not add a row to those that have finished."""
    tables = [model._meta.db_table for model in apps.get_app_config("delayq").get_models()]
    user = "limited" if connections[database].vendor == "postgresql" else "limited@localhost"
    with connections[database].cursor() as cursor:
        cursor.execute(f"CREATE {'ROLE limited LOGIN' if user == 'limited' else f'USER {user}'}")
        for table in tables:
            verbs = "SELECT, UPDATE, DELETE" if table == "delayq_finish" else "SELECT, INSERT, UPDATE, DELETE"
            cursor.execute(f"GRANT {verbs} ON {table} TO {user}")
        if user == "limited":
            cursor.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO limited")
    settings = connections.settings[database] | {"USER": "limited"}
    with databases.registered(f"{database}_limited", settings) as alias:
        yield alias
    with connections[database].cursor() as cursor:
        if user == "limited":
            cursor.execute("DROP OWNED BY limited")
        cursor.execute(f"DROP {'ROLE' if user == 'limited' else 'USER'} {user}")


@pytest.mark.alters_tables
@pytest.mark.parametrize("database", ["utf8mb3_database", "latin1_database"], indirect=True)
def test_texts_that_the_database_can_not_keep_are_written_in_ascii(broker: DatabaseBackend, database: str) -> None:
    def fail(message: Message[Any]) -> None:
        raise ValueError(f"Grüße {EMOJI}")

    handler = make_handler(fail, max_attempts=2)
    send_delay_message("k", 1, id="a")
    work(broker, handler)
    row = ReadyMessage.objects.using(database).get()
    (attempt,) = read(row.history)
    assert (row.failures, row.error) == (1, "ValueError: Gr\\xfc\\xdfe \\U0001f389")
    assert "\\U0001f389" in attempt.traceback
    ReadyMessage.objects.using(database).update(due_at=broker.database.now_ms())
    (lost,) = broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="dead").messages
    ReadyMessage.objects.using(database).update(lease_until=5)
    (again,) = broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages  # its history can be written again
    assert (again.id, again.crashes) == (lost.id, 1)
    broker.queue.apply([transitions.release(again)])
    work(broker, handler)
    buried = ErrorMessage.objects.using(database).get()
    assert (buried.failures, buried.error) == (2, row.error)
    assert "\\U0001f389" in buried.detail


def take_id(database: str, model: type[ErrorMessage] | type[FinishMessage]) -> None:
    """Have another message, which has ended, be under the primary key of the one that waits."""
    row: dict[str, Any] = {**ReadyMessage.objects.using(database).values().get(), "message_id": "other"}
    kept = {field.name: row.get(field.name, "") for field in model._meta.fields}
    model._default_manager.using(database).create(**kept | {"ended_at": row["due_at"]})


def test_a_finish_that_is_refused_counts_as_a_failure_until_the_message_has_failed(
    broker: DatabaseBackend, database: str
) -> None:
    starts: list[int] = []
    send_delay_message("k", 1, id="a")
    take_id(database, FinishMessage)
    handler = make_handler(lambda message: starts.append(message.attempt), max_attempts=3)
    waits = [work(broker, handler), work(broker, handler)]
    assert waits[1] > 2 * waits[0]
    for _ in range(2):
        work(broker, handler)
    assert starts == [1, 2, 3]
    buried = ErrorMessage.objects.using(database).get()
    assert (buried.message_id, buried.failures) == ("a", 3)
    assert buried.error.startswith("its finish is refused: IntegrityError")
    earlier = [(each.outcome, each.error) for each in read(buried.history)]
    assert earlier == [("failed", buried.error)] * 2


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"], indirect=True)
def test_a_finish_for_want_of_a_permission_counts_as_a_failure(
    stored_delayq: dict[str, Any], settings: Settings, limited: str
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"DATABASE": limited}}
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    starts: list[int] = []
    send_delay_message("k", 1, id="a")
    handler = make_handler(lambda message: starts.append(message.attempt), max_attempts=2)
    for _ in range(3):
        work(broker, handler)
    assert starts == [1, 2]
    assert "delayq_finish" in ErrorMessage.objects.using(limited).get().error


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"], indirect=True)
@pytest.mark.usefixtures("registry", "own_log_level")
def test_a_worker_that_lacks_a_permission_says_so_and_does_not_start(
    stored_delayq: dict[str, Any], settings: Settings, limited: str
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"DATABASE": limited}}
    delay_execute("known")(nothing)
    with pytest.raises(CommandError, match=r"GRANT INSERT ON delayq_finish TO limited\b"):
        call_command("run_delayq", drain=True)


def nothing(message: Message[int]) -> None: ...


def test_what_must_not_start_twice_has_failed_when_its_finish_is_refused(
    broker: DatabaseBackend, database: str
) -> None:
    starts: list[int] = []
    send_delay_message("k", 1, id="a")
    take_id(database, FinishMessage)
    handler = make_handler(lambda message: starts.append(message.attempt), at_most_once=True)
    work(broker, handler)
    work(broker, handler)
    assert starts == [1]
    assert ErrorMessage.objects.using(database).get().error.startswith("its finish is refused: IntegrityError")


@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_burial_that_is_refused_is_put_off_and_starts_no_handler(
    broker: DatabaseBackend, database: str, at_most_once: bool
) -> None:
    starts: list[int] = []

    def fail(message: Message[Any]) -> None:
        starts.append(message.attempt)
        raise ValueError("no")

    send_delay_message("k", 1, id="a")
    take_id(database, ErrorMessage)
    handler = make_handler(fail, max_attempts=1, at_most_once=at_most_once)
    waits = [work(broker, handler) for _ in range(3)]
    assert starts == [1]
    assert waits[2] > 2 * waits[1] > 4 * waits[0]
    ErrorMessage.objects.using(database).all().delete()
    work(broker, handler)
    buried = ErrorMessage.objects.using(database).get()
    assert (buried.message_id, starts) == ("a", [1])


def test_upkeep_goes_on_where_the_burial_of_what_lapsed_is_refused(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", at_most_once=True)
    claim(broker)
    ReadyMessage.objects.using(database).update(lease_until=1, due_at=1)
    take_id(database, ErrorMessage)
    send_delay_message("k", 1, id="b", at_most_once=True)
    claim(broker)
    ReadyMessage.objects.using(database).filter(message_id="b").update(lease_until=1, due_at=1)
    starts: list[str] = []
    handler = make_handler(lambda message: starts.append(message.id))
    broker.queue.maintain(lease_ms=LEASE_MS)
    work(broker, handler)
    assert starts == []
    assert {row.message_id for row in ErrorMessage.objects.using(database)} == {"other", "b"}
    ErrorMessage.objects.using(database).filter(message_id="other").delete()
    work(broker, handler)
    assert starts == []
    assert {row.message_id for row in ErrorMessage.objects.using(database)} == {"a", "b"}


@pytest.mark.alters_tables
@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_the_data_of_a_message_whose_end_is_refused_is_told_nowhere(
    broker: DatabaseBackend, database: str, caplog: pytest.LogCaptureFixture, atomic: bool
) -> None:
    """The server quotes the row, data and all, in the DETAIL of its error."""
    send_delay_message("k", CARD, id="a")
    _refuse_rows_in(database, "delayq_finish")
    handler = make_handler(lambda message: None, max_attempts=2, atomic=atomic)
    work(broker, handler)
    waiting = ReadyMessage.objects.using(database).get()
    work(broker, handler)
    buried = ErrorMessage.objects.using(database).get()
    assert "refuses_all" in waiting.error
    assert "refuses_all" in buried.error
    assert "refuses_all" in caplog.text
    told = [waiting.error, waiting.history, buried.error, buried.detail, buried.history, caplog.text]
    assert [text for text in told if CARD in text] == []


@pytest.mark.alters_tables
@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_what_a_thread_logs_of_a_statement_that_is_refused_tells_no_data(
    broker: DatabaseBackend, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    send_delay_message("k", CARD, id="a", at_most_once=True)
    claim(broker)
    ReadyMessage.objects.using(database).update(lease_until=1, due_at=1)
    for table in ("delayq_error", "delayq_ready"):
        _refuse_rows_in(database, table)
    for move in (lambda: broker.queue.maintain(lease_ms=LEASE_MS), lambda: send_delay_message("k", CARD)):
        caplog.clear()
        guarded(move)
        assert "refuses_all" in caplog.text
        assert CARD not in caplog.text


def _refuse_rows_in(database: str, table: str) -> None:
    with connections[database].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT refuses_all CHECK (false) NOT VALID")


def test_a_text_that_mysql_can_not_keep_is_no_absence_of_the_database(broker: DatabaseBackend) -> None:
    with pytest.raises(OperationalError), broker.database.available():  # as mysqlclient raises it
        raise OperationalError(1366, "Incorrect string value")
