"""Looks: what is seen is what there is, and looking changes nothing."""

import pytest

from django_delayq.brokers.base import ExecutorInfo, RunInfo, SetCount, SettleAction, WorkerInfo
from django_delayq.core.message import State
from tests.brokers.conftest import ALL, name
from tests.brokers.rig import LEASE_MS, Rig, ids

HOUR = 3_600_000


def test_get_of_what_is_not_there(rig: Rig) -> None:
    assert rig.look("nothing") is None


def test_get_tells_who_holds_a_message_until_when(rig: Rig) -> None:
    rig.send("a")
    claimed = rig.claim(worker="host:1")[0]
    info = rig.get("a")
    assert (info.state, info.holder, info.due_ms) == (State.RUNNING, "host:1", claimed.due_ms)
    assert info.lease_end_ms is not None
    assert abs(info.lease_end_ms - claimed.due_ms - LEASE_MS) < 5_000


@pytest.mark.parametrize("running", [False, True])
def test_get_prefers_what_lives_to_what_is_buried(rig: Rig, running: bool) -> None:
    rig.bury("a", body=b"old")
    rig.send("a", body=b"new")
    if running:
        rig.claim_one()
    assert rig.get("a").body == b"new"
    assert rig.get("a").state is (State.RUNNING if running else State.READY)


def test_time_alone_makes_pending_ready(rig: Rig) -> None:
    rig.send("a", delay_ms=HOUR)
    assert rig.get("a").state is State.PENDING
    rig.advance(HOUR)
    assert rig.get("a").state is State.READY


def test_peek_shows_the_next_of_a_queue_in_due_order_over_its_keys(rig: Rig) -> None:
    for minutes, key in ((5, "a"), (1, "b"), (4, "a"), (2, "c"), (3, "b")):
        rig.send(f"{minutes}", key=key, delay_ms=minutes * 60_000, body=str(minutes).encode())
    rig.send("elsewhere", queue="other")
    rig.send("runs", key="d")
    rig.claim_one(key="d")
    seen = rig.broker.queue.peek("q", 4)
    assert ids(seen) == ["1", "2", "3", "4"]
    assert [info.body for info in seen] == [b"1", b"2", b"3", b"4"]
    assert ids(rig.broker.queue.peek("q", 100)) == ["1", "2", "3", "4", "5"]
    assert rig.broker.queue.peek("none", 5) == rig.broker.queue.peek("q", 0) == []


def test_peek_shows_suspects_too(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    assert [(info.id, info.suspect) for info in rig.broker.queue.peek("q", 5)] == [("a", True)]


def test_errors_are_paged_newest_first(rig: Rig) -> None:
    for n in range(5):
        rig.bury(f"{n}")
        rig.advance(10)
    assert ids(rig.broker.queue.failed(2)) == ["4", "3"]
    assert ids(rig.broker.queue.failed(2, 2)) == ["2", "1"]
    assert ids(rig.broker.queue.failed(2, 4)) == ["0"]
    assert rig.broker.queue.failed(2, 6) == []


def test_counts_by_queue_and_key(rig: Rig) -> None:
    rig.send("1", "2", queue="x", key="a")
    (later,) = rig.send("3", queue="x", key="b", delay_ms=HOUR)
    rig.send("4", queue="y", key="a:c")
    rig.send("5", key="runs")
    rig.claim_one(key="runs")
    counts = rig.broker.queue.counts()
    found = {(found.queue, found.key): found for found in counts.waiting if found.pending or found.ready}
    assert {name: (set_.pending, set_.ready) for name, set_ in found.items()} == {
        ("x", "a"): (0, 2),
        ("x", "b"): (1, 0),
        ("y", "a:c"): (0, 1),
    }
    assert found["x", "b"] == SetCount("x", "b", 1, 0, later.due_ms)
    assert (counts.running, counts.suspects, counts.error) == (1, 0, 0)
    assert counts.totals["sent"] == 5


def test_looking_changes_nothing(rig: Rig) -> None:
    rig.bury("buried")
    rig.send("later", delay_ms=HOUR)
    rig.send("a")
    rig.advance(1)  # of two shards the later one may be a ms behind
    rig.send("b")
    (claimed,) = rig.claim(1)

    def look() -> object:
        counts = rig.broker.queue.counts()
        seen = [rig.look(id) for id in ("a", "b", "later", "buried")]
        return seen, rig.broker.queue.peek("q", 9), rig.broker.queue.failed(9), counts.totals, counts.running

    assert look() == look()
    rig.broker.queue.audit()
    assert rig.settle(claimed, SettleAction.FINISH)
    assert ids(rig.claim()) == ["b"]


def test_the_audit_adds_up_in_every_place(rig: Rig) -> None:
    rig.bury("error 1", "error 2", "error 3")
    rig.broker.queue.rescue(["error 1"])
    rig.broker.queue.purge_failed(["error 2"])
    rig.send("pending", delay_ms=HOUR)
    rig.send("cancelled", delay_ms=HOUR)
    rig.broker.queue.cancel(["cancelled"])
    rig.send("running", key="r")
    rig.claim_one(key="r")
    rig.send("finished", key="f")
    rig.settle(rig.claim_one(key="f"), SettleAction.FINISH)
    audit = rig.broker.queue.audit()
    assert audit.differences == []
    assert audit.places == {"pending": 1, "ready": 1, "running": 1, "error": 1}
    left = {name: audit.totals.get(name, 0) for name in ("sent", "finished", "cancelled", "purged", "dropped")}
    assert left == {"sent": 7, "finished": 1, "cancelled": 1, "purged": 1, "dropped": 0}


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_workers_are_seen_while_their_heart_beats(rig: Rig) -> None:
    runs = [RunInfo("ü\x00", "q", "k", 7)]
    worker = WorkerInfo(
        "host:1:x", ["q"], ["k", "ü"], 3, started_ms=5, runs=runs, executors=[ExecutorInfo(4, {"k": 4, "ü": 1})]
    )
    rig.broker.presence.heartbeat(worker)
    rig.broker.presence.heartbeat(WorkerInfo("host:2:y", [], [], 0, started_ms=6))
    (seen,) = [found for found in rig.broker.presence.workers() if found.name == "host:1:x"]
    assert (seen.queues, seen.keys, seen.running, seen.started_ms) == (["q"], ["k", "ü"], 3, 5)
    assert (seen.runs, seen.executors) == (runs, worker.executors)
    assert abs(seen.seen_ms - rig.now_us() // 1000) < 5_000
    rig.advance(10_000)
    rig.broker.presence.heartbeat(worker)
    rig.advance(10_000)
    assert [found.name for found in rig.broker.presence.workers()] == ["host:1:x"]
    rig.broker.presence.leave("host:1:x")
    assert rig.broker.presence.workers() == []


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_the_report_says_what_it_is_and_what_a_crash_loses(rig: Rig) -> None:
    report = rig.broker.report()
    assert report.server
    assert report.durability
    assert report.problems == []
