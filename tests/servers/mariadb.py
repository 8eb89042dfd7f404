"""Private MariaDB servers, on a unix socket."""

import os
import shutil
import socket
import subprocess
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import Any

import pymysql

from tests.servers.process import PrivateServer, unprivileged, version_of

OLDEST = (10, 6)
USER = "root"
NO_TLS = True
"""Else PyMySQL reads the machine's certificates for each connection, also over a socket: 40 ms of a core."""


@cache
def mariadb_program() -> str | None:
    """The server's program, where its tools are on PATH too."""
    # Debian keeps servers where only root's PATH looks.
    server = shutil.which("mariadbd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin")
    tools = all(shutil.which(tool) for tool in ("mariadb-install-db", "mariadb-dump", "mariadb"))
    return server if server and tools and version_of(server, **unprivileged()) >= OLDEST else None


class MariaDBServer(PrivateServer):
    """One MariaDB. Options are those of mariadbd: `MariaDBServer(program, innodb_flush_log_at_trx_commit=1)`.

    It listens on a unix socket only, and trusts everyone who may enter its directory.
    """

    READY = "ready for connections"

    def __init__(self, program: str, **options: str | int) -> None:
        super().__init__(**unprivileged())
        self.program = program
        self.socket = self.directory / "mariadb.sock"
        self.options: dict[str, str | int] = {
            "max_connections": 200,
            "character_set_server": "utf8mb4",
            "innodb_flush_log_at_trx_commit": 2,  # what was committed survives kill() all the same, ...
            "debug_no_sync": 1,  # ... though no loss of power
            **options,
        }
        # A directory for temporary tables that is shared, such as /tmp, is swept by each server that starts.
        self.directories = ["--no-defaults", f"--datadir={self.directory / 'data'}", f"--tmpdir={self.directory}"]
        arguments = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self.prepare(["mariadb-install-db", *self.directories, *arguments])
        self.start()

    def command(self) -> list[str]:
        """The program and its arguments."""
        arguments = [f"--{name}={value}" for name, value in self.options.items()]
        return [self.program, *self.directories, f"--socket={self.socket}", "--skip-networking", *arguments]

    def settings(self, name: str) -> dict[str, Any]:
        """Return what DATABASES says of this database."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": name,
            "USER": USER,
            "HOST": str(self.socket),
            "OPTIONS": {"charset": "utf8mb4", "ssl_disabled": NO_TLS},
        }

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.socket))
        return connection

    def client(self, name: str = "mysql") -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """A plain connection that commits each statement, for looking behind Django's back."""
        return pymysql.connect(
            unix_socket=str(self.socket), user=USER, database=name, autocommit=True, ssl_disabled=NO_TLS
        )

    def create_database(self, name: str) -> None:
        """A new, empty one."""
        self._execute(f"CREATE DATABASE `{name}`")

    def copy_database(self, name: str, template: str) -> None:
        """A new one with all that is in `template`."""
        self.create_database(name)
        client = ["--no-defaults", f"--socket={self.socket}", f"--user={USER}"]
        dump = subprocess.check_output(["mariadb-dump", *client, "--routines", template])
        subprocess.run(["mariadb", *client, name], input=dump, check=True)

    def empty_database(self, name: str, tables: Collection[str]) -> None:
        """Delete the rows of these tables. Who was connected is no more."""
        self._kill_clients(name)
        with self.client(name) as client, client.cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")  # in whatever order: what refers to a row goes too
            client.begin()  # to write to the disk once: every test waits for it
            for table in tables:
                cursor.execute(f"DELETE FROM `{table}`")  # noqa: S608  a name of our own
            client.commit()

    def drop_database(self, name: str) -> None:
        """Drop it, whoever is connected."""
        self._kill_clients(name)
        self._execute(f"DROP DATABASE `{name}`")

    def cut(self) -> None:
        """Close every connection of clients (KILL)."""
        self._kill_clients(None)

    def _kill_clients(self, name: str | None) -> None:
        others = "SELECT id FROM information_schema.processlist WHERE user = %s AND id <> CONNECTION_ID()"
        with self.client() as client, client.cursor() as cursor:
            cursor.execute(f"{others} AND (%s IS NULL OR db = %s)", [USER, name, name])
            for row in cursor.fetchall():
                with suppress(pymysql.OperationalError):  # it has left by itself
                    cursor.execute("KILL %s", row)

    def _execute(self, statement: str) -> None:
        with self.client() as client, client.cursor() as cursor:
            cursor.execute(statement)
