"""Measure lateness with a store, like `lateness`. Each message must be committed before its alarm is set."""

from benchmarks.lateness import measure
from benchmarks.result import Result
from benchmarks.stored_site import stored_site

PER_S = 200


def run() -> list[Result]:
    """Return the 99th percentile of the lateness, as the median of the rounds, and how many messages ran early."""
    with stored_site() as site, site.worker() as running:
        return measure(site.server, running, PER_S, 8, " with a store")
