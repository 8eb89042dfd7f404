"""The migrations make the tables that the models describe, on each database, and take them away again."""

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction

from django_delayq import send_delay_message
from django_delayq.models import ReadyMessage
from django_delayq.store import StoredBroker, report
from django_delayq.store.database import Database
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
