"""What servers and workers have spent so far."""

import time

import redis


def round_trips(client: redis.Redis) -> int:
    """What all clients have sent so far: a request of up to 16 KiB is read once, however many commands it holds."""
    return int(client.info("stats")["total_reads_processed"])


def commands(client: redis.Redis) -> int:
    """How many commands the server has run, those of scripts too."""
    return sum(stats["calls"] for stats in client.info("commandstats").values())


def cpu_s(pid: int) -> float:
    """The time that all threads of a process have run. The clock's number is what clock_getcpuclockid(3) gives."""
    return time.clock_gettime(~pid << 3 | 2)
