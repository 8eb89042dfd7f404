"""The migrations make the tables that the models describe, on each database, and take them away again."""

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_delayq import send_delay_message
from django_delayq.models import ReadyMessage
from django_delayq.store import StoredBroker, report
from django_delayq.store.database import Database
from tests import databases
from tests.servers import MariaDBServer
from tests.store.support import LEASE_MS, claim

TABLES = {model._meta.db_table for model in apps.get_app_config("delayq").get_models()}


@pytest.mark.django_db
def test_the_models_say_nothing_that_the_migrations_do_not() -> None:
    call_command("makemigrations", "delayq", check_changes=True, verbosity=0)  # exits where it would write


@pytest.mark.alters_tables
def test_they_can_be_reversed_and_made_again(database: str) -> None:
    call_command("migrate", "delayq", "zero", database=database, verbosity=0)
    assert not TABLES & set(connections[database].introspection.table_names())
    call_command("migrate", "delayq", database=database, verbosity=0)
    assert report.problems(Database("default", database)) == []
    call_command("migrate", "delayq", database=database, verbosity=0, check_unapplied=True)


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.alters_tables
def test_postgresql_leaves_room_where_rows_change_and_vacuums_early(database: str) -> None:
    options = "SELECT reloptions FROM pg_class WHERE relname = 'delayq_ready'"
    ((found,),) = Database("default", database).rows(options)
    assert {"fillfactor=70", "autovacuum_vacuum_scale_factor=0.01"} <= set(found)
    call_command("migrate", "delayq", "0001", database=database, verbosity=0)
    assert Database("default", database).rows(options) == [(None,)]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_claim_and_a_renewal_change_no_index(broker: StoredBroker, database: str) -> None:
    send_delay_message("k", 1)
    ReadyMessage.objects.using(database).update(placed=True)
    in_place = "SELECT pg_stat_get_xact_tuples_hot_updated('delayq_ready'::regclass)"
    with transaction.atomic(using=database):
        (claimed,) = claim(broker)
        assert broker.renew([(claimed.id, claimed.token)], LEASE_MS) == [True]
        assert broker.database.rows(in_place) == [(2,)]


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
    broker: StoredBroker, database: str
) -> None:
    send_delay_message("k", "Grüße", id="a")
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
        call_command("migrate", "delayq", database=database, verbosity=0)
    assert not [query["sql"] for query in captured if query["sql"].startswith("ALTER")]
