"""Measure draining with a store while very many other messages wait, against the same while few wait."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.stored_drains import drain_s
from benchmarks.stored_rows import insert_waiting
from benchmarks.stored_site import StoredSite, stored_server

FEW = 5_000


def run() -> list[Result]:
    """Return the messages a second while many wait, as a ratio to those while few wait."""
    many = scaled(5_000_000, least=2 * FEW)
    with crowded_and_calm(many) as (crowded, calm):
        return [draining(crowded, calm, many)]


@contextmanager
def crowded_and_calm(many: int) -> Iterator[tuple[StoredSite, StoredSite]]:
    """Yield a site where `many` messages wait, and one where few do."""
    with stored_server() as crowded, stored_server() as calm:
        _have_waiting(crowded, many)
        _have_waiting(calm, FEW)
        yield crowded, calm


def draining(crowded: StoredSite, calm: StoredSite, many: int) -> Result:
    """Return the messages a second while many wait, as a ratio to those while few wait."""
    count = scaled(50_000, least=1_000)
    rates = in_turn(lambda: _drain_s(crowded, count), lambda: _drain_s(calm, count), count)
    return at_least(f"draining with {many:,} rows waiting / with {FEW:,}", rates.ratio, 0.9, str(rates))


def _have_waiting(site: StoredSite, count: int) -> None:
    with site.client() as client:
        insert_waiting(client, count)


def _drain_s(site: StoredSite, count: int) -> float:
    with site.sending():
        site.fill_due(count)
        return drain_s(site, count)
