"""No hot statement needs luck: each is bounded in what it reads of a table that nobody analysed nor vacuumed.

The same holds where it was vacuumed while nothing waited, so that PostgreSQL expects no rows in it at all.

Meanwhile another session holds a transaction open since before the first message, so that no row that ended, and none
that was changed, leaves the table or an index. Plans that depend on statistics go wrong there, and plans that read from
the low end of an index walk over all that has ended.

What is counted are pages (shared buffers, found or read) and rows looked at in vain. Neither depends on the load. The
plan that a statement should have goes by primary key, or by an index that ends where the rows are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from secrets import randbits
from typing import Any

import pytest
from django.db import connections, transaction

from django_delayq.brokers.base import BATCH, Alarm, Claimed, ClaimRequest, Header, NewMessage, OnConflict, pages
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias
from django_delayq.core import transitions
from django_delayq.core.figures import COUNTS, MINUTE_MS
from django_delayq.core.transitions import Transition
from django_delayq.models import ErrorMessage, FigureRow, FinishMessage, ReadyMessage
from django_delayq.monitor import throughput
from django_delayq.store import alarms, claim, enqueue, figures, listing, operations, polling, queries, settle, tags
from django_delayq.store.database import Database
from django_delayq.store.queries import waiting_pairs
from django_delayq.support.timestamps import from_ms
from tests.databases import database_on
from tests.servers import PostgresServer

SENT, ENDED = 5_000, 1_250
USED = 8
"""How often an id was used before."""
PAIR = "default", "k"
HEADER = Header(*PAIR)
WANTS = [ClaimRequest(*PAIR, BATCH)]
LEASE_MS = 15_000
HOUR_MS = 3_600_000
SOON_MS = 1_800_000


@dataclass(frozen=True)
class Read:
    """What one statement read."""

    sql: str
    plan: str
    pages: int
    in_vain: int
    whole_tables: frozenset[str]

    def __str__(self) -> str:
        return f"{self.pages} pages, {self.in_vain} rows in vain: {self.sql[:300]}\n{self.plan}"


@dataclass
class Scene:
    """A store in the middle of a burst."""

    database: Database
    clock: MemoryBroker

    def pks(self, count: int) -> list[str]:
        rows = ReadyMessage.objects.using(self.database.using).filter(token=None).order_by("due_at", "pk")
        return [str(pk) for pk in rows.values_list("pk", flat=True)[:count]]

    def ids(self, count: int) -> list[str]:
        rows = ReadyMessage.objects.using(self.database.using).filter(token=None).order_by("due_at", "pk")
        return list(rows.values_list("message_id", flat=True)[:count])

    def claim(self, count: int) -> list[Claimed]:
        return self._claim(self.pks(count))

    def claim_last(self, count: int) -> list[Claimed]:
        """Claim what was sent last."""
        last = ReadyMessage.objects.using(self.database.using).order_by("-pk")
        return self._claim([str(pk) for pk in last.values_list("pk", flat=True)[:count]])

    def _claim(self, pks: Sequence[str]) -> list[Claimed]:
        found: list[Claimed] = []
        for page in pages(pks, 100):
            alarms = [Alarm(*PAIR, pk) for pk in page]
            found += claim.claim(self.database, alarms, WANTS, LEASE_MS, "w").messages
        assert len(found) == len(pks)
        return found


@pytest.fixture(params=["never vacuumed", "vacuumed with nothing there"])
def scene(postgres_server: PostgresServer, django_db_blocker: Any, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with django_db_blocker.unblock(), database_on(postgres_server) as using:
        name = str(connections.settings[using]["NAME"])
        with postgres_server.client(name) as other:
            for table in "ready", "finish", "error", "figure", "tag":
                other.execute(f"ALTER TABLE delayq_{table} SET (autovacuum_enabled = false)")
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            found = Scene(Database("default", using), MemoryBroker(Alias("clock")))
            if request.param != "never vacuumed":
                _send(found, SENT)
                with postgres_server.client(name) as admin:
                    admin.execute("DELETE FROM delayq_ready")
                    admin.execute("VACUUM ANALYZE delayq_ready")
            _send(found, SENT)
            _run(found, ENDED)
            yield found


def _send(scene: Scene, count: int) -> None:
    new = [NewMessage(f"message:{n:08}", HEADER, b"1", delay_ms=0) for n in range(count)]
    for page in pages(new, BATCH):
        enqueue.enqueue(scene.database, page, "raise")


def _run(scene: Scene, count: int) -> None:
    """Some have been claimed and have ended before."""
    held = scene.claim(count)
    for page in pages(held, 100):
        settle.settle(scene.database, [transitions.finish(one) for one in page])


FEW = 100
"""So many pages of a table may be read in its order: then it is a small one."""
PAGES_READ = """
    SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0) FROM pg_class WHERE relname LIKE 'delayq\\_%%'"""
"""By this transaction, of the store's tables and indexes: found in the shared buffers, or read into them."""


@contextmanager
def reading(using: str) -> Iterator[list[Read]]:
    """Notes what each statement of the block reads. It runs twice: once to be explained, which is rolled back."""
    found: list[Read] = []
    connection = connections[using]

    def explain(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        for each in (params if many else [params]) if "delayq_" in sql else ():
            with transaction.atomic(using=using), connection.connection.cursor() as cursor:
                before = _one(cursor, PAGES_READ)
                plan = _one(cursor, f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql}", each)[0]["Plan"]
                found.append(_read_of(sql, plan, int(_one(cursor, PAGES_READ) - before)))
                transaction.set_rollback(True, using=using)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def _one(cursor: Any, sql: str, params: Any = ()) -> Any:
    ((value,),) = cursor.execute(sql, params).fetchall()
    return value


def _read_of(sql: str, plan: dict[str, Any], pages_read: int) -> Read:
    nodes = [node for node in _nodes(plan) if not _is_small_table(node)]
    whole = frozenset(node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan")
    return Read(" ".join(sql.split()), "\n".join(_lines(plan)), pages_read, sum(map(_in_vain, nodes)), whole)


def _is_small_table(node: dict[str, Any]) -> bool:
    """Return whether a table is read as a whole, of so few pages, and so seldom, that nothing is saved by an index."""
    return node["Node Type"] == "Seq Scan" and bool(node["Shared Hit Blocks"] + node["Shared Read Blocks"] <= FEW)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _in_vain(node: dict[str, Any]) -> int:
    """Return how many rows a step looked at for nothing: filtered out, or sorted or hashed and not used."""
    removed = sum(number for key, number in node.items() if key.startswith("Rows Removed by "))
    if node["Node Type"] in ("Sort", "Incremental Sort", "Hash"):
        removed += sum(child["Actual Rows"] for child in node["Plans"])
    return int(removed * node["Actual Loops"])


def _lines(plan: dict[str, Any], depth: int = 0) -> Iterator[str]:
    what = [plan["Node Type"], plan.get("Relation Name") or plan.get("CTE Name"), plan.get("Index Name")]
    yield (
        f"{'  ' * depth}{' '.join(filter(None, what))}: {plan['Actual Rows']} rows x {plan['Actual Loops']}"
        f" (planned: {plan['Plan Rows']}), {_in_vain(plan)} in vain"
    )
    for child in plan.get("Plans", ()):
        yield from _lines(child, depth + 1)


def _finish(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    return lambda: settle.settle(scene.database, [transitions.finish(one) for one in held])


def _failure(one: Claimed) -> Transition:
    failure = transitions.Failure("KeyError: 'x'")
    return transitions.fail(
        one, failure, transitions.Policy(), transitions.UNSTARTED, lambda _attempt: transitions.Again(0)
    )


def _retry(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    return lambda: settle.settle(scene.database, [_failure(one) for one in held])


def _bury(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    failure = transitions.Failure("KeyError: 'x'")
    return lambda: settle.settle(scene.database, [transitions.bury(one, failure) for one in held])


def _mixed(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    failure = transitions.Failure("KeyError: 'x'")
    ends = transitions.finish, _failure, partial(transitions.bury, failure=failure)
    return lambda: settle.settle(scene.database, [ends[n % 3](one) for n, one in enumerate(held)])


def _release(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    return lambda: settle.settle(scene.database, [transitions.release(one, 0) for one in held])


def _late(scene: Scene, count: int) -> Callable[[], object]:
    """Ends of leases that were lost."""
    held = scene.claim(count)
    for one in held:
        one.token += 1
    return lambda: settle.settle(scene.database, [transitions.finish(one) for one in held])


def _renew(scene: Scene, count: int) -> Callable[[], object]:
    held = scene.claim(count)
    return lambda: settle.renew(scene.database, held, LEASE_MS)


def _renew_used(scene: Scene, count: int) -> Callable[[], object]:
    """Leases of ids that were used before: their dead rows stay under the ids, and each lease has a key of its own."""
    new = [NewMessage(f"used:{n}", HEADER, b"1") for n in range(count)]
    for _ in range(USED):
        enqueue.enqueue(scene.database, new, "raise")
        settle.settle(scene.database, [transitions.finish(one) for one in scene.claim_last(count)])
    enqueue.enqueue(scene.database, new, "raise")
    held = scene.claim_last(count)
    settle.renew(scene.database, held, LEASE_MS)
    return lambda: settle.renew(scene.database, held, LEASE_MS)


def _claim(scene: Scene, count: int) -> Callable[[], object]:
    alarms = [Alarm(*PAIR, pk) for pk in scene.pks(count)]
    return lambda: claim.claim(scene.database, alarms, WANTS, LEASE_MS, "w")


def _stale(scene: Scene, count: int) -> Callable[[], object]:
    """Alarms of rows that are held."""
    alarms = [Alarm(*PAIR, one.pk) for one in scene.claim(count)]
    return lambda: claim.claim(scene.database, alarms, WANTS, LEASE_MS, "w")


def _reclaim(scene: Scene, count: int) -> Callable[[], object]:
    pks = [int(one.pk) for one in scene.claim(count)]
    now_ms = scene.database.now_ms() + 2 * LEASE_MS
    return lambda: settle.reclaim(scene.database, pks, now_ms)


def _upkeep(scene: Scene, count: int) -> Callable[[], object]:
    return lambda: settle.look_at_leases(scene.database)


def _again(scene: Scene, count: int, on_conflict: OnConflict) -> Callable[[], object]:
    new = [NewMessage(id, HEADER, b"1", delay_ms=HOUR_MS) for id in scene.ids(count)]
    return lambda: enqueue.enqueue(scene.database, new, on_conflict)


def _ended(scene: Scene, count: int) -> Callable[[], object]:
    """Ids that must not be used again."""
    _end_many(scene)
    new = [NewMessage(f"ended:{n}", HEADER, b"1", delay_ms=HOUR_MS, id_scope="all") for n in range(count)]
    return lambda: enqueue.enqueue(scene.database, new, "keep")


def _end_many(scene: Scene) -> None:
    """Let so many have ended that neither table is so small that it had better be read as a whole."""
    names = {"alias": "default", "queue": "default", "key": "k", "worker": "w"}
    rest = {"data": "1", "at_most_once": False, "failures": 0, "crashes": 0, "error": "", "history": "[]"}
    times = dict.fromkeys(("due_at", "scheduled_at", "sent_at", "ended_at"), from_ms(0))
    rows = [{"id": 10**9 + n, "message_id": f"ended:{n}", **names, **rest, **times} for n in range(ENDED)]
    using = scene.database.using
    FinishMessage.objects.using(using).bulk_create(FinishMessage(**row, outcome="finished") for row in rows)
    ErrorMessage.objects.using(using).bulk_create(ErrorMessage(**row, detail="", fingerprint="f") for row in rows)


def _put_once(scene: Scene, count: int) -> Callable[[], object]:
    _end_many(scene)
    new = [NewMessage(f"new:{n}", HEADER, b"1", delay_ms=HOUR_MS, id_scope="all") for n in range(count)]
    return lambda: enqueue.enqueue(scene.database, new, "raise")


def _put(scene: Scene, count: int) -> Callable[[], object]:
    new = [NewMessage(f"new:{n}", HEADER, b"1", delay_ms=HOUR_MS) for n in range(count)]
    return lambda: enqueue.enqueue(scene.database, new, "raise")


def _cancel(scene: Scene, count: int) -> Callable[[], object]:
    ids = scene.ids(count)
    return lambda: operations.cancel(scene.database, ids)


def _purge(scene: Scene, count: int) -> Callable[[], object]:
    ids = scene.ids(count)
    return lambda: operations.purge(scene.database, ids)


def _reschedule(scene: Scene, count: int) -> Callable[[], object]:
    ids = scene.ids(count)
    return lambda: operations.reschedule(scene.database, ids, HOUR_MS, None)


def _rescue(scene: Scene, count: int) -> Callable[[], object]:
    _bury(scene, 2 * ENDED)()
    ids = list(ErrorMessage.objects.using(scene.database.using).values_list("message_id", flat=True)[:count])
    return lambda: operations.rescue(scene.database, ids)


def _purge_failed(scene: Scene, count: int) -> Callable[[], object]:
    _bury(scene, 2 * ENDED)()
    ids = list(ErrorMessage.objects.using(scene.database.using).values_list("message_id", flat=True)[:count])
    return lambda: operations.purge_failed(scene.database, ids)


def _pass(scene: Scene, count: int) -> Callable[[], object]:
    new = [NewMessage(f"near:{n}", HEADER, b"1", delay_ms=SOON_MS + n) for n in range(count)]
    enqueue.enqueue(scene.database, new, "raise")
    scene.clock.advance_cursor([], None, scene.database.now_ms())
    return lambda: alarms.schedule_window(scene.database, scene.clock, HOUR_MS)


def _due(scene: Scene, count: int) -> Callable[[], object]:
    return lambda: polling.due(scene.database, [ClaimRequest(*PAIR, count)])


def _onward(scene: Scene, count: int) -> Callable[[], object]:
    """A claim of a backlog, which goes on where the last one ended."""
    claims = polling.TableClaims(scene.database)
    wants = [ClaimRequest(*PAIR, count)]
    assert len(claims.claim(wants, LEASE_MS, "w")[0].messages) == count
    return lambda: claims.claim(wants, LEASE_MS, "w")


def _sweep(scene: Scene, count: int) -> Callable[[], object]:
    """A sweep that does not begin at the low end."""
    found = polling.Sweep(scene.database)
    found.find(WANTS)
    return lambda: found.find([ClaimRequest(*PAIR, count)])


def _suspects(scene: Scene, count: int) -> Callable[[], object]:
    return lambda: claim.claim_suspect(scene.database, WANTS, LEASE_MS, "w")


def _pairs(scene: Scene, count: int) -> Callable[[], object]:
    return lambda: waiting_pairs(scene.database, 100)


def _tag(scene: Scene, count: int) -> Callable[[], object]:
    return lambda: queries.ids_by_tag(scene.database, "none")


def _give_tags(scene: Scene, count: int) -> None:
    """Give two tags after the first to all that wait; `count` of them, far apart, share one that others have not."""
    pks = [int(pk) for pk in scene.pks(SENT)]
    ReadyMessage.objects.using(scene.database.using).filter(pk__in=pks).update(tag="shop")
    step = len(pks) // count
    tags.write(scene.database, [(pk, f"own:{pk}") for pk in pks])
    tags.write(scene.database, [(pk, "customer:3" if not n % step else "other") for n, pk in enumerate(pks)])


def _tagged(scene: Scene, count: int) -> Callable[[], object]:
    _give_tags(scene, count)
    return lambda: queries.ids_by_tag(scene.database, "customer:3")


def _list_tagged(scene: Scene, count: int) -> Callable[[], object]:
    _give_tags(scene, count)
    found = listing.with_further_tag(ReadyMessage, scene.database, "customer:3", "k", "message:")
    return lambda: list(found)


def _claim_tagged(scene: Scene, count: int) -> Callable[[], object]:
    _give_tags(scene, count)
    return _claim(scene, count)


def _purge_tagged(scene: Scene, count: int) -> Callable[[], object]:
    _give_tags(scene, count)
    return _purge(scene, count)


MINUTES, KEYS = 30, 10


def _minutes(scene: Scene) -> int:
    """Half an hour of the figures of ten keys, rolled up but for the last minutes. Return the time."""
    now_ms = scene.database.now_ms() // HOUR_MS * HOUR_MS + HOUR_MS
    for minute in range(MINUTES):
        at_ms = now_ms - (MINUTES - minute) * MINUTE_MS
        figures.write(scene.database, [_figures(at_ms, key) for key in range(KEYS)])
        if minute < MINUTES - 1:
            figures.roll_up(scene.database, at_ms + MINUTE_MS)
    return now_ms


def _figures(at_ms: int, key: int) -> FigureRow:
    counts = dict.fromkeys(COUNTS, 1)
    return FigureRow(
        id=randbits(63), alias="default", period="new", at=at_ms, queue="default", key=f"shop.key.{key}", **counts
    )


def _write_figures(scene: Scene, count: int) -> Callable[[], object]:
    now_ms = _minutes(scene)
    return lambda: figures.write(scene.database, [_figures(now_ms, key) for key in range(count)])


def _roll_up(scene: Scene, count: int) -> Callable[[], object]:
    now_ms = _minutes(scene)
    return lambda: figures.roll_up(scene.database, now_ms)


def _measure(scene: Scene, count: int) -> Callable[[], object]:
    now_ms = _minutes(scene)
    spans = [throughput.last_hour(now_ms), throughput.last_day(now_ms)]
    return lambda: throughput.measure(scene.database, now_ms, spans)


FOUND = 8
"""Pages for a row that is found: three of the primary key's index and the row's own, for a lock and for the answer."""
WRITTEN = 45
"""Pages for a row that is found and written anew, or moved: beside those, up to three of each of eight indexes."""
MOVED = 2 * WRITTEN
"""Pages for a row that goes into another table and is told from those with its id there, in several statements."""

USES: dict[str, tuple[Callable[[Scene, int], Callable[[], object]], int, int]] = {
    "claim of 100": (_claim, 100, WRITTEN),
    "claim of a batch": (_claim, BATCH, WRITTEN),
    "claim by stale alarms": (_stale, 100, 2 * FOUND),
    "settlement of 100": (_finish, 100, WRITTEN),
    "settlement of a batch": (_finish, BATCH, WRITTEN),
    "settlement of lost leases": (_late, 100, 2 * FOUND),
    "retry of 100": (_retry, 100, WRITTEN),
    "burial of 100": (_bury, 100, WRITTEN),
    "release of a batch": (_release, BATCH, WRITTEN),
    "settlement of all kinds": (_mixed, 300, WRITTEN),
    "renewal of 100": (_renew, 100, WRITTEN),
    "renewal of a batch": (_renew, BATCH, WRITTEN),
    "renewal of ids that were used before": (_renew_used, 845, 4 * FOUND),
    "reclaim of 100": (_reclaim, 100, WRITTEN),
    "send of one": (_put, 1, WRITTEN),
    "send of a batch": (_put, BATCH, WRITTEN),
    "send of ids that wait: keep": (partial(_again, on_conflict="keep"), 100, 2 * FOUND),
    "send of ids that wait: replace": (partial(_again, on_conflict="replace"), 100, WRITTEN),
    "send of ids that wait: earliest": (partial(_again, on_conflict="earliest"), 100, 3 * FOUND),
    "send of a batch of ids that wait: replace": (partial(_again, on_conflict="replace"), BATCH, WRITTEN),
    "send of ids that have ended": (_ended, 100, 4 * FOUND),
    "send of a batch of ids that have ended": (_ended, BATCH, 4 * FOUND),
    "send of one that must be the first": (_put_once, 1, WRITTEN + 4 * FOUND),
    "send of a batch that must be the first": (_put_once, BATCH, WRITTEN),
    "cancel of 100": (_cancel, 100, WRITTEN),
    "cancel of a batch": (_cancel, BATCH, WRITTEN),
    "purge of 100": (_purge, 100, 2 * FOUND),
    "reschedule of 100": (_reschedule, 100, WRITTEN),
    "reschedule of a batch": (_reschedule, BATCH, WRITTEN),
    "rescue of 100": (_rescue, 100, MOVED),
    "purge of 100 failed": (_purge_failed, 100, 2 * FOUND),
    "pass over the window": (_pass, BATCH, FOUND),
    "look for what is due": (_due, 100, FOUND),
    "claim of a backlog": (_onward, 100, WRITTEN + FOUND),
    "sweep": (_sweep, 100, FOUND),
    "claim of suspects": (_suspects, 1, 20),
    "look for a tag": (_tag, 2, FOUND + 1),  # among the first tags, and the others; the planner looks at each index
    "look for 100 of a tag": (_tagged, 100, 3 * FOUND),
    "list of 10 of a tag": (_list_tagged, 10, 2 * FOUND),
    "claim of 100 with tags": (_claim_tagged, 100, WRITTEN),
    "purge of 100 with tags": (_purge_tagged, 100, 6 * FOUND),
    "queues and keys": (_pairs, 1, FOUND),
    "look for leases that ran out": (_upkeep, BATCH, FOUND),
    "figures of a minute": (_write_figures, KEYS, WRITTEN),  # under random keys, which may split pages
    "roll-up of figures": (_roll_up, 4 * KEYS, WRITTEN),  # into minutes, hours, days and totals
    "look at figures": (_measure, 4 * (MINUTES + KEYS), FOUND),  # by minute, by hour, by key and in all time
}
"""By name: what prepares the statements, for how many rows, and the most pages for each of them."""

PAST_ENDED = 3 * (ENDED // 10)
"""Pages of looks that begin at the low end of an index: all that ended, whose rows and entries lie some ten a page."""
FROM_THE_LOW_END = ("sweep", "look for what is due", "look for leases that ran out", "queues and keys")


@pytest.mark.parametrize("use", USES)
def test_what_a_statement_reads_is_bounded(scene: Scene, use: str) -> None:
    prepare, count, pages_of_each = USES[use]
    work = prepare(scene, count)
    with reading(scene.database.using) as found:
        work()
    told = f"{use}:\n\n" + "\n\n".join(map(str, found))
    assert found, f"{use}: no statement was seen"
    assert not any(one.whole_tables for one in found), f"A table is read as a whole by the {told}"
    assert sum(one.in_vain for one in found) <= 4 * count, f"Rows are looked at in vain by the {told}"
    most = pages_of_each * count + (PAST_ENDED if use in FROM_THE_LOW_END else 0)
    assert sum(one.pages for one in found) <= most, f"More than {most} pages are read by the {told}"
