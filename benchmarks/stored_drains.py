"""Drain due messages of a store with the real worker."""

import psycopg

from benchmarks.site import fill
from benchmarks.stored_site import StoredSite
from benchmarks.worker import Worker

LONGEST_S, LOOK_S = 1_800, 0.2
ENDED = "SELECT count(*), min(ended_at), max(ended_at) FROM delayq_finish"
FIRST = "SELECT count(*) FROM delayq_finish WHERE ended_at = %s"


def drain_s(site: StoredSite, count: int) -> float:
    """Let a worker run `count` due messages. Return the seconds from its first to its last finish.

    The times are read afterwards from the rows, so that meanwhile nobody else queries the database.
    """
    with site.client() as client:
        client.execute("TRUNCATE delayq_finish")
        with site.worker("--drain") as running:
            running.wait()
    return seconds_of(site, count)


def run_standing(site: StoredSite, count: int, *options: str) -> None:
    """Let a worker that does not stop run messages, until `count` have finished."""
    with site.worker(*options) as running, site.client() as client:
        wait_until_ended(client, running, count)


def standing_s(site: StoredSite, count: int) -> float:
    """Send due messages, and let a worker that does not stop run them.

    Return the seconds from its first to its last finish.
    """
    with site.client() as client:
        client.execute("TRUNCATE delayq_finish")
    fill(count)
    run_standing(site, count)
    return seconds_of(site, count)


def wait_until_ended(client: psycopg.Connection, running: Worker, count: int) -> None:
    """Wait until `count` messages have finished."""

    def ended() -> bool:
        return bool(client.execute(ENDED).fetchall()[0][0] >= count)

    running.wait_until(ended, f"{count} messages have finished", LONGEST_S, LOOK_S)


def seconds_of(site: StoredSite, count: int) -> float:
    """Return the seconds from the first to the last finish of `count` messages."""
    with site.client() as client:
        ((finished, first_ms, last_ms),) = client.execute(ENDED).fetchall()
        if finished != count:
            raise RuntimeError(f"The worker finished {finished} of {count} messages.")
        ((already,),) = client.execute(FIRST, [first_ms]).fetchall()
    return float((last_ms - first_ms) / 1000 * count / (count - already))
