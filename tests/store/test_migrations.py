"""The migrations make the tables that the models describe, on each database, and take them away again."""

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from django_delayq.store import report
from django_delayq.store.database import Database

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
