"""What becomes of the messages of a batch when its process dies."""

import os
import signal

import pytest

from django_delayq.core.message import State
from tests.servers.cluster import until
from tests.worker.processes import Site

IDS = {"a", "b", "c"}


@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_after_a_kill_in_the_middle_all_come_again_each_once(site: Site, arguments: tuple[str, ...]) -> None:
    site.send(*IDS, key="many")
    worker = site.worker(*arguments)
    held = [site.line.next() for _ in IDS]
    assert {call.id for call in held} == IDS
    if arguments:
        os.kill(held[0].pid, signal.SIGKILL)
    else:
        worker.kill()
        worker = site.worker()
    again = [site.line.next() for _ in IDS]
    assert [call.what for call in again] == ["holds"] * 3
    assert {(call.id, call.attempt) for call in again} == {(id, 1) for id in IDS}
    assert {site.see(id).crashes for id in IDS} == {1}
    assert site.line.none_waits()
    for call in again:
        call.release()
    assert {site.line.next().what for _ in IDS} == {"ran"}
    assert worker.stop() == 0
    assert site.totals()["finished"] == 3
    assert site.line.none_waits()


def test_of_a_batch_with_poison_only_the_poison_is_buried(site: Site) -> None:
    site.send("a", "b", key="poisoned")
    site.send("bad", key="poisoned", data="poison")
    worker = site.worker("--processes", "1")
    for _ in range(2):
        assert [site.line.next().what for _ in range(3)] == ["of3"] * 3
    assert {(call.what, call.id) for call in [site.line.next() for _ in range(3)]} == {
        ("of1", "a"),
        ("of1", "b"),
        ("of1", "bad"),
    }
    until(lambda: site.see("bad").state is State.FAILED and site.totals().get("finished") == 2)
    assert site.see("bad").error.startswith("killed its worker 3 times")
    assert worker.stop() == 0
    if not site.line.none_waits():  # its process had run others before, so it ran again, alone
        assert site.line.next().id == "bad"
    assert site.line.none_waits()


def test_a_run_over_its_time_out_is_killed_and_charged_to_each_message(site: Site) -> None:
    site.send(*IDS, key="stuck")
    worker = site.worker("--processes", "1")
    assert {site.line.next().id for _ in IDS} == IDS
    until(lambda: all(site.see(id).state is State.FAILED for id in IDS))
    assert {site.see(id).error for id in IDS} == {"HandlerTimeout: It ran for longer than 1s; its process was killed."}
    assert worker.stop() == 0
