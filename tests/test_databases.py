"""The databases that tests get are migrated, their own, and real for threads and processes."""

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from pytest_django import DjangoDbBlocker

from tests.databases import database_on, reused_database_on
from tests.servers import PostgresServer

ADD_A_GROUP = """
import django
django.setup()
from django.contrib.auth.models import Group
Group.objects.create(name="of a process")
"""


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_migrated_database_of_its_own(database: str, turn: int) -> None:
    assert not Group.objects.using(database).exists()
    Group.objects.using(database).create(name="left behind")


def test_what_a_thread_commits_is_there_for_others(database: str) -> None:
    thread = threading.Thread(target=lambda: Group.objects.using(database).create(name="of a thread"))
    thread.start()
    thread.join()
    assert Group.objects.using(database).filter(name="of a thread").exists()


def test_a_process_has_the_database_as_its_default(database: str, database_env: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", ADD_A_GROUP], env=os.environ | database_env, check=True)
    assert Group.objects.using(database).filter(name="of a process").exists()


@pytest.mark.parametrize("server", ["sqlite_files", "postgres_server", "mariadb_server"])
def test_the_connection_of_a_thread_that_lives_on_ends_with_the_database(
    server: str, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> None:
    opened: queue.SimpleQueue[BaseDatabaseWrapper] = queue.SimpleQueue()
    dropped = threading.Event()

    def hold(alias: str) -> None:
        with suppress(DatabaseError), transaction.atomic(alias):
            Group.objects.using(alias).create(name="never committed")
            opened.put(connections[alias])
            dropped.wait()

    with django_db_blocker.unblock(), database_on(request.getfixturevalue(server)) as alias:
        thread = threading.Thread(target=hold, args=[alias], daemon=True)
        thread.start()
        held = opened.get(timeout=30)
    closed, known = held.closed_in_transaction, alias in connections
    dropped.set()
    thread.join()
    assert (closed, known) == (True, False)


@pytest.mark.parametrize("server", ["sqlite_files", "postgres_server", "mariadb_server"])
def test_a_thread_that_lives_on_can_not_write_to_the_database_of_the_next_test(
    server: str, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> None:
    def write(alias: str) -> None:
        Group.objects.using(alias).create(name=f"of {alias}")

    with django_db_blocker.unblock(), ThreadPoolExecutor(1) as thread:
        with reused_database_on(request.getfixturevalue(server)) as ended:
            thread.submit(write, ended).result()
        with reused_database_on(request.getfixturevalue(server)) as alias:
            with pytest.raises(DatabaseError):
                thread.submit(write, ended).result()
            assert not Group.objects.using(alias).exists()


def test_what_a_process_left_open_is_not_there_for_the_next_test(
    postgres_server: PostgresServer, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), reused_database_on(postgres_server) as alias:
        client = postgres_server.client(connections.settings[alias]["NAME"])
        client.execute("BEGIN")
        client.execute("INSERT INTO auth_group (name) VALUES ('left open')")
    with django_db_blocker.unblock(), reused_database_on(postgres_server) as alias:
        with pytest.raises(psycopg.OperationalError):
            client.execute("COMMIT")
        assert not Group.objects.using(alias).exists()


@pytest.mark.alters_tables
@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_that_alters_tables_has_a_new_database(postgres_database: str, turn: int) -> None:
    with connections[postgres_database].cursor() as cursor:
        cursor.execute("CREATE TABLE altered (number integer)")
