"""Real workers whose Redis dies, hangs or loses all: they go on from the tables alone, and go back by themselves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.brokers.base import Pause
from tests.scale import scaled
from tests.servers import Server
from tests.store.support import site_on
from tests.worker.processes import Site, WorkerProcess

DEGRADED, BACK = "Degraded: the broker has been away", "No longer degraded"

pytestmark = pytest.mark.parametrize(  # what dies is the Redis: two databases will do
    "database", ["sqlite_database", "postgres_database"], ids=["sqlite", "postgresql"], indirect=True
)


@pytest.fixture(params=[False, True], ids=["losing all", "keeping its data"])
def server(request: pytest.FixtureRequest, start_redis: Callable[..., Server]) -> Server:
    """A Redis of this test's own, which loses all in a restart, or nothing."""
    return start_redis(appendonly="yes", appendfsync="always") if request.param else start_redis()


@pytest.fixture
def redis_url(server: Server) -> str:
    """LOCATION of that one."""
    return server.url


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], server: Server) -> Iterator[Site]:
    """A site on it, whose workers don't wait for long."""
    stored_delayq["STORE"] = {"DEGRADED_AFTER": "1s"}
    with site_on(stored_delayq, database_env, server) as site:
        yield site


def _run_all(site: Site, *ids: str) -> None:
    """Send messages, and hear each of them once."""
    site.send(*ids)
    assert sorted(site.line.next().id for _ in ids) == sorted(ids)


def _some(name: str) -> list[str]:
    return [f"{name}-{n}" for n in range(scaled(30))]


def _workers(site: Site) -> list[WorkerProcess]:
    """Two that have begun."""
    workers = [site.worker(), site.worker()]
    _until_all_say("Queues: ", *workers)
    return workers


def _until_all_say(text: str, *workers: WorkerProcess) -> None:
    for worker in workers:
        worker.until_says(text)


def test_workers_go_on_while_redis_is_down_and_run_nothing_twice(site: Site, server: Server) -> None:
    workers = _workers(site)
    site.send("held", key="hold")
    held = site.line.next()
    _run_all(site, *_some("before"))
    server.kill()
    _until_all_say(DEGRADED, *workers)
    _run_all(site, *_some("without"))
    server.start()
    _until_all_say(BACK, *workers)
    _run_all(site, *_some("after"))
    held.release()
    assert site.line.next_of("held").what == "ran"
    assert [worker.stop() for worker in workers] == [0, 0]
    assert site.totals()["finished"] == 3 * len(_some("")) + 1
    assert site.line.none_waits()
    for worker in workers:
        assert worker.text.count(DEGRADED) == worker.text.count(BACK) == 1
        # A call that was on its way may fail by another error than those after it.
        errors = [line.split(" ERROR ")[1] for line in worker.text.splitlines() if "Trying again" in line]
        assert errors
        assert len(errors) == len(set(errors))


@pytest.mark.parametrize("server", [True], ids=["keeping its data"], indirect=True)
def test_workers_go_on_while_redis_hangs_and_run_nothing_twice(site: Site, server: Server) -> None:
    workers = _workers(site)
    _run_all(site, *_some("before"))
    server.freeze()
    _run_all(site, *_some("without"))
    _until_all_say(DEGRADED, *workers)
    _run_all(site, *_some("degraded"))
    server.thaw()
    _until_all_say(BACK, *workers)
    _run_all(site, *_some("after"))
    assert [worker.stop() for worker in workers] == [0, 0]
    assert site.totals()["finished"] == 4 * len(_some(""))
    assert site.line.none_waits()


@pytest.mark.parametrize("server", [False], ids=["losing all"], indirect=True)
def test_workers_go_on_while_redis_is_full_and_run_nothing_twice(site: Site, server: Server) -> None:
    workers = _workers(site)
    _run_all(site, *_some("before"))
    with server.memory_full():
        _run_all(site, *_some("without"))
        _until_all_say(DEGRADED, *workers)
        _run_all(site, *_some("degraded"))
        assert not any(BACK in worker.text for worker in workers)
    _until_all_say(BACK, *workers)
    _run_all(site, *_some("after"))
    assert [worker.stop() for worker in workers] == [0, 0]
    assert site.totals()["finished"] == 4 * len(_some(""))
    assert site.line.none_waits()


@pytest.mark.parametrize("server", [False], ids=["losing all"], indirect=True)
def test_a_worker_that_starts_while_redis_is_down_works_from_the_tables(site: Site, server: Server) -> None:
    server.kill()
    site.send("sent")
    worker = site.worker()
    assert site.line.next().id == "sent"
    worker.until_says(DEGRADED)
    server.start()
    worker.until_says(BACK)
    _run_all(site, "after")
    assert worker.stop() == 0


@pytest.mark.parametrize("server", [False], ids=["losing all"], indirect=True)
def test_pauses_hold_and_are_made_and_ended_while_redis_is_down(site: Site, server: Server) -> None:
    site.broker.presence.pause(Pause(None, "arun", "x"))
    worker = site.worker()
    worker.until_says("Paused key 'arun'")
    server.kill()
    worker.until_says(DEGRADED)
    site.broker.presence.pause(Pause("default", None, "y"))
    worker.until_says("Paused queue 'default'")
    site.send("a")
    site.send("b", key="arun")
    assert site.broker.presence.resume("default", None)
    assert site.line.next().id == "a"
    server.start()
    worker.until_says(BACK)
    assert site.broker.presence.resume(None, "arun")
    assert site.line.next().id == "b"
    assert worker.stop() == 0


@pytest.mark.parametrize("server", [False], ids=["losing all"], indirect=True)
def test_a_pause_outlives_the_loss_of_all_that_redis_holds(site: Site, server: Server) -> None:
    site.broker.presence.pause(Pause(None, "arun", "x"))
    with server.client() as client:
        client.flushall()
    assert [pause.key for pause in site.broker.presence.pauses()] == ["arun"]
    worker = site.worker()
    site.send("held", key="arun")
    _run_all(site, "a")
    assert site.broker.presence.resume(None, "arun")
    assert site.line.next().id == "held"
    assert worker.stop() == 0
