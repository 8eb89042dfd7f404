"""Real servers for the tests: private ones, started on demand and ended with the tests."""

from tests.servers.cluster import ClusterServers
from tests.servers.mariadb import MariaDBServer, mariadb_program
from tests.servers.pgbouncer import PgBouncer, pgbouncer_program
from tests.servers.postgres import PostgresServer, postgres_programs
from tests.servers.process import free_port, missing
from tests.servers.rabbitmq import RabbitMQServer, rabbitmq_programs, rabbitmq_version, start_rabbitmq_node
from tests.servers.redis import Server, Servers, redis_binaries, scope
from tests.servers.sqlite import SqliteFiles

__all__ = [
    "ClusterServers",
    "MariaDBServer",
    "PgBouncer",
    "PostgresServer",
    "RabbitMQServer",
    "Server",
    "Servers",
    "SqliteFiles",
    "free_port",
    "mariadb_program",
    "missing",
    "pgbouncer_program",
    "postgres_programs",
    "rabbitmq_programs",
    "rabbitmq_version",
    "redis_binaries",
    "scope",
    "start_rabbitmq_node",
]
