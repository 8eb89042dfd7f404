"""The admin's pages on very many rows: how long one takes, from the request to the last byte, and its queries."""

import math
from collections.abc import Iterator
from statistics import median
from time import perf_counter, time_ns
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings

from benchmarks import admin_rows
from benchmarks.admin_rows import COMMON_FAILURE, COMMON_KEY, COMMON_QUEUE, RARE_FAILURE, RARE_KEY, RARE_QUEUE
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.stored_site import StoredSite, stored_site
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


def run() -> list[Result]:
    """The slowest page and the one with the most queries."""
    count = scaled(5_000_000, least=1_000)
    with stored_site() as site, override_settings(DATABASE_ROUTERS=[SiteTables(site.using)]):
        with site.client() as client:
            admin_rows.insert(client, count, time_ns() // 1_000_000)
        site.tidy()
        browser = Client()
        browser.force_login(User.objects.create_superuser("root"))
        seen = {address: _look(browser, site, address) for address in addresses(site)}
    slowest = max(seen, key=lambda address: seen[address][0])
    longest = max(seen, key=lambda address: seen[address][1])
    half = median(ms for ms, _ in seen.values())
    pages = f"{len(seen)} admin pages with {count:,} rows a table"
    return [
        at_most(
            f"{pages}, p95 of the slowest",
            seen[slowest][0],
            MOST_MS,
            "ms",
            f"{_path(slowest)}; half of them {half:.0f} ms",
        ),
        at_most(f"{pages}, the most of one", seen[longest][1], MOST_QUERIES, "queries", _path(longest)),
    ]


def addresses(site: StoredSite) -> Iterator[str]:
    """Every list with each filter and search, and a page of each kind."""
    yield "/admin/delayq/"
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


def _look(browser: Client, site: StoredSite, address: str) -> tuple[float, int]:
    """The 95th percentile of how long the page takes in ms, and how many queries it needs, BEGIN and COMMIT aside."""
    _get(browser, address)
    with CaptureQueriesContext(connections[site.using]) as queries:
        _get(browser, address)
    asked = sum(query["sql"] not in ("BEGIN", "COMMIT") for query in queries)
    times = sorted(_timed_ms(browser, address) for _ in range(LOOKS))
    return times[math.ceil(len(times) * 0.95) - 1], asked


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
