"""Measure lateness with the database alone, like `lateness`."""

from benchmarks.lateness import measure
from benchmarks.result import Result
from benchmarks.settings import ALONE
from benchmarks.stored_site import Databases, mariadb, postgres, sqlite, stored_site


def run() -> list[Result]:
    """Return the 99th percentiles of the lateness, as medians of the rounds, and how many messages ran early."""
    return [
        *_late(postgres, 1_000, 25, ", PostgreSQL alone"),
        *_late(mariadb, 100, 300, ", MariaDB alone"),
        *_late(sqlite, 100, 300, ", SQLite alone"),
    ]


def _late(databases: Databases, per_s: int, most_ms: float, where: str) -> list[Result]:
    with stored_site(ALONE, databases) as site, site.worker() as running:
        return measure(site.server, running, per_s, most_ms, where)
