"""The database servers that tests start behave as the fault tests need."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psutil
import psycopg
import pymysql
import pytest

from tests.servers import MariaDBServer, PostgresServer

Server = PostgresServer | MariaDBServer
Start = Callable[..., Server]


@pytest.fixture(
    params=[
        pytest.param("start_postgres", id="postgresql"),
        pytest.param("start_mariadb", id="mariadb"),
    ]
)
def start_server(request: pytest.FixtureRequest) -> Start:
    """Starts servers of the test's own, of each kind in turn."""
    start: Start = request.getfixturevalue(request.param)
    return start


def ask(server: Server, statement: str, *database: str) -> Any:
    """The first value that a statement returns, if any, over a connection of its own."""
    with closing(server.client(*database)) as client, client.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def ends(process: psutil.Process) -> bool:
    """Return whether it does within half a minute. One that init has yet to reap has ended."""
    for _ in range(3000):
        try:
            if process.status() in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_committed_survives(start_server: Start, end: str) -> None:
    server = start_server()
    server.create_database("kept")
    ask(server, "CREATE TABLE numbers (number integer)", "kept")
    ask(server, "INSERT INTO numbers VALUES (7)", "kept")
    getattr(server, end)()
    server.start()
    assert ask(server, "SELECT number FROM numbers", "kept") == 7


def test_a_stop_waits_for_no_client(start_server: Start) -> None:
    server = start_server()
    with closing(server.client()):
        server.stop()
    assert not server.running


def test_a_killed_server_leaves_no_process(start_server: Start) -> None:
    server = start_server()
    with closing(server.client()):
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
        server.kill()
    assert all(map(ends, processes))


def test_a_frozen_server_answers_nothing_until_thawed(start_server: Start) -> None:
    server = start_server()
    with closing(server.client()) as client, client.cursor() as cursor:
        asking = threading.Thread(target=cursor.execute, args=["SELECT 1"], daemon=True)
        server.freeze()
        asking.start()
        asking.join(0.1)
        assert asking.is_alive()
        server.thaw()
        asking.join()


def test_a_cut_closes_the_connections_and_lets_new_ones_in(start_server: Start) -> None:
    server = start_server()
    with closing(server.client()) as client, client.cursor() as cursor:
        server.cut()
        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
            cursor.execute("SELECT 1")
    assert ask(server, "SELECT 1") == 1


def test_a_closed_server_leaves_no_directory(start_server: Start) -> None:
    server = start_server()
    server.close()
    assert not server.running
    assert not server.directory.exists()


def test_two_servers_know_nothing_of_each_other(start_server: Start) -> None:
    one, other = start_server(), start_server()
    for server in (one, other):
        server.create_database("same_name")
    one.close()
    assert ask(other, "SELECT 1", "same_name") == 1


def test_an_option_is_that_of_postgresql(start_postgres: Start) -> None:
    assert ask(start_postgres(fsync="on"), "SHOW fsync") == "on"


def test_an_option_is_that_of_mariadb(start_mariadb: Start) -> None:
    server = start_mariadb(innodb_flush_log_at_trx_commit=1)
    assert ask(server, "SELECT @@innodb_flush_log_at_trx_commit") == 1
