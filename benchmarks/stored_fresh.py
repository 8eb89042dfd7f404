"""Measure draining messages just sent into a fresh database, against a queue that a site would write by hand.

Ours is a worker that does not stop, as in production. The one by hand is a table of jobs, read with the ORM and
`SKIP LOCKED`, 100 rows a transaction. Each gets a new database in each round. One ratio is measured without `ANALYZE`,
the other right after it.
"""

from functools import partial

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import fill
from benchmarks.stored_drains import run_standing, seconds_of
from benchmarks.stored_peer import add_jobs, run_jobs_s
from benchmarks.stored_site import StoredSite, stored_site

AT_ONCE = 100
AS_IT_IS, ANALYSED = "", "ANALYZE"


def run() -> list[Result]:
    """Return the ratios of messages a second."""
    return [_ratio("a fresh database", AS_IT_IS, 0.5), _ratio("a database analysed since", ANALYSED, 0.65)]


def _ratio(where: str, prepare: str, bound: float) -> Result:
    count = scaled(50_000, least=1_000)
    rates = in_turn(partial(_ours_s, count, prepare), partial(_peer_s, count, prepare), count)
    what = f"draining {count:,} just sent into {where} / an ORM worker, {AT_ONCE} rows a transaction"
    return at_least(what, rates.ratio, bound, str(rates))


def _ours_s(count: int, prepare: str) -> float:
    with stored_site() as site:
        fill(count)
        _execute(site, prepare)
        run_standing(site, count)
        return seconds_of(site, count)


def _peer_s(count: int, prepare: str) -> float:
    with stored_site() as site:
        add_jobs(site, count)
        _execute(site, prepare)
        return run_jobs_s(site, AT_ONCE)


def _execute(site: StoredSite, statement: str) -> None:
    if statement:
        with site.client() as client:
            client.execute(statement)
