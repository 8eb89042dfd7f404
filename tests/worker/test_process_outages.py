"""A worker outlives its Redis."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from tests import servers
from tests.brokers.conftest import name
from tests.scale import scaled
from tests.servers import Server
from tests.worker.processes import Site, site_with

pytestmark = pytest.mark.parametrize("redis_binary", servers.redis_binaries(), ids=name)


@pytest.fixture
def server(start_redis: Callable[..., Server]) -> Server:
    """A Redis of this test's own, which keeps its data over a restart."""
    return start_redis(appendonly="yes", appendfsync="always", requirepass="hush-hush")


@pytest.fixture
def own_site(server: Server, process_env: dict[str, str]) -> Iterator[Site]:
    """A site on it."""
    alias = {"BROKER": "django_delayq.brokers.redis.RedisBroker", "LOCATION": server.url, "STORE": None}
    with site_with(alias, RedisBroker(Alias("default", location=server.url)), process_env, server.directory) as site:
        yield site


def test_a_worker_waits_for_a_redis_that_is_down_at_start(own_site: Site, server: Server) -> None:
    own_site.send("a")
    server.stop()
    worker = own_site.worker()
    worker.until_says("Trying again")
    server.start()
    assert own_site.line.next().id == "a"
    assert worker.stop() == 0
    assert worker.text.count("Trying again") == 1
    assert worker.text.count("The broker is back") == 1
    assert "hush-hush" not in worker.text


def test_a_worker_goes_on_after_a_restart_of_redis(own_site: Site, server: Server) -> None:
    own_site.send("a", key="hold")
    worker = own_site.worker()
    held = own_site.line.next()
    server.kill()
    worker.until_says("Trying again")
    server.start()
    worker.until_says("The broker is back")
    held.release()
    assert own_site.line.next_of("a").what == "ran"
    own_site.send("b")
    assert own_site.line.next_of("b").what == "ran"
    assert worker.stop() == 0
    assert own_site.totals()["finished"] == 2
    assert "hush-hush" not in worker.text


def test_cut_connections_and_forgotten_scripts_harm_nothing(own_site: Site, server: Server) -> None:
    worker = own_site.worker()
    for round in range(3):
        server.cut()
        server.forget_scripts()
        own_site.send(f"{round}")
        assert own_site.line.next().id == f"{round}"
    assert worker.stop() == 0
    assert own_site.totals()["finished"] == 3


def test_a_hung_redis_is_waited_for(own_site: Site, server: Server) -> None:
    worker = own_site.worker()
    own_site.send("a")
    assert own_site.line.next().id == "a"
    server.freeze()
    worker.until_says("Trying again")
    server.thaw()
    worker.until_says("The broker is back")
    own_site.send("b")
    assert own_site.line.next().id == "b"
    assert worker.stop() == 0


def test_a_redis_that_hangs_for_longer_than_a_lease_has_nothing_run_twice(own_site: Site, server: Server) -> None:
    settings = json.loads(own_site.env["DELAYQ_TEST"]) | {"OPTIONS": {"lease": "2s"}}
    own_site.env["DELAYQ_TEST"] = json.dumps(settings)
    workers = [own_site.worker(), own_site.worker()]
    own_site.send("a", key="hold")
    held = own_site.line.next()
    server.freeze()
    for worker in workers:
        worker.until_says("Trying again")
    server.thaw()
    for worker in workers:
        worker.until_says("The broker is back")
    own_site.send("b")
    assert own_site.line.next().id == "b"
    held.release()
    ran = own_site.line.next()
    assert (ran.what, ran.id, ran.pid) == ("ran", "a", held.pid)
    assert [worker.stop() for worker in workers] == [0, 0]
    assert own_site.line.none_waits()
    assert own_site.totals()["finished"] == 2
    assert own_site.totals()["reclaimed"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"maxmemory_policy": "allkeys-lru", "maxmemory": "100mb"}, "allkeys-lru"), ({"requirepass": "other"}, "")],
    ids=["evicting", "wrong password"],
)
def test_a_redis_that_must_not_be_used_is_refused_at_start(
    start_redis: Callable[..., Server], own_site: Site, options: dict[str, Any], said: str
) -> None:
    unfit = start_redis(**options)
    location = unfit.url.replace("other", "hush-hush")
    settings = json.loads(own_site.env["DELAYQ_TEST"]) | {"LOCATION": location}
    own_site.env["DELAYQ_TEST"] = json.dumps(settings)
    worker = own_site.worker()
    assert worker.wait() == 1
    assert said in worker.text
    assert "CommandError" in worker.text
    assert "Traceback" not in worker.text
    assert "hush-hush" not in worker.text


def test_the_heartbeat_file_ages_while_redis_is_away(own_site: Site, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    own_site.send("a")
    worker = own_site.worker("--heartbeat-file", str(path))
    own_site.line.next()
    server.stop()
    worker.until_says("Trying again")
    path.unlink()
    server.start()
    worker.until_says("The broker is back")
    own_site.send("b")
    own_site.line.next()
    assert worker.stop() == 0
    assert path.exists()


def test_faults_under_load_cost_no_message_and_double_none(own_site: Site, server: Server) -> None:
    worker = own_site.worker()
    faults = [server.cut, server.forget_scripts, server.restart, server.cut]
    heard: list[str] = []
    for number, fault in enumerate(faults):
        ids = [f"{number}-{n}" for n in range(scaled(100))]
        own_site.send(*ids)
        heard.append(own_site.line.next().id)  # the worker is amid them
        fault()
        heard += [own_site.line.next().id for _ in ids[1:]]
    assert worker.stop() == 0
    assert len(heard) == len(set(heard)) == own_site.totals()["finished"]
    assert own_site.line.none_waits()


@pytest.mark.parametrize("fault", ["read_only", "memory_full"])
def test_a_redis_that_takes_no_writes_for_a_while_costs_nothing(own_site: Site, server: Server, fault: str) -> None:
    own_site.send("a", key="hold")
    worker = own_site.worker()
    held = own_site.line.next()
    with getattr(server, fault)():
        held.release()
        if fault == "read_only":
            worker.until_says("Trying again")
    own_site.send("b")
    own_site.line.next_of("b")
    assert worker.stop() == 0
    assert own_site.totals()["finished"] == 2
