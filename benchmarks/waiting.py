"""Measure draining while many other messages wait, against draining while few wait."""

from benchmarks.drains import drain_s
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.server import Server, private_server
from benchmarks.site import fill, sending_to

FEW = 10_000
TURNS = 5
"""The number of turns. Each takes a second or two, so one alone would tell more about the machine than the queue."""


def run() -> list[Result]:
    """Return the messages a second while many wait, as a ratio to those while few wait."""
    count, many = scaled(100_000, least=1_000), scaled(1_000_000, least=2 * FEW)
    with private_server() as crowded, private_server() as calm:
        _fill_pending(crowded, many)
        _fill_pending(calm, FEW)
        rates = in_turn(lambda: _drain_s(crowded, count), lambda: _drain_s(calm, count), count, TURNS)
    return [at_least(f"draining with {many:,} waiting / with {FEW:,} waiting", rates.ratio, 0.9, str(rates))]


def _fill_pending(server: Server, count: int) -> None:
    with sending_to(server):
        fill(count, delay="1d")


def _drain_s(server: Server, count: int) -> float:
    with sending_to(server):
        fill(count)
    return drain_s(server, count)
