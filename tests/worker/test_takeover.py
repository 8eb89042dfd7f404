"""What a dead worker held is taken over at once on its host, and nothing that a living one holds."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, WorkerInfo
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.core import transitions
from django_delayq.core.message import State
from django_delayq.worker.takeover import is_gone, processes_of, signature_of
from tests.servers import Server
from tests.worker.dead import (
    GONE,
    LEADERLESS,
    LEASE_MS,
    LIVING,
    claim_again,
    hold,
    other_process,
    take_over,
    takeovers_of,
)
from tests.worker.processes import Site, site_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began")


@pytest.fixture
def broker(redis_delayq: dict[str, Any]) -> Backend:
    """Redis alone."""
    redis_delayq["OPTIONS"] = {"unknown_keys": "allow"}
    return get_backend()


@pytest.fixture
def site(redis_delayq: dict[str, Any], process_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site whose leases last for longer than any test waits."""
    redis_delayq["OPTIONS"] = {"lease": f"{LEASE_MS // 1_000}s"}
    with site_with(redis_delayq, RedisBroker(get_alias()), process_env, redis_server.directory) as site:
        yield site


def states(broker: Backend, ids: Sequence[str]) -> set[tuple[State, int]]:
    """The state and the crashes of messages."""
    found = [broker.queue.get(id) for id in ids]
    return {(one.state, one.crashes) for one in found if one is not None}


@pytest.mark.parametrize("case", GONE)
def test_what_a_worker_held_that_is_gone_runs_again_at_once(broker: Backend, case: str) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], GONE[case](dead))
        take_over(broker)
    assert states(broker, ["a"]) == {(State.READY, 1)}
    assert broker.presence.workers() == []
    assert broker.queue.apply([transitions.finish(held)]) == [False]
    (again,) = claim_again(broker, 1)
    assert (again.failures, again.crashes) == (0, 1)


def test_the_answer_to_a_heartbeat_names_a_worker_that_died_just_now(broker: Backend) -> None:
    hold(broker, ["a"], [])
    heard = broker.presence.heartbeat(WorkerInfo("ours", ["default"], ["k"], 0, 0))
    assert [one.name for one in heard.workers or ()] == ["ours", "theirs"]


@pytest.mark.parametrize("case", LIVING)
def test_what_a_worker_holds_that_may_live_is_left_to_it(broker: Backend, case: str) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], LIVING[case](dead))
        take_over(broker)
        assert broker.queue.renew([held], LEASE_MS) == [True]
    assert broker.queue.apply([transitions.finish(held)]) == [True]


def test_a_process_whose_first_thread_has_ended_before_the_others_lives() -> None:
    with other_process(LEADERLESS) as dead:
        dead.until_state("Z")
        (process,) = dead.infos
        assert not is_gone(process)
        dead.kill()
        assert is_gone(process)


def test_a_worker_that_may_not_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with other_process() as dead:
        (process,) = dead.infos
        monkeypatch.setattr("django_delayq.worker.takeover._PROC", tmp_path)  # as under hidepid
        assert not is_gone(process)
        dead.kill()
        assert is_gone(process)


def _unsigned(forged: WorkerInfo) -> str:
    return ""


def _for_another_name(forged: WorkerInfo) -> str:
    return signature_of(replace(forged, name="dead"))


def _for_other_processes(forged: WorkerInfo) -> str:
    return signature_of(replace(forged, processes=processes_of(os.getpid())))


@pytest.mark.parametrize("sign", [_unsigned, _for_another_name, _for_other_processes])
def test_a_forged_heartbeat_ends_no_lease(broker: Backend, sign: Callable[[WorkerInfo], str]) -> None:
    with other_process() as living, other_process() as dead:
        (held,) = hold(broker, ["a"], living.infos, at_most_once=True)
        forged = WorkerInfo("theirs", ["default"], ["k"], 0, 0, processes=GONE["killed"](dead))
        forged.signature = sign(forged)
        broker.presence.heartbeat(forged)
        take_over(broker)
    assert broker.queue.renew([held], LEASE_MS) == [True]


def test_a_heartbeat_of_the_dead_that_is_put_back_has_nothing_looked_for_again(
    broker: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    takeovers = takeovers_of(broker)
    with other_process() as dead:
        hold(broker, ["a"], GONE["killed"](dead))
        (theirs,) = broker.presence.workers()
        for _ in range(3):
            broker.presence.heartbeat(theirs)
            take_over(broker, takeovers)
    assert [record.message for record in caplog.records].count(
        "Worker theirs is dead: what it held is taken over."
    ) == 1


@pytest.mark.parametrize(("fallbacks", "state"), [([], State.RUNNING), ([settings.SECRET_KEY], State.READY)])
def test_a_worker_is_known_by_a_secret_key_that_was_replaced_as_long_as_it_is_a_fallback(
    broker: Backend, settings: Settings, fallbacks: list[str], state: State
) -> None:
    with other_process() as dead:
        hold(broker, ["a"], GONE["killed"](dead))
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", fallbacks
        take_over(broker)
    assert {found for found, _ in states(broker, ["a"])} == {state}


def test_nothing_is_taken_over_where_the_system_cannot_tell(
    broker: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], GONE["killed"](dead))
        monkeypatch.setattr("django_delayq.worker.takeover._host", lambda: "")
        assert processes_of(dead.process.pid) == []
        take_over(broker)
    assert broker.queue.renew([held], LEASE_MS) == [True]


def test_what_must_not_start_twice_is_buried(broker: Backend) -> None:
    with other_process() as dead:
        hold(broker, ["a"], GONE["killed"](dead), at_most_once=True)
        take_over(broker)
    assert states(broker, ["a"]) == {(State.FAILED, 1)}
    (buried,) = broker.queue.failed(10)
    assert buried.error == transitions.LAPSED_AT_MOST_ONCE


def test_more_than_one_call_looks_at_are_all_taken_over(broker: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.maintenance.PAGE", 7)
    ids, others = [f"{n}" for n in range(40)], [f"other{n}" for n in range(20)]
    hold(broker, others, [], worker="living")
    with other_process() as dead:
        hold(broker, ids, GONE["killed"](dead))
        take_over(broker)
    assert states(broker, ids) == {(State.READY, 1)}
    assert states(broker, others) == {(State.RUNNING, 0)}


def test_two_that_take_over_at_the_same_time_do_it_once(broker: Backend) -> None:
    ids = [f"{n}" for n in range(50)]
    with other_process() as dead:
        held = hold(broker, ids, GONE["killed"](dead))
        others = [RedisBroker(get_alias()) for _ in range(4)]
        with ThreadPoolExecutor(len(others)) as pool:
            list(pool.map(take_over, others))
        for other in others:
            other.close()
    assert len(held) == len(ids)
    assert states(broker, ids) == {(State.READY, 1)}
    assert broker.queue.counts().totals["reclaimed"] == len(ids)
    assert len(claim_again(broker, len(ids))) == len(ids)


def test_a_worker_that_stopped_in_good_order_is_not_taken_for_dead(
    broker: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], GONE["killed"](dead))
        broker.presence.leave("theirs")
        take_over(broker)
    assert broker.queue.renew([held], LEASE_MS) == [True]
    assert caplog.text == ""


def test_a_worker_that_is_started_after_one_was_killed_runs_at_once_what_that_one_ran(site: Site) -> None:
    site.send("a", "b", key="hold")
    killed = site.worker()
    assert {site.line.next().id, site.line.next().id} == {"a", "b"}
    killed.kill()
    other = site.worker()
    calls = [site.line.next(), site.line.next()]
    assert {(call.id, call.attempt, call.pid) for call in calls} == {("a", 1, other.pid), ("b", 1, other.pid)}
    for call in calls:
        call.release()
    assert {site.line.next().what, site.line.next().what} == {"ran"}
    assert other.stop() == 0
    assert site.totals()["finished"] == 2


def test_what_a_supervised_worker_ran_is_taken_over_once_its_supervisor_is_dead_too(site: Site) -> None:
    site.send("a", key="hold")
    killed = site.worker("--processes", "1")
    held = site.line.next()
    killed.kill()
    assert held.ended()
    other = site.worker()
    again = site.line.next()
    assert (again.id, again.attempt, again.pid) == ("a", 1, other.pid)
    again.release()
    assert site.line.next().what == "ran"
    assert other.stop() == 0


def test_a_worker_that_runs_beside_one_that_is_killed_runs_at_once_what_that_one_ran(site: Site) -> None:
    site.send("a", key="hold")
    killed = site.worker()
    assert site.line.next().id == "a"
    other = site.worker()
    other.until_says("Connections at most")
    killed.kill()
    again = site.line.next()
    assert (again.id, again.pid) == ("a", other.pid)
    other.until_says("is dead: what it held is taken over")
    again.release()
    assert other.stop() == 0
