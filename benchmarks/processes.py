"""Draining a handler that burns the processor: in two child processes against in the threads of one."""

from benchmarks.delayed import burn
from benchmarks.drains import drain_s
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import DATA, site
from django_delayq import send_delay_messages


def run() -> list[Result]:
    """The ratio of messages a second."""
    count = scaled(20_000, least=1_000)
    with site() as server:

        def drain(*options: str) -> float:
            send_delay_messages(burn.prepare(DATA) for _ in range(count))
            return drain_s(server, count, *options)

        rates = in_turn(lambda: drain("--processes", "2"), drain, count)
    return [at_least(f"draining {count:,} that burn 200 µs, --processes 2 / one", rates.ratio, 1.6, str(rates))]
