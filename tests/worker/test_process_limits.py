"""A limit over all workers, of real processes."""

import pytest

from tests.servers.cluster import until
from tests.worker.processes import Site, kill_with_all_permits, kill_with_starts, release_one_by_one


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
    calls = release_one_by_one(site, held, 2)
    assert [call.attempt for call in calls] == [1, 1]
    assert sorted(call.id for call in calls) == ["a", "b"]
    assert other.stop() == 0
    assert site.totals()["finished"] == 2


def test_all_permits_of_a_killed_worker_are_anothers_within_a_lease(site: Site) -> None:
    kill_with_all_permits(site)
    assert site.totals()["finished"] == 4


def test_a_killed_worker_makes_no_burst_longer(site: Site) -> None:
    kill_with_starts(site)


@pytest.mark.parametrize(("key", "most"), [("pair", 2), ("each", 1)])
def test_messages_of_one_claim_have_a_slot_each(site: Site, key: str, most: int) -> None:
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.send("a", "b", "c", key=key, data="the same")
    workers = [site.worker(), site.worker()]
    held = [site.line.next() for _ in range(most)]
    until(lambda: site.totals().get("released", 0) > 0)
    assert site.line.none_waits()
    for call in held:
        call.release()
    ended: list[str] = []
    while len(ended) < 3:
        call = site.line.next()
        call.release()
        if call.what == "ran":
            ended.append(call.id)
    assert sorted(ended) == ["a", "b", "c"]
    for worker in workers:
        worker.until_says("Connections at most")
    assert [worker.stop() for worker in workers] == [0, 0]
