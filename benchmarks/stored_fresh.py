"""Draining what was just sent into a fresh database, which nobody has analysed, against what one writes by hand.

A worker that stands waiting for more, as in production; and a table of jobs, the ORM, `SKIP LOCKED`, 100 rows a
transaction. Each in a database of its own, made for the round.
"""

import time

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.stored_drains import ENDED, seconds_of
from benchmarks.stored_peer import add_jobs, run_jobs_s
from benchmarks.stored_site import stored_site

AT_ONCE = 100


def run() -> list[Result]:
    """The ratio of messages a second."""
    count = scaled(50_000, least=1_000)
    rates = in_turn(lambda: _ours_s(count), lambda: _peer_s(count), count)
    what = f"draining {count:,} just sent into a fresh database / an ORM worker, {AT_ONCE} rows a transaction"
    return [at_least(what, rates.ratio, 0.2, str(rates))]


def _ours_s(count: int) -> float:
    with stored_site() as site:
        fill(count)
        with site.worker(), site.client() as client:
            while client.execute(ENDED).fetchall()[0][0] < count:
                time.sleep(0.5)
        return seconds_of(site, count)


def _peer_s(count: int) -> float:
    with stored_site() as site:
        add_jobs(site, count)
        return run_jobs_s(site, AT_ONCE)
