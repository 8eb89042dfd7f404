"""Real workers on the database alone: what dies under them costs no message."""

import signal
from time import monotonic

from django_delayq.brokers.base import Header, NewMessage, Pause
from tests.worker.processes import Site, kill_and_take_over, kill_with_all_permits, kill_with_starts, release_one_by_one


def hear(site: Site, count: int) -> list[str]:
    """The ids of the next messages that ran."""
    return [site.line.next().id for _ in range(count)]


def send_later(site: Site, delay_ms: int, *ids: str) -> None:
    header = Header("default", "run")
    site.broker.queue.enqueue([NewMessage(id, header, b'""', delay_ms=delay_ms) for id in ids])


def test_messages_run_at_once_and_later(site: Site) -> None:
    worker = site.worker()
    site.send("now")
    assert hear(site, 1) == ["now"]
    send_later(site, 1_500, "soon")
    send_later(site, 3_600_000, "far")
    assert hear(site, 1) == ["soon"]
    assert worker.stop() == 0
    assert site.line.none_waits()
    assert site.totals()["finished"] == 2


def test_another_worker_takes_over_what_a_killed_one_ran(site: Site) -> None:
    kill_and_take_over(site)
    assert site.totals()["finished"] == 2


def test_drain_runs_what_is_due(site: Site) -> None:
    site.send(*(f"{n}" for n in range(20)))
    worker = site.worker("--drain")
    assert worker.wait() == 0
    assert "Drained: 20 finished" in worker.text


def test_what_a_killed_worker_had_read_ahead_is_not_early_and_not_lost(site: Site) -> None:
    killed = site.worker()
    killed.until_says("Connections at most")
    due_from = monotonic() + 3
    send_later(site, 3_000, "later")
    killed.kill()
    other = site.worker()
    assert hear(site, 1) == ["later"]
    assert monotonic() >= due_from
    assert other.stop() == 0


def test_a_frozen_worker_holds_up_no_other_and_one_that_joins_helps(site: Site) -> None:
    frozen = site.worker()
    site.send("first")
    assert hear(site, 1) == ["first"]
    frozen.signal(signal.SIGSTOP)
    other = site.worker()
    ids = {f"{n}" for n in range(50)}
    send_later(site, 500, *sorted(ids))
    assert set(hear(site, 50)) == ids
    frozen.signal(signal.SIGCONT)
    assert other.stop() == frozen.stop() == 0
    assert site.totals()["finished"] == 51
    assert site.line.none_waits()


def test_a_limit_holds_over_all_workers_and_a_killed_one_gives_its_permit_up(site: Site) -> None:
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.send("a", key="only")
    killed = site.worker()
    held = site.line.next()
    site.send("b", key="only")
    other = site.worker()
    other.until_says("Connections at most")
    assert site.line.none_waits()
    killed.kill()
    calls = release_one_by_one(site, held, 2)
    assert sorted(call.id for call in calls) == ["a", "b"]
    assert other.stop() == 0
    assert site.totals()["finished"] == 2


def test_all_permits_of_a_killed_worker_are_anothers_within_a_lease(site: Site) -> None:
    kill_with_all_permits(site)
    assert site.totals()["finished"] == 4


def test_a_killed_worker_makes_no_burst_longer(site: Site) -> None:
    kill_with_starts(site)


def test_what_kills_its_process_thrice_is_buried_and_nothing_else(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("bad", key="die")
    site.send("good", key="run")
    assert sorted(hear(site, 4)) == ["bad", "bad", "bad", "good"]
    worker.until_says("failed for good")
    assert worker.stop() == 0
    assert [(info.id, info.crashes) for info in site.broker.queue.failed(10)] == [("bad", 3)]


def test_no_worker_starts_what_is_paused(site: Site) -> None:
    worker = site.worker()
    worker.until_says("Connections at most")
    site.broker.presence.pause(Pause("default", None, "maintenance"))
    worker.until_says("Paused queue 'default'")
    site.send("waits")
    assert [one.name.split(":")[1] for one in site.broker.presence.workers()] == [str(worker.pid)]
    site.broker.presence.resume("default", None)
    assert hear(site, 1) == ["waits"]
    assert worker.stop() == 0
    assert site.broker.presence.workers() == []
