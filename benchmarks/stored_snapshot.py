"""Measure draining while another session of the site keeps a transaction open, against the same without one.

Its snapshot is older than the first message, so PostgreSQL can't remove ended rows from the tables and indexes.
"""

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.settings import ALONE, REDIS
from benchmarks.stored_drains import standing_s
from benchmarks.stored_site import StoredSite, stored_server


def run() -> list[Result]:
    """Return the ratios of messages a second."""
    return [_ratio("with Redis", REDIS, 0.9), _ratio("the database alone", ALONE, 0.7)]


def _ratio(where: str, broker: str, bound: float) -> Result:
    ended, count = scaled(500_000, least=5_000), scaled(50_000, least=1_000)
    with stored_server(broker) as held, stored_server(broker) as free, held.client() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        for site in (held, free):
            _run_s(site, ended)
        rates = in_turn(lambda: _run_s(held, count), lambda: _run_s(free, count), count)
    what = f"draining with a transaction open since {ended:,} ended / without it, {where}"
    return at_least(what, rates.ratio, bound, str(rates))


def _run_s(site: StoredSite, count: int) -> float:
    with site.sending():
        return standing_s(site, count)
