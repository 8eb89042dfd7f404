"""What a worker costs that has nothing to do."""

import time
from statistics import median

import redis

from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.scale import scaled
from benchmarks.site import fill, site
from benchmarks.worker import worker

SETTLING_S = 2.0


def run() -> list[Result]:
    """Round trips to Redis a second, and the share of a core."""
    seconds = scaled(10, least=5)
    with site() as server, server.client() as client, worker(server) as running:
        fill(1_000, delay="1d")
        running.wait_until_up()
        time.sleep(SETTLING_S)
        rounds = [_round(client, running.pid, seconds) for _ in range(ROUNDS)]
    trips_a_second, percent = (median(figures) for figures in zip(*rounds, strict=True))
    return [
        at_most("an idle worker: round trips", trips_a_second, 3, "a second"),
        at_most("an idle worker: processor", percent, 0.5, "% of a core"),
    ]


def _round(client: redis.Redis, pid: int, seconds: int) -> tuple[float, float]:
    trips, cpu_s, started = _round_trips(client), _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    trips, cpu_s, elapsed = _round_trips(client) - trips, _cpu_s(pid) - cpu_s, time.monotonic() - started
    return (trips - 1) / elapsed, 100 * cpu_s / elapsed  # one of the reads was our own


def _round_trips(client: redis.Redis) -> int:
    """What all clients have sent so far: the server reads each request once, however many commands it holds."""
    return int(client.info("stats")["total_reads_processed"])


def _cpu_s(pid: int) -> float:
    """The time that all threads of a process have run. The clock's number is what clock_getcpuclockid(3) gives."""
    return time.clock_gettime(~pid << 3 | 2)
