"""The migrations make the tables that the models describe, on each database, and take them away again."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import Alarm, Claimed, Header
from django_delayq.conf import get_alias
from django_delayq.core import transitions
from django_delayq.core.history import Ended, read
from django_delayq.core.message import State
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, backend
from django_delayq.store.database import Database
from django_delayq.support.timestamps import to_epoch_ms
from django_delayq.worker.options import Options, served_queues
from django_delayq.worker.worker import Worker
from tests import databases
from tests.servers import MariaDBServer
from tests.store.support import LEASE_MS, WANT, claim
from tests.worker.rig import make_handler

TABLES = {model._meta.db_table for model in apps.get_app_config("delayq").get_models()}


@pytest.mark.django_db
def test_the_models_say_nothing_that_the_migrations_do_not() -> None:
    call_command("makemigrations", "delayq", check_changes=True, verbosity=0)  # exits where it would write


@pytest.mark.alters_tables
def test_they_can_be_reversed_and_made_again(database: str) -> None:
    call_command("migrate", "delayq", "zero", database=database, verbosity=0)
    assert not TABLES & set(connections[database].introspection.table_names())
    call_command("migrate", "delayq", database=database, verbosity=0)
    assert backend.problems(Database("default", database)) == []
    call_command("migrate", "delayq", database=database, verbosity=0, check_unapplied=True)


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.alters_tables
def test_postgresql_leaves_room_where_rows_change_and_vacuums_early(database: str) -> None:
    options = "SELECT reloptions FROM pg_class WHERE relname = 'delayq_ready'"
    ((found,),) = Database("default", database).rows(options)
    assert {"fillfactor=45", "autovacuum_vacuum_scale_factor=0.01"} <= set(found)
    call_command("migrate", "delayq", "0001", database=database, verbosity=0)
    assert Database("default", database).rows(options) == [(None,)]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.alters_tables
def test_postgresql_fills_the_pages_of_the_indexes_that_grow_at_their_end(database: str) -> None:
    full = "SELECT relname FROM pg_class WHERE relkind = 'i' AND 'fillfactor=97' = ANY (reloptions) ORDER BY relname"
    growing = {"ready": ["id", "list", "pkey"], "finish": ["ended", "id", "pair", "pkey"]}
    indexes = sorted((f"delayq_{table}_{name}",) for table, names in growing.items() for name in names)
    assert Database("default", database).rows(full) == indexes
    call_command("migrate", "delayq", "0010", database=database, verbosity=0)
    assert Database("default", database).rows(full) == []


@pytest.mark.alters_tables
def test_what_waits_and_what_runs_goes_on_through_the_last_migration(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="runs")
    held = claim(broker)
    send_delay_message("k", 1, id="waits")
    call_command("migrate", "delayq", "0010", database=database, verbosity=0)
    call_command("migrate", "delayq", database=database, verbosity=0)
    held += claim(broker)
    assert [one.id for one in held] == ["runs", "waits"]
    assert broker.queue.apply([transitions.finish(one) for one in held]) == [True, True]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_claim_and_a_renewal_change_no_index(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    in_place = "SELECT pg_stat_get_xact_tuples_hot_updated('delayq_ready'::regclass)"
    with transaction.atomic(using=database):
        (claimed,) = claim(broker)
        assert broker.queue.renew([claimed], LEASE_MS) == [True]
        assert broker.database.rows(in_place) == [(2,)]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_claim_of_all_rows_of_a_page_changes_no_index(broker: DatabaseBackend, database: str) -> None:
    count = 500
    send_delay_messages(Send("k", "x" * 100) for _ in range(count))
    in_place = "SELECT pg_stat_get_xact_tuples_hot_updated('delayq_ready'::regclass)"
    with transaction.atomic(using=database):
        assert len(claim(broker)) == count
        assert broker.database.rows(in_place) == [(count,)]


def _rows_of_0006(database: str) -> Any:
    """The manager of the ready table as that version had it, to which the tables go back."""
    call_command("migrate", "delayq", "0006", database=database, verbosity=0)
    return old_model(database, "0006_store_identity").objects.using(database)


def old_model(database: str, migration: str) -> Any:
    """The model of the ready table after a migration."""
    state = MigrationLoader(connections[database]).project_state(("delayq", migration))
    return state.apps.get_model("delayq", "ReadyMessage")


def _old_row(rows: Any, id: str, due_in_ms: int, **fields: Any) -> int:
    """Make a row without the columns that came later, as workers of that version do."""
    now = datetime.now(UTC)
    due_at = now + timedelta(milliseconds=due_in_ms)
    times = {"due_at": due_at, "scheduled_at": due_at, "sent_at": now}
    texts = {"queue": "default", "key": "k", "data": "1", "error": "", "history": "[]", "worker": ""}
    counts = {"failures": 0, "crashes": 0, "at_most_once": False, "placed": False}
    return int(rows.create(**{"alias": "default", "message_id": id, **times, **texts, **counts, **fields}).pk)


HOUR_MS = 3_600_000


@pytest.mark.alters_tables
def test_what_hid_in_values_is_in_columns_after_an_upgrade(broker: DatabaseBackend, database: str) -> None:
    old = _rows_of_0006(database)
    started_at = datetime.now(UTC) - timedelta(seconds=20)
    held = {"started_at": started_at, "lease_until": started_at + timedelta(hours=1)}
    lapsed = {"started_at": started_at, "lease_until": started_at + timedelta(seconds=15)}
    _old_row(old, "waits", HOUR_MS, failures=1, error="E")
    _old_row(old, "runs", -1, token=7, worker="w", **held)
    _old_row(old, "interrupted", -1, token=8, worker="!w", **held)
    _old_row(old, "interrupted and lapsed", -1, token=9, worker="!w", **lapsed)
    _old_row(old, "moved", HOUR_MS, token=-10, worker="w", crashes=1, **lapsed)
    _old_row(old, "interrupted and moved", HOUR_MS, token=-11, worker="!w", **lapsed)
    call_command("migrate", "delayq", database=database, verbosity=0)

    rows = ReadyMessage.objects.using(database)
    waits, runs, interrupted = (rows.get(message_id=id) for id in ("waits", "runs", "interrupted"))
    assert (waits.token, waits.interrupted, waits.failures, waits.error) == (None, False, 1, "E")
    assert (runs.token, runs.interrupted, runs.worker) == (7, False, "w")
    assert (interrupted.token, interrupted.interrupted, interrupted.worker) == (8, True, "w")
    for id, crashes, outcome in ("moved", 2, Ended.LOST), ("interrupted and moved", 0, Ended.INTERRUPTED):
        row = rows.get(message_id=id)
        assert (row.token, row.lease_until, row.worker, row.started_at) == (None, None, "", None)
        assert (row.crashes, row.interrupted, row.due_at > datetime.now(UTC)) == (crashes, False, True)
        (attempt,) = read(row.history)
        assert (attempt.attempt, attempt.worker, attempt.outcome) == (1, "w", outcome)

    assert broker.queue.cancel(["moved", "runs", "waits"]) == [True, False, True]
    broker.queue.maintain(lease_ms=LEASE_MS)
    info = broker.queue.get("interrupted and lapsed")
    assert info is not None
    assert (info.state, info.crashes) == (State.READY, 0)
    ends = [transitions.finish(_held(row)) for row in (runs, interrupted)]
    assert broker.queue.apply(ends) == [True, True]


@pytest.mark.alters_tables
def test_an_upgrade_that_was_cut_off_while_it_converted_rows_goes_on(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="cut off")
    call_command("migrate", "delayq", "0007", database=database, verbosity=0)
    recorder = MigrationRecorder(connections[database])
    recorder.record_unapplied("delayq", "0007_interrupted")  # it is recorded last
    ReadyMessage.objects.using(database).update(token=7, worker="!w")
    call_command("migrate", "delayq", database=database, verbosity=0)
    row = ReadyMessage.objects.using(database).get()
    assert (row.interrupted, row.worker) == (True, "w")


def _held(row: ReadyMessage) -> Claimed:
    """Return what the claim of a row gave its worker."""
    header = Header(row.queue, row.key)
    return Claimed(row.message_id, row.token or 0, to_epoch_ms(row.due_at), header, b"1", pk=str(row.pk))


@pytest.mark.alters_tables
def test_workers_of_the_version_before_go_on_after_an_upgrade(broker: DatabaseBackend, database: str) -> None:
    old = _rows_of_0006(database)
    last = max(_old_row(old, f"{n}", -1) for n in range(3))
    old.filter(pk=last).delete()  # it has run
    call_command("migrate", "delayq", database=database, verbosity=0)
    assert _old_row(old, "sent", -1, placed=True) > last, "no primary key is used twice"
    old.filter(message_id="0").update(token=7, worker="!old", started_at=datetime.now(UTC), lease_until=1)
    while (held := broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="new")).messages == []:
        broker.queue.timer.schedule([Alarm("default", "k", str(pk)) for pk in old.values_list("pk", flat=True)])
    assert {one.id: one.crashes for one in held.messages} == {"0": 1, "1": 0, "sent": 0}
    assert broker.queue.apply([transitions.finish(one) for one in held.messages]) == [True] * 3


@pytest.mark.alters_tables
def test_an_upgrade_that_is_taken_back_leaves_what_the_version_before_reads(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker, "w")
    span = transitions.Span(claimed.claimed_ms)
    assert broker.queue.apply([transitions.interrupt(claimed, transitions.Policy(), span)]) == [True]
    row = _rows_of_0006(database).get()
    assert (row.token, row.worker) == (claimed.token, "!w")
    call_command("migrate", "delayq", database=database, verbosity=0)
    again = ReadyMessage.objects.using(database).get()
    assert (again.worker, again.interrupted) == ("w", True)


@pytest.fixture
def utf8mb3_database(mariadb_server: MariaDBServer, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The alias of a database on MariaDB whose new tables keep no emoji, with the tables of an earlier version."""
    with mariadb_server.client() as client, client.cursor() as cursor:
        cursor.execute("CREATE DATABASE utf8mb3 CHARACTER SET utf8mb3")
    with django_db_blocker.unblock(), databases.registered("utf8mb3", mariadb_server.settings("utf8mb3")) as alias:
        call_command("migrate", "delayq", "0004", database=alias, verbosity=0)
        yield alias
    mariadb_server.drop_database("utf8mb3")


@pytest.mark.parametrize("database", ["utf8mb3_database"], ids=["mariadb"], indirect=True)
def test_on_mariadb_every_text_may_have_any_character_whatever_the_database_says(
    broker: DatabaseBackend, database: str
) -> None:
    _old_row(old_model(database, "0004_limits").objects.using(database), "a", -1, data='"Grüße"')
    call_command("migrate", "delayq", database=database, verbosity=0)
    rows = ReadyMessage.objects.using(database)
    assert rows.get().data == '"Grüße"'
    rows.update(data="\U0001f389", error="\U0001f389", history="\U0001f389")
    row = rows.get()
    assert {row.data, row.error, row.history} == {"\U0001f389"}
    other_sets = (
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
        " AND table_name IN ('delayq_ready', 'delayq_finish', 'delayq_error') AND character_set_name <> 'utf8mb4'"
    )
    assert broker.database.rows(other_sets) == []


@pytest.mark.parametrize("database", ["mariadb_database"], ids=["mariadb"], indirect=True)
@pytest.mark.alters_tables
def test_on_mariadb_tables_that_keep_any_character_are_not_rebuilt(database: str) -> None:
    call_command("migrate", "delayq", "0004", database=database, verbosity=0)
    with CaptureQueriesContext(connections[database]) as captured:
        call_command("migrate", "delayq", "0005", database=database, verbosity=0)
    assert not [query["sql"] for query in captured if query["sql"].startswith("ALTER")]


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
@pytest.mark.alters_tables
def test_what_waits_in_a_queue_that_is_named_like_a_lane_is_run_by_a_worker_of_that_name_and_by_no_other(
    broker: DatabaseBackend, database: str
) -> None:
    call_command("migrate", "delayq", "0017", database=database, verbosity=0)
    send_delay_message("k", 1, id="before")
    ReadyMessage.objects.using(database).update(queue="x^5")
    call_command("migrate", "delayq", database=database, verbosity=0)
    assert set(broker.presence.lanes()) == set()
    got: list[str] = []
    handlers = {"k": make_handler(lambda message: got.append(message.id))}
    for queues in ("x", "x^5"):
        assert got == []
        Worker(get_alias(), broker, handlers, Options(queues=served_queues(queues), threads=1, drain=True)).run()
    assert got == ["before"]
