"""Print the plans of the store's queries, and of the admin's, on very many rows: which query needs which index.

The output is the part of docs/internals/indexes.md from "As measured" on: each index with its size, uses and a plan.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import time_ns

from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from benchmarks import admin_rows
from benchmarks.admin_pages import addresses, opened
from benchmarks.admin_rows import COMMON_FAILURE, COMMON_KEY, COMMON_QUEUE, RARE_KEY, RARE_QUEUE
from benchmarks.result import Result
from benchmarks.scale import scaled
from benchmarks.stored_site import HORIZON_MS, StoredSite, stored_site
from django_delayq.brokers.base import Alarm, Claimed, ClaimRequest, Header, NewMessage, Transition
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias
from django_delayq.core import transitions
from django_delayq.models import ReadyMessage
from django_delayq.monitor import throughput
from django_delayq.store import (
    audit,
    claim,
    enqueue,
    operations,
    polling,
    queries,
    settle,
    statistics,
)
from django_delayq.store.alarms import schedule_window
from django_delayq.store.database import Database
from django_delayq.store.mark import Mark
from tests.databases import SiteTables

BATCH = 100
ADMIN = "admin: "
MOST_PAGES = 3
LEASE_MS = 15_000
SPECIAL = """
    UPDATE delayq_ready SET at_most_once = id %% 100 = 2,
    crashes = CASE WHEN id %% 50000 = 3 THEN 2 ELSE 0 END
    WHERE id %% 100 = 2 OR id %% 50000 = 3"""
"""Make some messages at-most-once, and a few suspects."""
BACKLOG = "UPDATE delayq_ready SET due_at = %(due)s WHERE id %% 2 = 0"
"""Make half of all messages overdue."""
INDEXES = """
    SELECT relname, indexrelname, pg_relation_size(indexrelid) / 1048576.0 FROM pg_stat_user_indexes
    WHERE relname IN ('delayq_ready', 'delayq_finish', 'delayq_error') ORDER BY relname DESC, indexrelname"""
_SCANS = re.compile(r"Scan (?:Backward )?(?:using|on) (delayq_\w+)")


@dataclass(frozen=True)
class Plan:
    """The plan of one statement, with the indexes that it scans. `use` is the work that runs the statement."""

    use: str
    lines: tuple[str, ...]
    indexes: frozenset[str]


def run() -> list[Result]:
    """Print the page. There is no bound."""
    count = scaled(1_000_000, least=1_000)
    with stored_site() as site, override_settings(DATABASE_ROUTERS=[SiteTables(site.using)]):
        _fill(site, count)
        uses = store_uses(site.using) | dict(_pages(site))
        plans = [plan for use, work in uses.items() for plan in _plans_of(site, use, work)]
        with site.client() as client:
            client.execute(BACKLOG, {"due": time_ns() // 1_000_000 - 86_400_000})
        site.tidy()
        plans += _plans_of(site, "window beside a backlog", uses["window"])
        with site.client() as client:
            indexes = [(table, name, float(size)) for table, name, size in client.execute(INDEXES).fetchall()]
    sys.stdout.write("\n".join(_page(count, indexes, plans)) + "\n")
    return []


def _fill(site: StoredSite, count: int) -> None:
    now_ms = time_ns() // 1_000_000
    with site.client() as client:
        admin_rows.insert(client, count, now_ms)
        client.execute(SPECIAL, {})
    site.tidy()


def store_uses(using: str) -> dict[str, Callable[[], object]]:
    """Return the uses of the database by the store: functions that do the work, by name."""
    database, clock = Database("default", using), MemoryBroker(Alias("clock"))
    pairs = [(COMMON_QUEUE, COMMON_KEY), (RARE_QUEUE, RARE_KEY)]
    wants = [ClaimRequest(queue, key, BATCH) for queue, key in pairs]
    now_ms = database.now_ms()
    due = ReadyMessage.objects.using(using).filter(due_at__lte=now_ms, key=COMMON_KEY, token=None)
    alarms = [Alarm(COMMON_QUEUE, COMMON_KEY, str(pk)) for pk in due.values_list("pk", flat=True)[:BATCH]]
    there = [f"order:{n}:close" for n in range(1000, 1000 + BATCH)]
    header = Header(COMMON_QUEUE, COMMON_KEY)
    again = [NewMessage(id, header, b"1", delay_ms=60_000) for id in there]

    def claimed() -> list[Claimed]:
        return claim.claim(database, alarms, wants, LEASE_MS, "w").messages

    def held() -> list[Transition]:
        failure, at_once = transitions.Failure("KeyError: 'x'"), transitions.Again(0)
        ends = (
            transitions.finish,
            lambda one: transitions.fail(
                one, failure, transitions.Policy(), transitions.UNSTARTED, lambda _attempt: at_once
            ),
            partial(transitions.bury, failure=failure),
        )
        return [ends[n % 3](each) for n, each in enumerate(claimed())]

    return {
        "claim": lambda: claim.claim(database, alarms, wants, LEASE_MS, "w"),
        "settlement": lambda: settle.settle(database, held()),
        "renewal": lambda: settle.renew(database, claimed(), LEASE_MS),
        "send of ids that wait": lambda: enqueue.enqueue(database, again, "replace"),
        "cancel": lambda: operations.cancel(database, there),
        "reschedule": lambda: operations.reschedule(database, there, 60_000, None),
        "rescue": lambda: operations.rescue(database, there),
        "purge-failed": lambda: operations.purge_failed(database, there),
        "cancel by tag": lambda: queries.ids_by_tag(database, "customer:42"),
        "window": lambda: schedule_window(database, clock, HORIZON_MS),
        "degraded mode": lambda: polling.due(database, wants),
        "claim of suspects": lambda: claim.claim_suspect(database, wants, LEASE_MS, "w"),
        "maintenance": lambda: settle.look_at_leases(database),
        "figures": lambda: statistics.waiting(database, now_ms),
        "throughput": lambda: throughput.measure(
            database, now_ms, [throughput.last_hour(now_ms), throughput.last_day(now_ms)]
        ),
        "peek": lambda: queries.peek(database, COMMON_QUEUE, 20, None),
        "peek of a key": lambda: queries.peek(database, RARE_QUEUE, 20, RARE_KEY),
        "errors": lambda: queries.errors(database, 20, 0),
        "a new kind of failure": lambda: queries.first_failed_ms(database, COMMON_FAILURE),
        "explain": lambda: queries.message_facts(database, "order:4242:close"),
        "prune": lambda: operations.prune_finished(database, now_ms - 29 * 86_400_000),
        "prune of errors": lambda: operations.prune_errors(database, now_ms - 29 * 86_400_000),
        "audit": lambda: audit.audit(database, clock, Mark(database, clock.alias, clock.window, ()), LEASE_MS),
    }


def _pages(site: StoredSite) -> Iterator[tuple[str, Callable[[], object]]]:
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    for address in addresses(site):
        page = partial(browser.get, opened(browser, address))
        yield f"{ADMIN}{address.removeprefix('/admin/delayq/') or 'dashboard'}", page


def _plans_of(site: StoredSite, use: str, work: Callable[[], object]) -> list[Plan]:
    """Return the plans of all statements of a use that scan our indexes. Their effects are rolled back."""
    with transaction.atomic(using=site.using):
        with CaptureQueriesContext(connections[site.using]) as captured:
            work()
        transaction.set_rollback(True, using=site.using)
    return [plan for query in captured if (plan := _plan(site, use, query["sql"])).indexes]


def _plan(site: StoredSite, use: str, sql: str) -> Plan:
    if "delayq_" not in sql or not sql.lstrip().upper().startswith(("SELECT", "WITH", "UPDATE", "INSERT", "DELETE")):
        return Plan(use, (), frozenset())
    with connections[site.using].cursor() as cursor:
        cursor.execute(f"EXPLAIN (COSTS OFF) {sql}")
        lines = tuple(str(row[0]) for row in cursor.fetchall())
    return Plan(use, lines, frozenset(name for line in lines for name in _SCANS.findall(line)))


def _page(count: int, indexes: list[tuple[str, str, float]], plans: list[Plan]) -> Iterator[str]:
    yield f"## As measured: {count:,} rows in each table"
    for table, name, mib in indexes:
        found = [plan for plan in plans if name in plan.indexes]
        uses = _told(list(dict.fromkeys(plan.use for plan in found)))
        yield f"\n### `{name}`\n\nOf `{table}`, {mib:,.0f} MiB. Used by: {uses}."
        if found:
            shortest = min(found, key=lambda plan: (plan.use.startswith(ADMIN), len(plan.lines)))
            yield f"\nThe plan of *{shortest.use}*:\n\n```text"
            yield from (_short(line) for line in shortest.lines)
            yield "```"


def _told(uses: Sequence[str]) -> str:
    """Return the uses as text: all of the store, and some of the admin's pages."""
    store = [use for use in uses if not use.startswith(ADMIN)]
    pages = [f"`{use.removeprefix(ADMIN)}`" for use in uses if use.startswith(ADMIN)]
    told = store + [f"the admin's {', '.join(pages[:MOST_PAGES])}"] * bool(pages)
    told += [f"{len(pages) - MOST_PAGES} more of its pages"] * (len(pages) > MOST_PAGES)
    return ", ".join(told) or "nothing"


def _short(line: str) -> str:
    return line if len(line) <= 160 else f"{line[:159]}…"
