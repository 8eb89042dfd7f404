"""Processes that die: poison is told from its bystanders, and a time-out ends a sync handler."""

import os
import signal
import sys

import pytest

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.core.message import State
from tests.worker.processes import Site


def test_poison_is_buried_at_its_third_kill_and_bystanders_are_not(site: Site) -> None:
    site.send("a", "b", key="hold")
    first = site.worker()
    assert {site.line.next().id, site.line.next().id} == {"a", "b"}
    site.send("poison", key="die")
    assert first.wait() == -signal.SIGKILL

    second = site.worker()
    assert second.wait() == -signal.SIGKILL
    third = site.worker()
    awaited = {("ran", "a"), ("ran", "b"), ("dies", "poison")}
    while awaited:
        call = site.line.next()
        if call.pid != second.pid:
            assert call.pid != third.pid
            awaited.discard((call.what, call.id))
        call.release()
    third.until_says("failed for good: killed its worker 3 times: its process died (signal 9)")
    assert third.stop() == 0
    info = site.see("poison")
    assert (info.state, info.failures) == (State.FAILED, 0)
    assert site.totals()["finished"] == 2
    assert site.totals()["retried"] == 0


def test_several_poisons_are_all_buried_and_no_bystander_is(site: Site) -> None:
    poisons, bystanders = [f"poison{n}" for n in range(3)], [f"bystander{n}" for n in range(12)]
    for poison, *beside in zip(poisons, *[iter(bystanders)] * 4, strict=True):
        site.send(*beside[:2])
        site.send(poison, key="die")
        site.send(*beside[2:])
    ends = []
    while not all(is_over(site, id) for id in poisons + bystanders):
        ends.append(site.worker("--drain").wait())
    assert ends.count(-signal.SIGKILL) >= 2
    assert [site.see(id).crashes for id in poisons] == [3, 3, 3]
    totals = site.totals()
    assert (totals["finished"], totals["buried"]) == (12, 3)


def test_a_dead_worker_process_costs_only_its_own_message_a_crash(site: Site) -> None:
    worker = site.worker("--processes", "2")
    site.send("a", key="hold")
    held = site.line.next()
    site.send("poison", key="die")
    worker.until_says("failed for good: killed its worker 3 times: its process died (signal 9)")
    assert (site.see("a").state, site.see("a").crashes) == (State.RUNNING, 0)
    held.release()
    assert site.line.next_of("a").pid == held.pid
    assert worker.stop() == 0
    assert site.totals()["finished"] == 1
    info = site.see("poison")
    assert (info.state, info.failures, info.crashes) == (State.FAILED, 0, 3)
    assert info.error.endswith("its process died (signal 9)")


def test_a_sync_handler_over_its_timeout_is_killed_and_its_process_replaced(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="spin", timeout_ms=300)
    spinning = site.line.next()
    worker.until_says("failed for good: HandlerTimeout")
    site.send("b")
    replacement = site.line.next_of("b")
    assert replacement.pid not in (spinning.pid, worker.pid)
    assert worker.stop() == 0
    info = site.see("a")
    assert info.state is State.FAILED
    assert info.error == "HandlerTimeout: It ran for longer than 300ms; its process was killed."


def test_ctrl_c_on_the_terminal_is_for_the_supervisor_not_for_its_workers(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="hold")
    held = site.line.next()
    os.killpg(worker.pid, signal.SIGINT)
    worker.until_says("Stopping on SIGINT")
    held.release()
    assert site.line.next().what == "ran"
    assert worker.wait() == 0
    assert site.totals()["finished"] == 1


def test_async_handlers_run_in_the_worker_process_too(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="arun")
    async_pid = site.line.next().pid
    site.send("b")
    assert [async_pid] == [site.line.next().pid] == worker.children
    assert worker.stop() == 0


def test_a_frozen_workers_handlers_do_not_hold_the_lease_of_a_lost_message(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="spin", timeout_ms=60_000)
    spinning = site.line.next()
    worker.signal_all(signal.SIGSTOP)
    second = site.worker("--processes", "1")
    again = site.line.next_of("a")
    worker.signal_all(signal.SIGCONT)
    worker.until_says("and the process that ran it ended")  # when the lease was found lost
    assert again.pid != spinning.pid
    assert site.see("a").state is State.RUNNING
    second.kill()
    assert worker.stop() == 0


def test_a_worker_process_goes_on_while_its_supervisor_is_frozen(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="hold")
    held = site.line.next()
    worker.signal(signal.SIGSTOP)
    later = NewMessage("later", Header("default", "arun"), b'""', delay_ms=3_000)  # a lease is 2 s long
    site.broker.queue.enqueue([later])
    assert site.line.next_of("later").pid == held.pid
    held.release()
    assert site.line.next_of("a").pid == held.pid
    worker.signal(signal.SIGCONT)
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["reclaimed"]) == (2, 0)


def test_a_handler_runs_on_for_longer_than_a_lease(site: Site) -> None:
    worker = site.worker("--processes", "2")
    site.send("a", key="hold")
    held = site.line.next()
    site.broker.queue.enqueue(
        [NewMessage("later", Header("default", "run"), b'""', delay_ms=3_000)]
    )  # a lease is 2 s long
    site.line.next_of("later")
    held.release()
    assert site.line.next_of("a").pid == held.pid
    assert worker.stop() == 0
    assert site.totals()["finished"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_dies_with_its_supervisor_also_while_its_handler_holds_the_interpreters_lock(
    site: Site,
) -> None:
    site.send("a", key="seize")
    worker = site.worker("--processes", "1")
    seized = site.line.next()
    worker.kill()
    assert seized.ended()


@pytest.mark.parametrize("options", [[], ["--max-memory", "250MiB"]])
def test_a_worker_process_that_is_not_needed_any_more_ends_as_any_process_does(site: Site, options: list[str]) -> None:
    worker = site.worker("--processes", "1", *options)
    site.send("a", key="mutter")
    child = site.line.next_of("a").pid
    if options:
        site.send("b", key="grow")
        assert site.line.next_of("b").pid == child
    else:
        assert worker.stop() == 0
    left = site.line.next()
    assert (left.what, left.pid) == ("leaves", child)
    worker.until_says("muttered a")


def is_over(site: Site, id: str) -> bool:
    """Return whether a message is finished or buried."""
    info = site.broker.queue.get(id)
    return info is None or info.state in (State.FAILED, State.FINISHED)
