"""How worker processes end, and what becomes of their messages."""

import os
import signal

import pytest

from django_delayq.brokers.base import ClaimRequest
from django_delayq.core import transitions
from django_delayq.core.message import State
from django_delayq.core.transitions import Policy
from tests.servers.cluster import until
from tests.worker.processes import Site


def test_sigterm_finishes_what_runs_and_exits_0(site: Site) -> None:
    site.send("a", key="hold")
    worker = site.worker()
    call = site.line.next()
    worker.signal(signal.SIGTERM)
    worker.until_says("Stopping on SIGTERM")
    site.send("b")
    call.release()
    assert site.line.next().what == "ran"
    assert worker.wait() == 0
    assert site.broker.queue.get("a") is None
    assert site.see("b").state is State.READY
    assert site.line.none_waits()


def test_a_second_signal_stops_at_once_and_loses_nothing(site: Site) -> None:
    site.send("a", key="hold")
    worker = site.worker()
    held = site.line.next()
    worker.signal(signal.SIGINT)
    worker.until_says("Stopping on SIGINT")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    held.release()
    assert site.see("a").state is State.RUNNING  # for a second, at most

    second = site.worker()
    again = site.line.next_of("a")
    assert (again.what, again.attempt) == ("holds", 1)
    assert site.see("a").crashes == 0
    again.release()
    assert site.line.next_of("a").what == "ran"
    assert second.stop() == 0
    assert site.totals()["finished"] == 1


def test_a_handler_that_does_not_end_within_the_shutdown_timeout_is_interrupted(site: Site) -> None:
    site.send("a", key="hold")
    site.send("once", key="hold", at_most_once=True)
    worker = site.worker("--shutdown-timeout", "0.1")
    for _ in range(2):
        site.line.next()
    assert worker.stop() == 0
    assert site.see("a").failures == 0
    assert "it runs again, but what is at_most_once fails" in worker.text

    assert site.see("once").state is State.FAILED
    site.worker()
    call = site.line.next()
    assert (call.id, call.attempt) == ("a", 1)
    call.release()


def test_the_messages_of_a_killed_worker_run_again_each_once(site: Site) -> None:
    ids = ["a", "b", "c", "d"]
    site.send(*ids, key="hold")
    killed = site.worker()
    assert sorted(site.line.next().id for _ in ids) == ids
    killed.kill()
    second = site.worker()
    calls = [site.line.next() for _ in ids]
    assert sorted(call.id for call in calls) == ids
    for call in calls:
        call.release()
    assert sorted(site.line.next().id for _ in ids) == ids
    assert second.stop() == 0
    assert site.totals()["finished"] == 4
    assert site.totals()["reclaimed"] == 4


def test_a_killed_worker_buries_nothing_that_must_not_start_twice_and_had_not_started(site: Site) -> None:
    site.send(*(f"{n}" for n in range(100)), key="brisk")  # a fast handler's messages are claimed ahead
    site.send(*(f"once-{n}" for n in range(30)), key="brisk", data="hold", at_most_once=True)
    killed = site.worker("--threads", "2")
    started = {site.line.next().id for _ in range(2)}
    site.send("last", key="hold")  # leased after them: when it runs again their leases are over
    assert site.line.next().id == "last"
    killed.kill()
    second = site.worker()
    ran: set[str] = set()
    while len(ran) < 29:
        call = site.line.next()
        call.release()
        if call.what == "ran":
            ran.add(call.id)
    assert "last" in ran
    assert not started & ran
    assert second.stop() == 0
    assert {site.see(id).state for id in started} == {State.FAILED}
    totals = site.totals()
    assert (totals["buried"], totals["finished"]) == (2, 129)


def test_the_end_of_a_worker_frozen_past_its_lease_is_refused(site: Site) -> None:
    site.send("a", key="hold")
    frozen = site.worker()
    late = site.line.next()
    frozen.signal(signal.SIGSTOP)
    second = site.worker()
    held = site.line.next_of("a")
    assert held.pid == second.pid
    frozen.signal(signal.SIGCONT)
    late.release()
    assert site.line.next_of("a").pid == frozen.pid  # the late hand runs to its end, which is refused
    frozen.until_says("overrun")
    assert site.see("a").state is State.RUNNING
    held.release()
    assert site.line.next_of("a").pid == second.pid
    assert second.stop() == 0
    assert site.totals()["finished"] == 1


def test_the_handler_in_a_child_dies_with_a_killed_worker_and_what_waits_there_runs_elsewhere(site: Site) -> None:
    before, behind = [f"before{n}" for n in range(40)], [f"behind{n}" for n in range(20)]
    site.send(*before, key="brisk")
    site.send("a", key="brisk", data="hold")
    site.send(*behind, key="brisk")
    worker = site.worker("--processes", "1")
    held = site.line.next()
    assert held.pid != worker.pid
    worker.kill()
    assert held.ended()
    assert site.line.none_waits()
    second = site.worker("--processes", "1")
    again = site.line.next()
    assert (again.id, again.attempt) == ("a", 1)
    again.release()
    assert site.line.next().what == "ran"
    until(lambda: site.totals()["finished"] == 61)
    assert second.stop() == 0


def test_a_suspect_whose_sandbox_dies_with_its_worker_is_not_buried_for_it(site: Site) -> None:
    site.send("a", key="hold")
    for _ in range(2):
        (claimed,) = site.broker.queue.claim([ClaimRequest("default", "hold", 1)], lease_ms=60_000, worker="x").messages
        assert site.broker.queue.apply([transitions.crash(claimed, "its process died", Policy())]) == [True]
    assert site.see("a").suspect
    supervisor = site.worker("--processes", "1")
    held = site.line.next()
    (worker,) = supervisor.children
    assert held.pid not in (worker, supervisor.pid)  # it is the sandbox, which dies with the worker
    os.kill(worker, signal.SIGKILL)
    assert held.ended()
    supervisor.until_says("Message 'a'")
    assert "failed for good" not in supervisor.text
    again = site.line.next()
    assert (again.id, again.attempt, site.see("a").crashes) == ("a", 1, 2)
    again.release()
    assert site.line.next().what == "ran"
    assert supervisor.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["buried"]) == (1, 0)


@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_a_process_that_a_handler_forks_has_no_part_in_the_workers_signals(
    site: Site, arguments: tuple[str, ...]
) -> None:
    worker = site.worker(*arguments)
    site.send("a", key="fork")
    assert site.line.next().what == "ran"  # what it forked was terminated, and has ended
    site.send("b")
    assert site.line.next_of("b").what == "ran"
    assert "Stopping" not in worker.text
    assert worker.stop() == 0


@pytest.mark.parametrize("key", ["split", "asplit"])
@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_a_process_that_a_handler_forks_is_ended_where_it_leaves_the_handler(
    site: Site, key: str, arguments: tuple[str, ...]
) -> None:
    site.send("a", key=key)
    site.send("b")
    worker = site.worker(*arguments, "--threads", "1", "--drain")
    assert worker.wait() == 0
    assert sorted((call.what, call.id) for call in [site.line.next() for _ in range(2)]) == [
        ("forked-1", "a"),
        ("ran", "b"),
    ]
    assert site.line.none_waits()
    assert site.totals()["finished"] == 2
    assert "A process that a handler forked has left the handler, and is ended." in worker.text


def test_max_messages_ends_a_worker_in_good_order(site: Site) -> None:
    site.send("a", "b", "c")
    worker = site.worker("--max-messages", "2")
    assert worker.wait() == 0
    assert site.totals()["finished"] == 2
    assert not site.broker.queue.claim([ClaimRequest("default", "hold", 1)], lease_ms=1_000, worker="x").messages


def test_a_worker_over_its_memory_finishes_what_runs_and_claims_no_more(site: Site) -> None:
    site.send("held", key="hold")
    worker = site.worker("--max-memory", "250MiB", "--threads", "1")
    held = site.line.next()
    site.send("grows", key="grow")
    worker.until_says("Stopping: this worker takes ")
    site.send("later")
    held.release()
    assert worker.wait() == 0
    assert site.broker.queue.get("held") is None
    assert site.see("later").state is State.READY
    assert site.totals()["finished"] == 2


def test_a_child_over_its_memory_is_replaced_and_its_worker_goes_on(site: Site) -> None:
    worker = site.worker("--max-memory", "250MiB", "--processes", "1")
    site.send("a", key="grow")
    grown = site.line.next()
    site.send("b")
    replacement = site.line.next()
    assert replacement.pid not in (grown.pid, worker.pid)
    site.send("c")
    assert site.line.next().pid == replacement.pid
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["released"]) == (3, 0)


def test_a_signal_that_another_thread_was_given_stops_the_worker(site: Site) -> None:
    site.send("a", key="terminate")
    worker = site.worker()
    assert site.line.next().id == "a"
    assert worker.wait() == 0
    assert "Stopping on SIGTERM" in worker.text
