"""A limit over all workers, of real processes."""

from tests.servers.cluster import until
from tests.worker.processes import Site


def test_the_slot_of_a_killed_worker_is_anothers_within_a_lease(site: Site) -> None:
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.send("a", key="only")
    killed = site.worker()
    held = site.line.next()
    site.send("b", key="only")
    other = site.worker()
    until(lambda: site.totals().get("released", 0) > 0)
    assert site.line.none_waits()
    killed.kill()
    held.release()
    ended: list[str] = []
    while len(ended) < 2:
        call = site.line.next()
        assert (call.what, call.attempt) == ("holds", 1)
        assert site.line.none_waits()
        call.release()
        ended.append(site.line.next_of(call.id).id)
    assert sorted(ended) == ["a", "b"]
    assert other.stop() == 0
    assert site.totals()["finished"] == 2
