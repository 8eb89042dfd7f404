"""Measure the admin's pages on very many rows: how long each takes from request to last byte, and its queries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter, time_ns
from urllib.parse import parse_qsl, urlencode

from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from benchmarks import admin_rows
from benchmarks.admin_rows import COMMON_FAILURE, COMMON_KEY, COMMON_QUEUE, RARE_FAILURE, RARE_KEY, RARE_QUEUE
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.stored_site import StoredSite, stored_site
from django_delayq.admin.lists.bounded import BoundedAdmin
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from tests.databases import SiteTables

LOOKS = 20
MOST_MS = 150
MOST_QUERIES = 10
SPANS = ("1h", "24h", "7d")
FILTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "readymessage": {
        "state": ("pending", "ready", "running"),
        "due": ("overdue", *SPANS),
        "failures": ("0", "any", "1", "2", "3"),
        "queue": (COMMON_QUEUE, RARE_QUEUE),
        "key": (COMMON_KEY, RARE_KEY),
    },
    "finishmessage": {
        "outcome": ("finished", "cancelled"),
        "ended": SPANS,
        "failures": ("0", "any", "1", "2", "3"),
        "queue": (COMMON_QUEUE, RARE_QUEUE),
        "key": (COMMON_KEY, RARE_KEY),
    },
    "errormessage": {
        "ended": SPANS,
        "fingerprint": (COMMON_FAILURE, RARE_FAILURE),
        "failures": ("0", "any", "1", "2", "3"),
        "queue": (COMMON_QUEUE, RARE_QUEUE),
        "key": (COMMON_KEY, RARE_KEY),
    },
}
SEARCHES = (
    *("order:4242:close", "order:4242*", "order:*", "customer:42", "customer:*", "nothing", "nothing*"),
    *("data.order=4242", "data.order=none", "data.email=customer42@example.com"),
)
MODELS = (ReadyMessage, FinishMessage, ErrorMessage)
FLOOR = "/admin/auth/user/"
"""The page to compare with: Django's own list, with as many rows as a page of ours shows."""
MOST_FLOORS = 5
"""A page may take this many times as long as `FLOOR`: 150 ms on a machine where `FLOOR` takes 30 ms."""


@dataclass(frozen=True, slots=True)
class Look:
    """The times in ms that a page and the floor took in turn, and the page's queries without BEGIN and COMMIT."""

    times_ms: list[float]
    floor_ms: list[float]
    queries: int

    @property
    def p95_ms(self) -> float:
        """Return the 95th percentile of how long the page took."""
        return sorted(self.times_ms)[math.ceil(len(self.times_ms) * 0.95) - 1]

    @property
    def floors(self) -> float:
        """Return how many times as long as the floor the page took, by the medians."""
        return median(self.times_ms) / median(self.floor_ms)


def run() -> list[Result]:
    """Return the slowest page, in ms and against Django's own list, and the page with the most queries."""
    count = scaled(5_000_000, least=1_000)
    with stored_site() as site, override_settings(DATABASE_ROUTERS=[SiteTables(site.using)]):
        with site.client() as client:
            admin_rows.insert(client, count, time_ns() // 1_000_000)
        site.tidy()
        User.objects.bulk_create(User(username=f"user-{n}") for n in range(BoundedAdmin.list_per_page - 1))
        browser = Client()
        browser.force_login(User.objects.create_superuser("root"))
        seen = {address: _look(browser, site, opened(browser, address)) for address in addresses(site)}
    return _results(f"{len(seen)} admin pages with {count:,} rows a table", seen)


def _results(pages: str, seen: dict[str, Look]) -> list[Result]:
    slowest = max(seen, key=lambda address: seen[address].p95_ms)
    dearest = max(seen, key=lambda address: seen[address].floors)
    longest = max(seen, key=lambda address: seen[address].queries)
    half = f"half of them {median(median(look.times_ms) for look in seen.values()):.0f} ms"
    floor = f"which took {median(median(look.floor_ms) for look in seen.values()):.0f} ms"
    half_floors = f"half of them {median(look.floors for look in seen.values()):.2f}"
    to_floor = f"{pages}, the slowest / Django's list of users"
    return [
        at_most(f"{pages}, p95 of the slowest", seen[slowest].p95_ms, MOST_MS, "ms", f"{_path(slowest)}; {half}"),
        at_most(to_floor, seen[dearest].floors, MOST_FLOORS, "times", f"{_path(dearest)}; {half_floors}; {floor}"),
        at_most(f"{pages}, the most of one", seen[longest].queries, MOST_QUERIES, "queries", _path(longest)),
    ]


def addresses(site: StoredSite) -> Iterator[str]:
    """Yield the addresses of every list with each filter and search, and of a page of each other kind."""
    yield "/admin/delayq/"
    yield "/admin/delayq/?back=30d"
    yield "/admin/delayq/errormessage/groups/"
    for model, filters in FILTERS.items():
        yield f"/admin/delayq/{model}/"
        yield f"/admin/delayq/{model}/?p=200"
        for parameter, values in filters.items():
            yield from (f"/admin/delayq/{model}/?{urlencode({parameter: value})}" for value in values)
        yield from (f"/admin/delayq/{model}/?{urlencode({'q': text})}" for text in SEARCHES)
    for each in MODELS:
        pk = each._default_manager.using(site.using).order_by("pk").values_list("pk", flat=True)[0]
        yield f"/admin/delayq/{each._meta.model_name}/{pk}/change/"


def opened(browser: Client, address: str) -> str:
    """Return the address to open. A search in payloads is sent by POST first, and its redirect is returned."""
    path, _, query = address.partition("?")
    text = dict(parse_qsl(query)).get("q", "")
    return browser.post(path, {"q": text})["Location"] if text.startswith("data") else address


def _look(browser: Client, site: StoredSite, address: str) -> Look:
    for each in (address, FLOOR):
        _get(browser, each)
    with CaptureQueriesContext(connections[site.using]) as queries:
        _get(browser, address)
    asked = sum(query["sql"] not in ("BEGIN", "COMMIT") for query in queries)
    look = Look([], [], asked)
    for n in range(LOOKS):
        look.times_ms.append(_timed_ms(browser, address))
        if n % 4 == 0:
            look.floor_ms.append(_timed_ms(browser, FLOOR))
    return look


def _timed_ms(browser: Client, address: str) -> float:
    started = perf_counter()
    _get(browser, address)
    return (perf_counter() - started) * 1000


def _get(browser: Client, address: str) -> None:
    response = browser.get(address)
    if response.status_code != 200 or "took over" in response.content.decode():
        raise RuntimeError(f"{address} shows no rows: {response.status_code}")


def _path(address: str) -> str:
    return address.removeprefix("/admin/delayq/") or "the dashboard"
