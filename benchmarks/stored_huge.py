"""Measure like `stored_waiting`, but with twice as many waiting rows, and measure sending and `delayq status` too."""

from collections.abc import Callable

from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.stored_send import SLICE, send
from benchmarks.stored_status import seconds, status
from benchmarks.stored_waiting import FEW, crowded_and_calm, draining


def run() -> list[Result]:
    """Return the ratios of messages a second, and of calls of `delayq status` a second."""
    many = scaled(10_000_000, least=2 * FEW)
    with crowded_and_calm(many) as (crowded, calm):
        crowded.tidy()
        calm.tidy()

        def ratio(what: str, work: Callable[[], None], items: int) -> Result:
            rates = in_turn(lambda: seconds(crowded, work), lambda: seconds(calm, work), items, scaled(20))
            return at_least(f"{what} with {many:,} rows waiting / with {FEW:,}", rates.ratio, 0.9, str(rates))

        return [
            ratio("sending one at a time", send, SLICE),
            ratio("delayq status", status, 1),
            draining(crowded, calm, many),
        ]
