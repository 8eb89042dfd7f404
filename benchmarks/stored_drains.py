"""Draining with a store, by the real worker."""

from benchmarks.stored_site import StoredSite

ENDED = "SELECT count(*), min(ended_at), max(ended_at) FROM delayq_finish"
FIRST = "SELECT count(*) FROM delayq_finish WHERE ended_at = %s"


def drain_s(site: StoredSite, count: int) -> float:
    """Have a worker run `count` messages that are due. Gives the seconds from its first to its last finish.

    By the rows that it leaves: nothing is asked of the database meanwhile.
    """
    with site.client() as client:
        client.execute("TRUNCATE delayq_finish")
        with site.worker("--drain") as running:
            running.wait()
    return seconds_of(site, count)


def seconds_of(site: StoredSite, count: int) -> float:
    """The seconds from the first to the last finish of `count` messages."""
    with site.client() as client:
        ((finished, first_ms, last_ms),) = client.execute(ENDED).fetchall()
        if finished != count:
            raise RuntimeError(f"The worker finished {finished} of {count} messages.")
        ((already,),) = client.execute(FIRST, [first_ms]).fetchall()
    return float((last_ms - first_ms) / 1000 * count / (count - already))
