"""Real workers whose messages are cancelled while they run, with Redis alone, and that are killed on the way."""

import os

import pytest

from django_delayq.brokers.base import ClaimRequest
from django_delayq.core import transitions
from django_delayq.core.transitions import Policy
from tests.servers.cluster import until
from tests.worker.processes import PATIENCE_S, Site

ARGUMENTS = pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])


def _is_gone(site: Site) -> bool:
    return site.broker.queue.get("a") is None


@ARGUMENTS
def test_a_handler_that_looks_stops(site: Site, arguments: tuple[str, ...]) -> None:
    worker = site.worker(*arguments)
    site.send("a", key="heed")
    call = site.line.next_of("a")
    assert site.broker.queue.cancel(["a"], "alice") == [True]
    until(lambda: _is_gone(site), PATIENCE_S)
    os.kill(call.pid, 0)  # nothing was killed
    assert worker.stop() == 0
    assert "cancelled while it ran, by alice" in worker.text
    assert (site.totals()["cancelled"], site.totals()["finished"]) == (1, 0)


@ARGUMENTS
@pytest.mark.parametrize("when", ["before the worker knows", "after the worker knows"])
def test_a_worker_that_is_killed_leaves_the_message_cancelled(
    site: Site, arguments: tuple[str, ...], when: str
) -> None:
    first = site.worker(*arguments)
    site.send("a", key="hold")
    site.line.next_of("a")  # it takes no notice
    site.broker.queue.cancel(["a"], "alice")
    if when.startswith("after"):
        before = site.see("a").lease_end_ms
        until(lambda: site.see("a").lease_end_ms != before, PATIENCE_S)
    first.kill()
    second = site.worker()
    until(lambda: _is_gone(site), PATIENCE_S)
    assert second.stop() == 0
    assert site.totals()["cancelled"] == 1
    assert site.line.none_waits()  # it did not start again


def test_what_ends_at_the_moment_of_the_request_has_one_end(site: Site) -> None:
    worker = site.worker()
    count = 20
    for number in range(count):
        site.send("a", key="hold")
        call = site.line.next_of("a")
        if number % 2:
            call.release()
            site.broker.queue.cancel(["a"], "alice")
        else:
            site.broker.queue.cancel(["a"], "alice")
            call.release()
        site.line.next_of("a")
        until(lambda: _is_gone(site), PATIENCE_S)
    assert worker.stop() == 0
    totals = site.totals()
    assert (totals["finished"], totals["cancelled"]) == (count, 0)


def test_a_suspect_that_is_cancelled_is_killed_alone(site: Site) -> None:
    site.send("a", key="hold")
    for _ in range(2):
        (claimed,) = site.broker.queue.claim([ClaimRequest("default", "hold", 1)], lease_ms=60_000, worker="x").messages
        assert site.broker.queue.apply([transitions.crash(claimed, "its process died", Policy())]) == [True]
    assert site.see("a").suspect
    worker = site.worker()
    child = site.line.next_of("a")
    site.broker.queue.cancel(["a"], "alice")
    until(lambda: _is_gone(site), PATIENCE_S)
    assert child.ended()
    assert worker.stop() == 0
    assert site.totals()["cancelled"] == 1
