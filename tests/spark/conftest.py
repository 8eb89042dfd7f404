"""One local Spark for a test process, and the servers of the site that its processes are of."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pyspark.sql import SparkSession
from pytest_django import DjangoDbBlocker, Settings

from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, ReportRow, Tally
from django_delayq.spark.session import build_session
from tests import databases, servers
from tests.servers import PostgresServer, Server, Servers, SqliteFiles
from tests.spark.support import ALIASES, ALONE, CALENDARS, CARRIED, EMBEDDED, PASSWORD, SETTINGS, STORED

QUICK_START = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.stream.error.file=/dev/null",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}
# Of a few rows: to compile Java for a query takes longer than the query. The month of departures has it as users do.
OF_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have these tests come first, in whatever order: of processes that share the suite one has them all, and so one
    Java starts, which takes seconds and is slow at first.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: here not in item.path.parents)


@pytest.fixture(scope="session")
def spark_redis(session_servers: Servers) -> Server:
    """The Redis of these tests: Spark's processes live on from test to test, and so must their servers."""
    binary = next(iter(servers.redis_binaries()), "") or servers.missing("redis-server")
    return session_servers.start(binary)


@pytest.fixture(scope="session")
def spark_site(
    spark_redis: Server,
    postgres_server: PostgresServer,
    sqlite_files: SqliteFiles,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[dict[str, dict[str, Any]]]:
    """DELAYQ of the site, whose databases are migrated."""
    redis = {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": spark_redis.url}
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        on_postgres = stack.enter_context(databases.database_on(postgres_server))
        on_sqlite = stack.enter_context(databases.database_on(sqlite_files))
        yield {
            "default": {
                "BROKER": "django_delayq.brokers.memory.MemoryBroker",
                "STORE": None,
                "CALENDARS": CALENDARS,
            },
            CARRIED: {**redis, "STORE": None, "OPTIONS": {"prefix": "carried", "shards": 2}},
            ALONE: {"BROKER": "django_delayq.brokers.database.DatabaseBroker", "DATABASE": on_postgres},
            STORED: {**redis, "DATABASE": on_postgres, "OPTIONS": {"prefix": "stored"}},
            EMBEDDED: {**redis, "DATABASE": on_sqlite, "OPTIONS": {"prefix": "embedded"}},
        }


@pytest.fixture(scope="session")
def spark_env(spark_site: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what a process of the site needs in its environment."""
    directory = tmp_path_factory.mktemp("spark")
    used = {alias["DATABASE"] for alias in spark_site.values() if "DATABASE" in alias}
    of_used = {name: {**connections.settings[name], "PASSWORD": PASSWORD} for name in used}
    started = {"DELAYQ": spark_site, "DATABASES": of_used}
    (directory / "site.json").write_text(json.dumps(started, default=str))
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DELAYQ_TEST_SPARK": str(directory / "site.json"),
        "SPARK_LOCAL_DIRS": str(directory),
    }


@pytest.fixture(scope="session")
def spark(spark_env: dict[str, str]) -> Iterator[SparkSession]:
    """The session. A Java process takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)  # the Java that a user gets
        for name, value in spark_env.items():
            patch.setenv(name, value)
        session = build_session("tests", master="local[2,2]", config={**QUICK_START, **OF_FEW_ROWS})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def site(request: pytest.FixtureRequest, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The site of Spark's processes, in this process too and without messages; where a test uses Spark."""
    if "spark" not in request.fixturenames:
        yield
        return
    delayq = request.getfixturevalue("spark_site")
    # The handlers are in Spark's processes alone.
    settings.DELAYQ = {
        name: {**alias, "OPTIONS": {**alias.get("OPTIONS", {}), "unknown_keys": "allow"}}
        for name, alias in delayq.items()
    }
    redis: Server = request.getfixturevalue("spark_redis")
    with redis.client() as client, django_db_blocker.unblock():
        client.flushall()
        for alias in settings.DELAYQ.values():
            for model in (ReadyMessage, FinishMessage, ErrorMessage, Tally, ReportRow):
                if "DATABASE" in alias:
                    model._default_manager.using(alias["DATABASE"]).delete()
        yield


@pytest.fixture(params=ALIASES)
def using(request: pytest.FixtureRequest) -> str:
    """Each kind of alias in turn."""
    alias: str = request.param
    return alias
