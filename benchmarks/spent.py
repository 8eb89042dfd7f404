"""Read what servers and workers have spent so far."""

import time

import psycopg
import redis


def round_trips(client: redis.Redis) -> int:
    """Return how many requests of all clients the server has read so far.

    A request of up to 16 KiB is read once, however many commands it holds.
    """
    return int(client.info("stats")["total_reads_processed"])


def commands(client: redis.Redis) -> int:
    """Return how many commands the server has run, including those of scripts."""
    return sum(stats["calls"] for stats in client.info("commandstats").values())


def memory_bytes(client: redis.Redis) -> int:
    """Return the memory that a server uses, without the buffers of connections, which hold recent data for a while."""
    info = client.info("memory")
    return int(info["used_memory"]) - int(info["mem_clients_normal"])


STATEMENTS = """
    SELECT coalesce(sum(calls), 0), coalesce(sum(rows) FILTER (WHERE query LIKE '%%SKIP LOCKED%%'), 0)
    FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query NOT LIKE '%%pg_stat_%%'"""


def statements(client: psycopg.Connection) -> tuple[int, int]:
    """Return how many statements a database has run, and how many rows the statements with SKIP LOCKED have locked.

    The extension pg_stat_statements must be installed in the database.
    """
    ((calls, locked),) = client.execute(STATEMENTS).fetchall()
    return int(calls), int(locked)


def cpu_s(pid: int) -> float:
    """Return the processor time in seconds that all threads of a process have used.

    The number of its clock is computed like in clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | 2)
