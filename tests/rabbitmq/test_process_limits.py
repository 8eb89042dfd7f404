"""Limits over all workers with RabbitMQ: the store keeps them."""

from tests.servers.cluster import until
from tests.worker.processes import Site


def test_one_runs_at_a_time_over_two_workers(site: Site) -> None:
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.send("a", "b", key="only")
    workers = [site.worker(), site.worker()]
    for _ in range(2):
        held = site.line.next()
        assert held.what == "holds"
        until(lambda: all("Connections at most" in worker.text for worker in workers))
        assert site.line.none_waits()
        held.release()
        assert site.line.next_of(held.id).what == "ran"
    assert [worker.stop() for worker in workers] == [0, 0]
