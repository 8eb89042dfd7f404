"""What a dead worker held is taken over at once on its host, also where its leases are rows, and counted as a lapse."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from django_delayq.core import transitions
from django_delayq.core.history import Ended, read
from django_delayq.core.message import State
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.servers import Server
from tests.store.support import site_on
from tests.store.test_locked_rows import locked
from tests.worker.dead import GONE, LEASE_MS, LIVING, claim_again, hold, other_process, take_over
from tests.worker.processes import Site, kill_and_take_over

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began")


def states(broker: DatabaseBackend, ids: Sequence[str]) -> set[tuple[State, int]]:
    """The state and the crashes of messages."""
    found = [broker.queue.get(id) for id in ids]
    return {(one.state, one.crashes) for one in found if one is not None}


@pytest.mark.parametrize("case", GONE)
def test_what_a_worker_held_that_is_gone_runs_again_at_once(broker: DatabaseBackend, case: str) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], GONE[case](dead))
        take_over(broker)
    assert states(broker, ["a"]) == {(State.READY, 1)}
    assert broker.presence.workers() == []
    assert broker.queue.apply([transitions.finish(held)]) == [False]
    (again,) = claim_again(broker, 1)
    (past,) = read(again.history)
    assert (past.outcome, past.worker) == (Ended.LOST, "theirs")
    assert past.ended <= again.claimed_ms


@pytest.mark.parametrize("case", LIVING)
def test_what_a_worker_holds_that_may_live_is_left_to_it(broker: DatabaseBackend, case: str) -> None:
    with other_process() as dead:
        (held,) = hold(broker, ["a"], LIVING[case](dead))
        take_over(broker)
        assert broker.queue.renew([held], LEASE_MS) == [True]
    assert broker.queue.apply([transitions.finish(held)]) == [True]


def test_a_worker_that_has_just_started_need_not_know_how_the_clock_went(broker: DatabaseBackend) -> None:
    with other_process() as dead:
        hold(broker, ["a"], GONE["killed"](dead))
        broker.queue.database.clock_monitor.start(LEASE_MS)
        take_over(broker)
    assert len(claim_again(broker, 1)) == 1


def test_what_must_not_start_twice_is_buried(broker: DatabaseBackend) -> None:
    with other_process() as dead:
        hold(broker, ["a"], GONE["killed"](dead), at_most_once=True)
        take_over(broker)
    assert states(broker, ["a"]) == {(State.FAILED, 1)}
    (buried,) = broker.queue.failed(10)
    assert buried.error == transitions.LAPSED_AT_MOST_ONCE


def test_only_its_own_rows_of_a_backlog_are_taken_over(broker: DatabaseBackend, database: str) -> None:
    ids, others = [f"{n}" for n in range(40)], [f"other{n}" for n in range(20)]
    hold(broker, others, [], worker="living")
    with other_process() as dead:
        hold(broker, ids, GONE["killed"](dead))
        ReadyMessage.objects.using(database).filter(message_id__in=others[:10]).update(lease_until=1)
        take_over(broker)
    assert states(broker, ids) == {(State.READY, 1)}
    assert states(broker, others) == {(State.RUNNING, 0)}


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_long_backlog_is_looked_at_page_by_page(
    broker: DatabaseBackend, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("django_delayq.store.queries.BATCH", 7)
    monkeypatch.setattr("django_delayq.store.settle.BATCH", 7)
    monkeypatch.setattr("django_delayq.store.settle.TAKEOVER_S", seconds)
    ids = [f"{n}" for n in range(20)]
    with other_process() as dead:
        hold(broker, ids, GONE["killed"](dead))
        while broker.presence.workers():
            take_over(broker)
    assert states(broker, ids) == {(State.READY, 1)}


def test_a_row_that_another_transaction_holds_is_taken_over_once_it_is_free(
    broker: DatabaseBackend, database: str
) -> None:
    if connections[database].vendor == "sqlite":
        pytest.skip("has one writer")
    with other_process() as dead:
        hold(broker, ["held", "free"], GONE["killed"](dead))
        with locked(database, "held"):
            take_over(broker)
            assert states(broker, ["free"]) == {(State.READY, 1)}
            assert states(broker, ["held"]) == {(State.RUNNING, 0)}
        take_over(broker)
    assert states(broker, ["held"]) == {(State.READY, 1)}
    assert broker.presence.workers() == []


def test_two_that_take_over_at_the_same_time_do_it_once(broker: DatabaseBackend) -> None:
    ids = [f"{n}" for n in range(30)]

    def take() -> None:
        take_over(broker)
        connections.close_all()

    with other_process() as dead:
        hold(broker, ids, GONE["killed"](dead))
        with ThreadPoolExecutor(4) as pool:
            for taken in [pool.submit(take) for _ in range(4)]:
                taken.result()
        take_over(broker)  # what one of them held while another looked
    assert states(broker, ids) == {(State.READY, 1)}
    assert len(claim_again(broker, len(ids))) == len(ids)


@pytest.fixture
def site(stored_delayq: dict[str, Any], database_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    """A site whose leases last for longer than any test waits."""
    stored_delayq["OPTIONS"] |= {"lease": f"{LEASE_MS // 1_000}s"}
    with site_on(stored_delayq, database_env, redis_server) as site:
        yield site


def test_a_worker_that_is_started_after_one_was_killed_runs_at_once_what_that_one_ran(site: Site) -> None:
    kill_and_take_over(site)
    assert site.totals()["finished"] == 2
