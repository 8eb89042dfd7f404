"""The faults. Each is a function that does its harm for so many seconds, and heals it before it returns."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import psutil
import psycopg
import pymysql

from tests.chaos import ledger
from tests.chaos.places import DATABASE, DEGRADED_AFTER_S, LEASE_S, SHARDS, Place
from tests.servers import MariaDBServer, PostgresServer, SqliteFiles
from tests.servers.cluster import until
from tests.worker.processes import WorkerProcess


class World(Protocol):
    """What faults hit."""

    place: Place
    workers: list[WorkerProcess]

    def join(self) -> None:
        """Start a worker."""
        ...

    def renew_sender(self) -> None:
        """Kill a sender, and start another."""
        ...


Harm = Callable[[World, Random, float], None]
REFUSALS = ("GRANT INSERT ON delayq_finish", "This Redis is a replica")
"""A worker says so, and does not start: whoever supervises it tries again."""


@contextmanager
def _between(harm: Callable[[], None], heal: Callable[[], None]) -> Iterator[None]:
    """Do harm before the block, and heal it after."""
    harm()
    yield
    heal()


# Workers and senders


def kill_a_worker(world: World, draw: Random, seconds: float) -> None:
    worker = _leave(world, draw)
    _note_signal(worker, "killed")
    worker.kill()
    world.join()


def freeze_a_worker(world: World, draw: Random, seconds: float) -> None:
    worker = draw.choice(world.workers)
    begin = time.monotonic()
    worker.signal_all(signal.SIGSTOP)
    time.sleep(seconds)
    _note_signal(worker, "frozen", begin)
    worker.signal_all(signal.SIGCONT)


def kill_a_child(world: World, draw: Random, seconds: float) -> None:
    for worker in [worker for worker in world.workers if not worker.has_ended]:
        for child in psutil.Process(worker.pid).children():
            ledger.write("span", name="killed child", begin=time.monotonic(), end=time.monotonic(), pids=[child.pid])
            with suppress(psutil.NoSuchProcess):
                child.kill()
            return


def stop_a_worker(world: World, draw: Random, seconds: float) -> None:
    worker = _leave(world, draw)
    _note_signal(worker, "stopped")
    world.join()
    if (code := worker.stop()) and not was_refused(worker):
        ledger.write("finding", text=f"A worker that was stopped exited with {code}")


def join_a_worker(world: World, draw: Random, seconds: float) -> None:
    if len(world.workers) < 4:
        world.join()


def kill_a_sender(world: World, draw: Random, seconds: float) -> None:
    world.renew_sender()


def _leave(world: World, draw: Random) -> WorkerProcess:
    return world.workers.pop(draw.randrange(len(world.workers)))


def was_refused(worker: WorkerProcess) -> bool:
    """Return whether it did not start for a reason that it told."""
    return worker.has_ended and any(text in worker.text for text in REFUSALS)


def _start_again(world: World) -> None:
    for worker in [worker for worker in world.workers if was_refused(worker)]:
        world.workers.remove(worker)
        world.join()


def _note_signal(worker: WorkerProcess, name: str, begin: float | None = None) -> None:
    now = time.monotonic()
    ledger.write("span", name=name, begin=begin or now, end=now, pids=[worker.pid])


# Redis


def restart_redis(world: World, draw: Random, seconds: float) -> None:
    node = draw.choice(world.place.nodes)
    with _note_loss(world), _between(node.stop, node.start):
        time.sleep(seconds)


def kill_redis(world: World, draw: Random, seconds: float) -> None:
    node = draw.choice(world.place.nodes)
    with _note_loss(world), _between(node.kill, node.start):
        time.sleep(seconds)


def freeze_redis(world: World, draw: Random, seconds: float) -> None:
    node = draw.choice(world.place.nodes)
    with _between(node.freeze, node.thaw):
        time.sleep(seconds)


def flush_redis(world: World, draw: Random, seconds: float) -> None:
    with _note_loss(world, always=True), draw.choice(world.place.nodes).client() as client:
        client.flushall()


def fill_redis(world: World, draw: Random, seconds: float) -> None:
    with draw.choice(world.place.nodes).memory_full():
        time.sleep(seconds)


def evict_from_redis(world: World, draw: Random, seconds: float) -> None:
    """Fill a Redis that may evict what expires: "harmless", says the how-to."""
    node = draw.choice(world.place.nodes)
    with node.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        with node.memory_full():
            time.sleep(seconds)
        client.config_set("maxmemory-policy", "noeviction")


def let_redis_read_only(world: World, draw: Random, seconds: float) -> None:
    with draw.choice(world.place.nodes).read_only():
        time.sleep(seconds)
    _start_again(world)


def cut_redis(world: World, draw: Random, seconds: float) -> None:
    for _ in range(5):
        for node in world.place.nodes:
            node.cut()
        time.sleep(draw.random() / 2)


def forget_scripts(world: World, draw: Random, seconds: float) -> None:
    for node in world.place.nodes:
        node.forget_scripts()


def lose_alarms(world: World, draw: Random, seconds: float) -> None:
    """Delete alarms, but nothing by which a worker could tell."""
    for node in world.place.nodes:
        with node.client() as client:
            for key in client.scan_iter("*:wait:*"):
                client.delete(key)


def let_a_stranger_in(world: World, draw: Random, seconds: float) -> None:
    """Let another site send under the same prefix. Its worker must be refused, for this Redis is taken."""
    until(lambda: _is_taken(world.place))
    stranger = _stranger(world.place)
    sender = stranger.sender("stranger", draw.random(), seconds, 10, "plain", 5)
    with closing(stranger.worker()) as worker:
        if worker.wait() != 1 or "Another site uses prefix" not in worker.text:
            ledger.write("finding", text=f"The worker of another site was not refused:\n{worker.text}")
    if code := sender.wait(120):
        ledger.write("finding", text=f"The sender of another site ended with {code}")


def _stranger(place: Place) -> Place:
    """Return the same place with a database and a ledger of its own."""
    directory = place.directory / "stranger"
    stranger = replace(place, database=SqliteFiles(directory), directory=directory, options={}, user="")
    if not directory.exists():
        directory.mkdir()
        stranger.migrate()
    return stranger


def _is_taken(place: Place) -> bool:
    """Return whether Redis knows whose it is."""
    for node in place.nodes:
        with node.client() as client:
            if any(client.hexists(key, "store") for key in client.scan_iter("*:meta}")):
                return True
    return False


def move_a_slot(world: World, draw: Random, seconds: float) -> None:
    """Move a shard to another node of the cluster."""
    cluster = world.place.cluster
    assert cluster is not None
    key = f"{{delayq:{draw.randrange(SHARDS)}}}"
    slot = cluster.slot(key)
    source = world.place.moved.get(slot, cluster.owner(key))
    target = draw.choice([node for node in cluster.primaries if node is not source])
    with cluster.moving(slot, source, target):
        time.sleep(seconds)
        cluster.move_keys(slot, source, target)
    world.place.moved[slot] = target


def fail_over(world: World, draw: Random, seconds: float) -> None:
    failover = world.place.failover
    if failover is not None and failover.primary.running:  # there is one replica, so once a round
        with _note_loss(world):
            failover.fail_over()
            failover.wait_for_the_next()
        world.place.nodes = [failover.replica]


@contextmanager
def _note_loss(world: World, always: bool = False) -> Iterator[None]:
    """Note when Redis may lose what it holds: it forgets the limits too."""
    begin = time.monotonic()
    yield
    if always or not world.place.keeps:
        ledger.write("span", name="redis lost", begin=begin, end=time.monotonic())


# The database


def restart_database(world: World, draw: Random, seconds: float) -> None:
    database = _server(world)
    with _between(database.stop, database.start):
        time.sleep(seconds)


def kill_database(world: World, draw: Random, seconds: float) -> None:
    database = _server(world)
    with _between(database.kill, database.start):
        time.sleep(seconds)


def freeze_database(world: World, draw: Random, seconds: float) -> None:
    database = _server(world)
    with _between(database.freeze, database.thaw):
        time.sleep(seconds)


def cut_database(world: World, draw: Random, seconds: float) -> None:
    for _ in range(5):
        _cut(world)
        time.sleep(draw.random() / 2)


def let_database_read_only(world: World, draw: Random, seconds: float) -> None:
    """Let it refuse each write, and answer."""
    database = _server(world)
    if isinstance(database, PostgresServer):
        on, off = (f"ALTER SYSTEM SET default_transaction_read_only = {word}" for word in ("on", "off"))
        with psycopg.connect(
            host=str(database.directory), user="delayq", dbname=DATABASE, autocommit=True,
            options="-c default_transaction_read_only=off",
        ) as client:  # fmt: skip
            for statement in (on, off):
                client.execute(statement)
                client.execute("SELECT pg_reload_conf()")
                time.sleep(seconds if statement == on else 0)
    else:
        for value in (1, 0):
            world.place.rows(f"SET GLOBAL read_only = {value}")
            time.sleep(seconds * value)


def refuse_finishes(world: World, draw: Random, seconds: float) -> None:
    """Take the permission away by which messages finish. A worker that starts meanwhile ends, and says so."""
    place = world.place
    place.rows(f"REVOKE INSERT ON delayq_finish FROM {place.user}")
    time.sleep(seconds)
    place.rows(f"GRANT INSERT ON delayq_finish TO {place.user}")
    _start_again(world)


def put_sequence_back(world: World, draw: Random, seconds: float) -> None:
    """Let new messages get the primary keys of those that have ended, as after a restore, and repair that."""
    world.place.rows("SELECT setval('delayq_ready_id_seq', GREATEST(1, last_value - 100)) FROM delayq_ready_id_seq")
    time.sleep(seconds)
    while not _is_repaired(world.place):
        time.sleep(1)  # what is held gets its key when its lease is over


def _is_repaired(place: Place) -> bool:
    """Repair the primary keys, and tell whether none is left to mend; not while another fault keeps a server away."""
    try:
        return "have the primary key" not in place.django("delayq", "audit", "--repair", "--json")
    except RuntimeError as error:
        if " is away: " in str(error) or "Database" in str(error):
            return False
        raise


def lock_rows(world: World, draw: Random, seconds: float) -> None:
    """Lock what is due soon, in a slow transaction of the site."""
    near = "SELECT id FROM delayq_ready ORDER BY due_at LIMIT 300 FOR UPDATE"
    with _transaction(world, "BEGIN", near):
        time.sleep(seconds)


def lock_all_writes(world: World, draw: Random, seconds: float) -> None:
    """Hold the one write lock of SQLite."""
    with _transaction(world, "BEGIN IMMEDIATE", "SELECT 1"):
        time.sleep(seconds)


def hold_a_snapshot(world: World, draw: Random, seconds: float) -> None:
    begin = {
        PostgresServer: "BEGIN ISOLATION LEVEL REPEATABLE READ",
        MariaDBServer: "START TRANSACTION WITH CONSISTENT SNAPSHOT",
        SqliteFiles: "BEGIN",
    }[type(world.place.database)]
    with _transaction(world, begin, "SELECT count(*) FROM delayq_ready"):
        time.sleep(seconds)


BACK_S = 10


def put_clock_ahead(world: World, draw: Random, seconds: float) -> None:
    ledger.put_clock(ledger.skew_ms() + 30_000)


def put_clock_back(world: World, draw: Random, seconds: float) -> None:
    ledger.put_clock(ledger.skew_ms() - BACK_S * 1000)


def _server(world: World) -> PostgresServer | MariaDBServer:
    assert not isinstance(world.place.database, SqliteFiles)
    return world.place.database


def _client(world: World) -> Any:
    database = world.place.database
    if isinstance(database, SqliteFiles):
        return sqlite3.connect(database.settings(DATABASE)["NAME"], timeout=30, isolation_level=None)
    return database.client(DATABASE)


@contextmanager
def _transaction(world: World, *statements: str) -> Iterator[None]:
    """Run statements, the first of which begins a transaction, and roll it back at the end."""
    with closing(_client(world)) as client, closing(client.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)
            with suppress(psycopg.ProgrammingError):
                cursor.fetchall()
        yield
        with suppress(psycopg.Error, pymysql.Error):  # a cut connection is rolled back already
            cursor.execute("ROLLBACK")


def _cut(world: World) -> None:
    database = world.place.database
    if isinstance(database, PostgresServer):
        database.cut()
        return
    for (process,) in world.place.rows("SELECT id FROM information_schema.processlist WHERE user = 'site'"):
        with suppress(pymysql.Error):  # it has left by itself
            world.place.rows(f"KILL {process}")


def heap_up_stale_alarms(world: World, draw: Random, seconds: float) -> None:
    """Send many messages for soon, and cancel them when they have their alarms."""
    world.place.run("tests.chaos.heap")


# All of them

Is = Callable[[Place], bool]
"""Something that is so at a place, or not."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault, where it can be done, and how late a message may be for it.

    That is `late_s` from its begin, and again from its end. Where workers can do no more than wait (`waits`), it is
    all the time between, too.
    """

    do: Harm
    late_s: float
    waits: Is
    at: Is

    @property
    def name(self) -> str:
        """Return what it does, in words."""
        return self.do.__name__.replace("_", " ")

    def excuses(self, place: Place, begin: float, end: float) -> list[tuple[float, float]]:
        """Return when a message may be late for it."""
        if self.waits(place):
            return [(begin, end + self.late_s)]
        return [(begin, begin + self.late_s), (end, end + self.late_s)]


def always(place: Place) -> bool:
    return True


def never(place: Place) -> bool:
    return False


def stored(place: Place) -> bool:
    return place.is_stored


def storeless(place: Place) -> bool:
    return not place.is_stored


def on_sqlite(place: Place) -> bool:
    return place.is_stored and isinstance(place.database, SqliteFiles)


def on_server(place: Place) -> bool:
    return place.is_stored and not isinstance(place.database, SqliteFiles)


def on_postgresql(place: Place) -> bool:
    return place.is_stored and isinstance(place.database, PostgresServer)


def on_mariadb_or_sqlite(place: Place) -> bool:
    """A worker that is frozen in a transaction holds locks there until it goes on."""
    return place.is_stored and not isinstance(place.database, PostgresServer)


def behind_sentinels(place: Place) -> bool:
    return place.failover is not None


def not_behind_sentinels(place: Place) -> bool:
    return place.failover is None


def alone(place: Place) -> bool:
    """Return whether it is one Redis, and no other takes its place."""
    return place.failover is None and place.cluster is None


def clustered(place: Place) -> bool:
    return place.cluster is not None


DEAD_S = LEASE_S + 3
"""What a worker held that died is run by another."""
AWAY_S = DEGRADED_AFTER_S + 4
"""Workers go on from the tables, or come back from there."""
CUT_S = 3
SWEEP_S = 13
"""The sweep looks every 5 s for what is late by 5 s."""

FAULTS = {
    "workers": [
        Fault(kill_a_worker, DEAD_S, never, always),
        Fault(freeze_a_worker, DEAD_S, on_mariadb_or_sqlite, always),
        Fault(kill_a_child, DEAD_S, never, always),
        Fault(stop_a_worker, CUT_S, never, always),
        Fault(join_a_worker, CUT_S, never, always),
        Fault(kill_a_sender, CUT_S, never, always),
        Fault(heap_up_stale_alarms, 0, never, stored),
    ],
    "redis": [
        Fault(restart_redis, AWAY_S, storeless, not_behind_sentinels),
        Fault(kill_redis, AWAY_S, storeless, not_behind_sentinels),
        Fault(freeze_redis, AWAY_S, storeless, not_behind_sentinels),
        Fault(flush_redis, AWAY_S, never, always),
        Fault(fill_redis, AWAY_S, storeless, always),
        Fault(evict_from_redis, AWAY_S, storeless, always),
        Fault(let_redis_read_only, AWAY_S, storeless, alone),
        Fault(cut_redis, CUT_S, never, always),
        Fault(forget_scripts, CUT_S, never, always),
        Fault(lose_alarms, SWEEP_S, never, stored),
        Fault(let_a_stranger_in, SWEEP_S, never, stored),
        Fault(move_a_slot, AWAY_S, storeless, clustered),
        Fault(fail_over, AWAY_S, always, behind_sentinels),
    ],
    "database": [
        Fault(restart_database, DEAD_S, always, on_server),
        Fault(kill_database, DEAD_S, always, on_server),
        Fault(freeze_database, DEAD_S, always, on_server),
        Fault(cut_database, CUT_S, always, on_server),
        Fault(let_database_read_only, DEAD_S, always, on_server),
        Fault(refuse_finishes, DEAD_S, always, on_server),
        Fault(put_sequence_back, DEAD_S, always, on_postgresql),
        Fault(lock_rows, CUT_S, always, on_server),
        Fault(lock_all_writes, CUT_S, always, on_sqlite),
        Fault(hold_a_snapshot, 0, never, stored),
        Fault(put_clock_ahead, DEAD_S, never, stored),
        Fault(put_clock_back, BACK_S + 16, never, stored),
    ],
}
"""By what they hit. Each of these has one at a time, beside those of the others."""
