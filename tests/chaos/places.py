"""Where a round runs: real servers on private ports, and what a process needs in its environment to use them."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import redis

from tests.chaos import ledger
from tests.servers import (
    ClusterServers,
    MariaDBServer,
    PostgresServer,
    Server,
    SqliteFiles,
    mariadb_program,
    postgres_programs,
    redis_binaries,
)
from tests.servers.sentinel import NAME, PASSWORD, Failover
from tests.worker.processes import WorkerProcess

LEASE_S = 5
DEGRADED_AFTER_S = 2
SHARDS = 4
"""Of a cluster."""
DATABASE = "chaos"
MANY = "many"
"""Stands for the many handlers among the keys: a message for one of them is drawn."""
TABLES = (
    "CREATE TABLE chaos_effect (message_id varchar(200), token bigint)",
    "CREATE TABLE chaos_account (id int PRIMARY KEY, balance int)",
    "INSERT INTO chaos_account VALUES (1, 0), (2, 0)",
)
Database = PostgresServer | MariaDBServer | SqliteFiles


@dataclass
class Place:
    """The servers of a round, and its processes."""

    name: str
    location: str
    nodes: Sequence[Server]
    """The primaries of Redis; none where the database is alone."""
    database: Database
    directory: Path
    is_stored: bool = True
    keeps: bool = False
    """Whether Redis has its data after it was killed."""
    failover: Failover | None = None
    cluster: ClusterServers | None = None
    moved: dict[int, Server] = field(default_factory=dict)
    """Where slots of the cluster are that were moved."""
    user: str = ""
    """Whom its processes are in the database; "" is the owner of the tables."""
    many: int = 0
    """How many handlers there are beside those of `keys`. A few messages are for each."""
    queues: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the connections to the database."""
    keys: Sequence[str] = ("plain", "async", "write", "exact", "once", "single", "flaky", "doomed", "slow")
    """The handlers to send to."""

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger"

    @property
    def story(self) -> str:
        """Return what is special about it."""
        told = f"{self.name}, {self.many} more handlers, {self.queues} queue(s)"
        if self.options:
            told += f", {self.options}"
        if not self.nodes:
            return told
        return f"{told}, Redis {'keeps' if self.keeps else 'loses'} its data"

    @property
    def env(self) -> dict[str, str]:
        """Return what every process of the round has in its environment."""
        alias: dict[str, Any] = {
            "BROKER": "django_delayq.brokers.redis.RedisBroker",
            "LOCATION": self.location,
            "STORE": {"DEGRADED_AFTER": f"{DEGRADED_AFTER_S}s"} if self.is_stored else None,
            "OPTIONS": {"lease": f"{LEASE_S}s", "shards": SHARDS if self.cluster else 1},
        }
        if not self.nodes:
            del alias["LOCATION"]
            alias |= {"BROKER": "django_delayq.brokers.database.DatabaseBroker", "STORE": {}}
        settings = self.database.settings(DATABASE)
        settings["OPTIONS"] = {**settings.get("OPTIONS", {}), **self.options}
        if self.user:
            settings["USER"] = self.user
        return {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "DELAYQ_TEST": json.dumps(alias),
            "DELAYQ_TEST_DATABASES": json.dumps({"default": settings}),
            ledger.VARIABLE: str(self.ledger),
            "CHAOS_MANY": str(self.many),
            "CHAOS_QUEUES": str(self.queues),
        }

    def django(self, *arguments: str) -> str:
        """Run a command of manage.py, and give what it wrote; also where it says that something is wrong."""
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=os.environ | self.env, text=True, capture_output=True, timeout=120,
        )  # fmt: skip
        if done.returncode and not done.stdout:
            raise RuntimeError(f"{arguments} failed:\n{done.stderr}")
        return done.stdout

    def run(self, module: str) -> None:
        """Run a module to its end; if it fails, its log tells."""
        with (self.directory / "others.log").open("ab") as log:
            command = [sys.executable, "-m", module]
            subprocess.run(command, env=os.environ | self.env, stdout=log, stderr=log, timeout=60)

    def worker(self, *arguments: str) -> WorkerProcess:
        """Start a worker."""
        queues = ",".join(f"q{number}" for number in range(self.queues))
        return WorkerProcess(self.env, "--queues", queues, *arguments)

    def sender(self, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a sender."""
        with (self.directory / "senders.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.chaos.sender", *map(str, arguments)]
            return subprocess.Popen(command, env=os.environ | self.env, stdout=log, stderr=log, start_new_session=True)

    def migrate(self) -> None:
        """Make the database."""
        self.database.create_database(DATABASE)
        self.django("migrate", "--run-syncdb", "--verbosity=0", "--skip-checks")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement in the database, behind Django's back."""
        if isinstance(self.database, SqliteFiles):
            with closing(sqlite3.connect(self.database.settings(DATABASE)["NAME"], timeout=30)) as client, client:
                return client.execute(sql).fetchall()
        if isinstance(self.database, PostgresServer):
            with self.database.client(DATABASE) as session:
                found = session.execute(sql)
                return found.fetchall() if found.description else []
        with self.database.client(DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def waiting(self) -> list[str]:
        """Return the ids of what waits or runs; of one that has no store, a "?" for each."""
        if self.is_stored:
            return [id for (id,) in self.rows("SELECT message_id FROM delayq_ready")]
        places = json.loads(self.django("delayq", "audit", "--json"))["places"]
        return ["?"] * sum(places[name] for name in ("pending", "ready", "running"))


@contextmanager
def _postgresql(draw: Random, directory: Path) -> Iterator[Place]:
    with closing(PostgresServer(_needed(postgres_programs()))) as database, _redis(draw) as (server, keeps):
        yield Place("PostgreSQL", server.url, [server], database, directory, keeps=keeps)


@contextmanager
def _mariadb(draw: Random, directory: Path) -> Iterator[Place]:
    charset = draw.choice(["utf8mb4", "utf8mb3"])
    with (
        closing(MariaDBServer(_needed(mariadb_program()), character_set_server=charset)) as database,
        _redis(draw) as (server, keeps),
    ):
        options = draw.choice([{}, {"isolation_level": "repeatable read"}])
        yield Place(f"MariaDB ({charset})", server.url, [server], database, directory, keeps=keeps, options=options)


@contextmanager
def _sqlite(draw: Random, directory: Path) -> Iterator[Place]:
    with _redis(draw) as (server, keeps):
        yield Place("SQLite", server.url, [server], SqliteFiles(directory), directory, keeps=keeps)


@contextmanager
def _without_a_store(draw: Random, directory: Path) -> Iterator[Place]:
    with closing(Server(_needed_redis(), **KEEPS)) as server:
        database = SqliteFiles(directory)
        yield Place("without a store", server.url, [server], database, directory, is_stored=False, keeps=True)


@contextmanager
def _cluster(draw: Random, directory: Path) -> Iterator[Place]:
    with (
        closing(PostgresServer(_needed(postgres_programs()))) as database,
        closing(ClusterServers(_needed_redis())) as cluster,
    ):
        yield Place("Cluster", cluster.location, cluster.primaries, database, directory, cluster=cluster)


@contextmanager
def _cluster_without_a_store(draw: Random, directory: Path) -> Iterator[Place]:
    with closing(ClusterServers(_needed_redis(), **KEEPS)) as cluster:
        database = SqliteFiles(directory)
        yield Place(
            "Cluster without a store", cluster.location, cluster.primaries, database, directory,
            is_stored=False, keeps=True, cluster=cluster,
        )  # fmt: skip


@contextmanager
def _sentinel(draw: Random, directory: Path) -> Iterator[Place]:
    with (
        closing(PostgresServer(_needed(postgres_programs()))) as database,
        closing(Failover(_needed_redis())) as failover,
    ):
        nodes = [failover.primary]
        with redis.Redis(port=failover.sentinel.port, password=PASSWORD) as sentinel:  # no failover by a busy machine
            sentinel.execute_command("SENTINEL", "SET", NAME, "down-after-milliseconds", 5000)
        yield Place("Sentinel", failover.location(), nodes, database, directory, failover=failover)


@contextmanager
def _postgresql_alone(draw: Random, directory: Path) -> Iterator[Place]:
    with closing(PostgresServer(_needed(postgres_programs()))) as database:
        yield Place("PostgreSQL alone", "", [], database, directory)


@contextmanager
def _mariadb_alone(draw: Random, directory: Path) -> Iterator[Place]:
    with closing(MariaDBServer(_needed(mariadb_program()))) as database:
        options = draw.choice([{}, {"isolation_level": "repeatable read"}])
        yield Place("MariaDB alone", "", [], database, directory, options=options)


@contextmanager
def _sqlite_alone(draw: Random, directory: Path) -> Iterator[Place]:
    yield Place("SQLite alone", "", [], SqliteFiles(directory), directory)


KEEPS: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always"}
PLACES: dict[str, Callable[[Random, Path], Any]] = {
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "sqlite": _sqlite,
    "storeless": _without_a_store,
    "cluster": _cluster,
    "storeless-cluster": _cluster_without_a_store,
    "sentinel": _sentinel,
    "postgresql-alone": _postgresql_alone,
    "mariadb-alone": _mariadb_alone,
    "sqlite-alone": _sqlite_alone,
}


@contextmanager
def place(name: str, draw: Random, directory: Path, shape: tuple[int, int] | None = None) -> Iterator[Place]:
    """Start the servers of a place, and make its tables. `shape` is how many more handlers, and how many queues."""
    with PLACES[name](draw, directory) as found:
        found.many, found.queues = shape or draw.choice([(0, 1), (110, 1), (30, 30)])
        if not isinstance(found.database, SqliteFiles):  # a transaction holds the one write lock there
            found.keys = [*found.keys, "leak", "long exact", "deadlock"]
        if found.many:
            found.keys = [*found.keys, MANY]
        found.migrate()
        for statement in TABLES:
            found.rows(statement)
        if not isinstance(found.database, SqliteFiles):
            _admit(found, "site")
        yield found


def _admit(place: Place, user: str) -> None:
    """Let the processes of a place be a user who owns nothing, and whom permissions and `read_only` bind."""
    is_postgres = isinstance(place.database, PostgresServer)
    place.rows(f"CREATE ROLE {user} LOGIN" if is_postgres else f"CREATE USER {user}")
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', 'chaos')"
    for (table,) in place.rows(tables):
        place.rows(f"GRANT ALL ON {table} TO {user}")
    if is_postgres:
        place.rows(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {user}")
    place.user = user


@contextmanager
def _redis(draw: Random) -> Iterator[tuple[Server, bool]]:
    keeps = draw.random() < 0.5
    with closing(Server(_needed_redis(), **(KEEPS if keeps else {}))) as server:
        yield server, keeps


def _needed_redis() -> str:
    return str(_needed(next(iter(redis_binaries()), None)))


def _needed(program: Any) -> Any:
    return program or sys.exit("A server is missing: PostgreSQL, MariaDB or redis-server. PLACES names others.")
