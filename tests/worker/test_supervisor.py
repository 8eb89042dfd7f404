"""--processes: whole workers, of which each may die, hang or overrun, and what they leave is accounted for."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.shards import load
from django_delayq.conf import get_alias
from django_delayq.core.message import State
from tests.proxy import proxy_before
from tests.servers import Server
from tests.servers.cluster import until
from tests.worker.processes import Site, WorkerProcess, kill_once_settled, site_with


def up(site: Site, *arguments: str, count: int = 2) -> WorkerProcess:
    """A supervisor whose workers are all known to the broker."""
    worker = site.worker("--processes", f"{count}", *arguments)
    until(lambda: len(site.broker.presence.workers()) == count)
    return worker


def send_later(site: Site) -> None:
    """A message that is due when a lease, which is 2 s long, has run out."""
    site.broker.queue.enqueue([NewMessage("later", Header("default", "arun"), b'""', delay_ms=3_500)])


def test_every_process_is_a_worker_of_its_own_with_one_sync_handler_at_a_time(site: Site) -> None:
    worker = up(site)
    infos = site.broker.presence.workers()
    assert {int(info.name.split(":")[-2]) for info in infos} == set(worker.children)
    assert [info.executors[0].most for info in infos] == [1, 1]
    site.send("a", "b", "c", key="hold")
    held = [site.line.next(), site.line.next()]
    assert {call.pid for call in held} == set(worker.children)
    site.send("d", key="arun")
    assert site.line.next().what == "ran"  # async handlers go on beside them
    assert site.line.none_waits()
    for call in held:
        call.release()
    last = site.line.next()
    while last.what != "holds":
        last = site.line.next()
    last.release()
    assert worker.stop() == 0
    assert site.broker.presence.workers() == []
    assert site.totals()["finished"] == 4


def test_threads_are_those_of_each_process(site: Site) -> None:
    worker = up(site, "--threads", "2")
    assert [info.executors[0].most for info in site.broker.presence.workers()] == [2, 2]
    site.send("a", "b", "c", "d", key="hold")
    held = [site.line.next() for _ in range(4)]
    assert Counter(call.pid for call in held) == dict.fromkeys(worker.children, 2)
    for call in held:
        call.release()
    assert worker.stop() == 0
    assert site.totals()["finished"] == 4


def test_the_concurrency_of_a_handler_is_that_of_all_processes_together(site: Site) -> None:
    worker = up(site, "--threads", "4")
    site.send("a", "b", key="grip")
    first = site.line.next()
    site.send("c")
    assert site.line.next_of("c").what == "ran"
    assert site.line.none_waits()
    first.release()
    second = site.line.next()
    while second.what != "holds":
        second = site.line.next()
    assert second.pid == first.pid
    second.release()
    assert worker.stop() == 0


@pytest.mark.parametrize("ends", ["killed", "overrun"])
def test_what_waits_in_a_process_that_is_killed_runs_elsewhere_at_once_and_uncharged(site: Site, ends: str) -> None:
    site.send(*(f"before{n}" for n in range(40)), key="brisk")  # known as fast: its messages are claimed ahead
    worker = site.worker("--processes", "1")
    until(lambda: site.totals()["finished"] == 40)
    released = site.totals()["released"]
    at_ms = int(time.time() * 1000) + 500  # all at once, in this order
    seizes = Header("default", "brisk", timeout_ms=500 if ends == "overrun" else 2_500, max_attempts=1)
    behind = [NewMessage(f"b{n}", Header("default", "brisk"), b'""', at_ms=at_ms) for n in range(20)]
    site.broker.queue.enqueue([NewMessage("a", seizes, b'"seize"', at_ms=at_ms), *behind])
    first = site.line.next_of("a")
    if ends == "killed":  # while it holds the interpreter's lock: its worker can't give anything back
        os.kill(first.pid, signal.SIGKILL)
        assert site.line.next_of("a").attempt == 1
        assert site.see("a").crashes == 1
    until(lambda: site.totals()["finished"] == 60)
    until(lambda: site.see("a").state is State.FAILED)
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["reclaimed"], totals["buried"]) == (0, 1)
    assert totals["released"] > released


def test_what_had_ended_in_a_process_that_is_killed_does_not_run_again(site: Site) -> None:
    site.send(*(f"before{n}" for n in range(40)), key="brisk")
    worker = site.worker("--processes", "1")
    until(lambda: site.totals()["finished"] == 40)
    released = site.totals()["released"]
    at_ms = int(time.time() * 1000) + 500  # all at once, in this order
    ended = [NewMessage(f"ended{n}", Header("default", "brisk"), b'""', at_ms=at_ms) for n in range(10)]
    seizes = Header("default", "brisk", timeout_ms=2_500, max_attempts=1)
    site.broker.queue.enqueue([*ended, NewMessage("last", seizes, b'"seize"', at_ms=at_ms)])
    os.kill(site.line.next_of("last").pid, signal.SIGKILL)  # it holds the interpreter's lock: nobody settles what ended
    worker.until_says("is gone")
    assert site.line.next_of("last").attempt == 1
    until(lambda: site.see("last").state is State.FAILED)  # by then a lease that was left has run out
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["reclaimed"], totals["released"]) == (50, 0, released)


def test_what_a_killed_process_had_settled_without_knowing_is_no_overrun(
    redis_delayq: dict[str, Any], process_env: dict[str, str], redis_server: Server
) -> None:
    with (
        proxy_before(redis_server) as network,
        site_with(
            redis_delayq | {"LOCATION": network.url}, RedisBroker(get_alias()), process_env, redis_server.directory
        ) as site,
    ):
        site.send("before")
        worker = site.worker("--processes", "1")
        until(lambda: site.totals()["finished"] == 1)  # so the server knows the script by its digest
        settled = network.hold_reply(load("finish").sha.encode())
        kill_once_settled(site, worker, settled, finished=2)


def test_a_message_that_aborts_its_process_is_buried_at_the_third_time(site: Site) -> None:
    worker = site.worker("--processes", "1")
    site.send("a", key="abort")
    worker.until_says("failed for good: killed its worker 3 times: its process died (signal 6)")
    assert worker.stop() == 0


def test_a_handler_that_holds_the_interpreters_lock_keeps_its_lease_until_its_time_out(site: Site) -> None:
    site.send("a", key="seize", timeout_ms=5_000, max_attempts=1)  # a lease is 2 s long
    worker = site.worker("--processes", "1")
    seized = site.line.next()
    second = site.worker()
    site.send("b", key="arun")
    assert site.line.next_of("b").pid == second.pid
    worker.until_says("failed for good: HandlerTimeout")
    until(lambda: site.see("a").state is State.FAILED)
    assert seized.ended()
    info = site.see("a")
    assert (info.state, info.failures, info.crashes) == (State.FAILED, 1, 0)
    assert info.error == "HandlerTimeout: It ran for longer than 5s; its process was killed."
    assert site.totals()["reclaimed"] == 0
    site.send("c", key="run")
    assert site.line.next_of("c").what == "ran"
    assert second.stop() == 0
    assert worker.stop() == 0


def test_what_runs_beside_a_handler_that_holds_the_interpreters_lock_keeps_its_permit(site: Site) -> None:
    site.env["DELAYQ_TEST_LIMITS"] = "1"
    site.worker("--processes", "1", "--threads", "2")
    site.send("a", key="pair")
    first = site.line.next_of("a")
    site.send("b", key="pair", data="seize")
    assert site.line.next_of("b").pid == first.pid  # they share the permits of their worker, which are all
    site.worker()
    site.send("c", "d", key="pair")
    send_later(site)
    assert site.line.next().id == "later"


def test_a_time_out_is_charged_to_what_overran_and_what_ran_beside_it_runs_again_uncharged(site: Site) -> None:
    site.send("beside", key="ahold")
    worker = site.worker("--processes", "1")
    beside = site.line.next()
    site.send("once", key="ahold", at_most_once=True)
    once = site.line.next()
    site.send("slow", key="spin", timeout_ms=300)
    assert site.line.next().pid == beside.pid == once.pid
    again = site.line.next_of("beside")
    until(lambda: site.see("slow").state is State.FAILED)
    assert again.pid != beside.pid
    assert (again.attempt, site.see("beside").crashes) == (1, 0)
    again.release()
    assert site.line.next_of("beside").what == "ran"
    assert site.see("slow").error == "HandlerTimeout: It ran for longer than 300ms; its process was killed."
    assert (site.see("once").state, "interrupted" in site.see("once").error) == (State.FAILED, True)
    assert worker.stop() == 0


def test_the_supervisor_holds_the_leases_of_a_frozen_process_that_runs_a_handler(
    site: Site, redis_server: Server
) -> None:
    """And the process knows when it goes on, before it can renew: what must not start twice is not given up."""
    site.send("a", key="hold", at_most_once=True)
    worker = site.worker("--processes", "1")
    held = site.line.next()
    os.kill(held.pid, signal.SIGSTOP)
    second = site.worker()
    send_later(site)
    assert site.line.next_of("later").pid == second.pid  # which has not taken the other
    assert site.see("a").state is State.RUNNING
    with redis_server.client() as client:
        client.client_pause(300)  # three times as long as a process takes to notice that it can't renew
    os.kill(held.pid, signal.SIGCONT)
    assert site.see("a").state is State.RUNNING  # answered after the pause
    held.release()
    assert site.line.next_of("a").pid == held.pid
    assert second.stop() == 0
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["reclaimed"]) == (2, 0)


def test_a_process_that_hangs_with_nothing_to_end_it_is_killed_and_replaced(site: Site) -> None:
    site.send("a", key="ahold")
    worker = site.worker("--processes", "1")
    held = site.line.next()
    os.kill(held.pid, signal.SIGSTOP)
    worker.until_says("hangs, and is killed")
    again = site.line.next_of("a")
    assert (again.pid != held.pid, again.attempt, site.see("a").crashes) == (True, 1, 1)
    again.release()
    assert site.line.next_of("a").what == "ran"
    assert worker.stop() == 0
    assert site.totals()["finished"] == 1


def changing_settings(site: Site, directory: Path) -> Path:
    """The file of the site's settings from now on, which a test can change."""
    code = directory / "changing_settings.py"
    code.write_text("from tests.worker.settings import *\n")
    site.env["DJANGO_SETTINGS_MODULE"] = code.stem
    site.env["PYTHONPATH"] = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return code


def test_a_process_that_hangs_with_what_only_newer_code_runs_is_killed_too(site: Site, tmp_path: Path) -> None:
    """Its supervisor began before the code changed, and has no handler for what the process holds."""
    code = changing_settings(site, tmp_path)
    worker = up(site, count=1)
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "__init__.py").touch()
    (newer / "delayed.py").write_text(
        "from django_delayq import Message, delay_execute\n"
        "from tests.worker.site.delayed import ahold\n"
        "@delay_execute(key='newer')\n"
        "async def newer(message: Message[str]) -> None:\n"
        "    await ahold(message)\n"
    )
    code.write_text("from tests.worker.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'newer']\n")
    os.kill(worker.children[0], signal.SIGKILL)
    site.send("a", key="newer")
    os.kill(site.line.next_of("a").pid, signal.SIGSTOP)
    worker.until_says("hangs, and is killed")


def test_a_process_that_dies_idle_is_replaced(site: Site) -> None:
    worker = up(site)
    before = worker.children
    os.kill(before[0], signal.SIGKILL)
    worker.until_says("its process died (signal 9)): of 0 message(s) it held, 0 ran. Starting another.")
    until(lambda: len(site.broker.presence.workers()) == 2)
    assert len(set(worker.children) - set(before)) == 1
    assert worker.stop() == 0


@pytest.mark.parametrize("to_all", [False, True], ids=["to the supervisor", "to every process"])
def test_sigterm_finishes_what_runs_in_every_process(site: Site, to_all: bool) -> None:
    worker = up(site, "--verbosity", "3")
    site.send("a", "b", key="hold")
    held = [site.line.next(), site.line.next()]
    if to_all:
        worker.signal_all(signal.SIGTERM)
    else:
        worker.signal(signal.SIGTERM)
    worker.until_says("Stopping on SIGTERM")
    worker.until_says_times("was told to stop", 2)
    site.send("c")
    for call in held:
        call.release()
    assert {site.line.next().id for _ in held} == {"a", "b"}
    assert worker.wait() == 0
    assert worker.text.count("Messages: finish 1") == 2  # a claim that was under way may have given "c" back
    assert site.see("c").state is State.READY
    assert site.totals()["finished"] == 2


@pytest.mark.parametrize("key", ["hold", "seize"])
def test_a_second_signal_interrupts_what_runs_in_every_process(site: Site, key: str) -> None:
    worker = up(site)
    site.send("a", "b", key=key)
    for _ in range(2):
        site.line.next()
    worker.signal(signal.SIGTERM)
    worker.until_says("Stopping on SIGTERM")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    infos = [site.see("a"), site.see("b")]
    assert [(info.failures, info.crashes) for info in infos] == [(0, 0)] * 2
    up(site)
    again = {site.line.next().id, site.line.next().id}
    assert again == {"a", "b"}
    assert [site.see(id).crashes for id in again] == [0, 0]


@pytest.mark.parametrize("key", ["hold", "seize"])
def test_what_does_not_end_within_the_shutdown_timeout_is_interrupted(site: Site, key: str) -> None:
    worker = up(site, "--shutdown-timeout", "0.1")
    site.send("a", key=key)
    site.line.next()
    site.send("once", key=key, at_most_once=True)
    site.line.next()
    assert worker.stop() == 0
    assert "it runs again, but what is at_most_once fails" in worker.text
    assert (site.see("a").failures, site.see("a").crashes) == (0, 0)
    assert site.see("once").state is State.FAILED


def test_a_drain_by_several_processes_has_one_summary(site: Site) -> None:
    site.send(*(f"{n}" for n in range(100)), key="brisk")
    site.send("bad", key="close", data={"order": 0})
    site.send("poison", key="die")
    worker = site.worker("--processes", "2", "--drain")
    assert worker.wait() == 0
    assert worker.text.count("Drained: ") == 1
    assert "Drained: 100 finished, 0 to retry, 0 snoozed, 2 failed. Left: 0 due" in worker.text


@pytest.mark.parametrize("most", [1, 5])
def test_max_messages_is_shared_by_the_processes(site: Site, most: int) -> None:
    site.send(*(f"{n}" for n in range(10)))
    worker = site.worker("--processes", "2", "--max-messages", f"{most}")
    assert worker.wait() == 0
    assert site.totals()["finished"] == most


def test_the_heartbeat_is_that_of_every_process(site: Site, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    worker = up(site, "--heartbeat-file", str(alive))
    until(lambda: alive.stat().st_mtime > 0)
    os.kill(worker.children[0], signal.SIGSTOP)
    seen = alive.stat().st_mtime
    send_later(site)
    site.line.next_of("later")  # the other goes on
    assert alive.stat().st_mtime < seen + 2
    os.kill(worker.children[0], signal.SIGCONT)
    now = alive.stat().st_mtime
    until(lambda: alive.stat().st_mtime > now)
    assert worker.stop() == 0


def test_code_that_can_not_be_loaded_is_tried_again(site: Site, tmp_path: Path) -> None:
    code = changing_settings(site, tmp_path)
    worker = up(site, count=1)
    code.write_text("a mistake\n")
    os.kill(worker.children[0], signal.SIGKILL)
    worker.until_says("its process died (exit code 1)")
    code.write_text("from tests.worker.settings import *\n")
    site.send("a")
    assert site.line.next().id == "a"
    assert worker.stop() == 0
