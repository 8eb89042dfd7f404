"""Measure draining with the database alone, against draining with Redis."""

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.settings import ALONE, REDIS
from benchmarks.stored_drains import standing_s
from benchmarks.stored_site import stored_site


def run() -> list[Result]:
    """Return the ratio of messages a second with the database alone to messages a second with Redis."""
    count = scaled(50_000, least=1_000)
    rates = in_turn(lambda: _seconds(ALONE, count), lambda: _seconds(REDIS, count), count)
    return [at_least(f"draining {count:,} with PostgreSQL alone / with Redis", rates.ratio, 0.8, str(rates))]


def _seconds(broker: str, count: int) -> float:
    with stored_site(broker) as site:
        return standing_s(site, count)
