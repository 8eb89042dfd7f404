"""A paused queue or key: what runs ends, nothing of it starts, and all else goes on."""

import threading
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest

from django_delayq import BrokerUnavailable, Message
from django_delayq.brokers.base import ClaimRequest, Claims, Pause
from django_delayq.core.message import State
from django_delayq.management.commands.run_delayq import summary
from django_delayq.worker import maintenance
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.options import served_queues
from django_delayq.worker.prefetch import Executor
from tests.worker.processes import Site
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler

HOUR = 3_600_000


def note(got: list[str]) -> Any:
    return lambda message: got.append(message.id)


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers learn of pauses when they are told, and not by every few seconds' heartbeat."""
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 3_600)


@pytest.mark.parametrize("pause", [Pause("default", None, "x"), Pause(None, "k", "x"), Pause("default", "k", "x")])
def test_nothing_starts_of_what_was_paused_before_the_worker_came(rig: Rig, pause: Pause) -> None:
    got: list[str] = []
    rig.send("paused")
    rig.send("other", key="l", queue="mail")
    rig.broker.presence.pause(pause)
    handlers = [make_handler(note(got)), make_handler(note(got), "l", queue="mail")]
    rig.drain(*handlers)
    assert (got, rig.see("paused").state) == (["other"], State.READY)
    assert rig.broker.presence.resume(pause.queue, pause.key)
    rig.drain(*handlers)
    assert got == ["other", "paused"]


def test_a_key_paused_in_one_queue_runs_in_the_others(rig: Rig) -> None:
    got: list[str] = []
    rig.send("here")
    rig.send("there", queue="mail")
    rig.broker.presence.pause(Pause("mail", "k", "x"))
    rig.drain(make_handler(note(got)), queues=served_queues("default,mail"))
    assert got == ["here"]


@pytest.mark.usefixtures("told_only")
@pytest.mark.usefixtures("known_as_fast")
def test_what_runs_ends_and_what_was_not_started_is_given_back(
    rig: Rig, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()
    got: list[str] = []

    def handler(message: Message[Any]) -> None:
        got.append(message.id)
        if message.id == "a-slow":
            started.set()
            gate.wait(PATIENCE_S)

    monkeypatch.setattr(Executor, "release_unstarted", lambda *_: None)  # would give it back a second later
    rig.send(*(f"fast-{n:02}" for n in range(20)))
    rig.start(make_handler(handler), threads=1)
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 20)
    rig.send_together("a-slow", "b", "c")
    assert started.wait(PATIENCE_S)
    assert rig.see("b").state is State.RUNNING
    rig.broker.presence.pause(Pause(None, "k", "x"))
    rig.broker.until(lambda: rig.see("b").state is State.READY and rig.see("c").state is State.READY)
    gate.set()
    rig.until_gone("a-slow")
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 1)
    assert not {"b", "c"} & set(got)
    assert (rig.see("b").failures, rig.see("b").crashes) == (0, 0)


@pytest.mark.usefixtures("told_only")
def test_a_pause_and_a_resume_reach_every_worker_that_runs(rig: Rig) -> None:
    got: list[str] = []
    for _ in range(2):
        rig.start(make_handler(note(got)))
    rig.send("before")
    rig.until_gone("before")
    rig.broker.until(lambda: rig.broker.reads == 2)
    rig.broker.presence.pause(Pause("default", None, "x"))
    rig.broker.until(lambda: rig.broker.reads == 4)
    rig.send("during")
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 2)
    assert (got, rig.see("during").state) == (["before"], State.READY)
    rig.broker.presence.resume("default", None)
    rig.until_gone("during")


def test_a_pause_that_nobody_was_told_of_comes_with_the_next_heartbeat(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0)
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.claims)
    rig.broker._state.pause(Pause("default", None, "x"), rig.broker.queue.counts().now_ms)
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 1)
    rig.send("a")
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 1)
    assert rig.see("a").state is State.READY


@pytest.mark.usefixtures("told_only")
def test_a_pause_ends_by_itself_by_the_clock_that_decides(rig: Rig) -> None:
    rig.send("a")
    rig.broker.presence.pause(Pause(None, "k", "x", rig.broker.queue.counts().now_ms + HOUR))
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.upkeeps > 1)
    assert rig.see("a").state is State.READY
    rig.broker.advance(HOUR)
    rig.until_gone("a")


def test_a_worker_looks_again_when_the_first_pause_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "EVERY_S", 3_600)
    for key, seconds in (("k", 1_000), ("l", 60), ("m", 2_000)):
        rig.broker.presence.pause(Pause(None, key, "x", rig.broker.queue.counts().now_ms + seconds * 1_000))
    known = maintenance.Pauses(rig.broker)
    known.read_due()
    chores = maintenance.Maintenance(
        rig.broker,
        maintenance.new_info("w", [], [], [], []),
        list,
        known,
        maintenance.Lanes(rig.broker, ["default"]),
        UnstartedEvents("default", "w", {}),
        OutageLog(),
    )
    chores.do_due()
    assert chores.due_at <= monotonic() + 60


def test_a_worker_with_all_paused_idles_without_spinning(rig: Rig) -> None:
    rig.send("a")
    rig.broker.presence.pause(Pause("default", None, "x"))
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.upkeeps > 1)
    claims, upkeeps, reads = rig.broker.claims, rig.broker.upkeeps, rig.broker.reads
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 2)
    # It does claim, without wants: else its broker would not have it sleep for word of a resume.
    assert 0 < rig.broker.claims - claims <= rig.broker.upkeeps - upkeeps + 1
    assert rig.broker.reads - reads <= 1


def test_a_paused_suspect_is_left_where_it_is(rig: Rig) -> None:
    rig.send("a")
    rig.broker.advance(1)
    for _ in range(2):
        assert rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=10, worker="dies").messages
        rig.broker.advance(11)
        rig.broker.queue.maintain(lease_ms=10)
    assert rig.see("a").suspect
    rig.broker.presence.pause(Pause(None, "k", "x"))
    rig.drain(make_handler(lambda message: None))
    assert (rig.see("a").state, rig.see("a").suspect) == (State.READY, True)


def test_a_drain_leaves_what_is_paused_and_counts_it(rig: Rig) -> None:
    rig.send("a", "b", "c")
    rig.send("d", queue="mail")
    rig.send("parked", key="unserved")
    rig.send("later", delay_ms=HOUR)
    rig.broker.presence.pause(Pause("default", None, "x"))
    worker = rig.drain(make_handler(lambda message: None), queues=served_queues("default,mail"))
    assert summary(rig.broker, worker.counts, worker.served).endswith(
        "Left: 0 due, 1 not due, 1 parked, 3 paused, 0 running elsewhere."
    )
    assert rig.broker.queue.counts().totals["finished"] == 1


class UnreadableBroker(WatchedBroker):
    """Its pauses can't be read the first few times."""

    failures = 3
    claimed_before_read = False

    def pauses(self) -> list[Pause]:
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("away")
        return super().pauses()

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        self.claimed_before_read |= self.reads == 0
        return super().claim(wants, lease_ms=lease_ms, worker=worker)


def test_nothing_is_claimed_before_the_pauses_are_known() -> None:
    rig = Rig(broker_class=UnreadableBroker)
    assert isinstance(rig.broker, UnreadableBroker)
    rig.send("a")
    rig.start(make_handler(lambda message: None))
    rig.until_gone("a")
    assert not rig.broker.claimed_before_read
    rig.stop()


def test_pauses_and_resumes_are_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "django_delayq")
    known = maintenance.Pauses(rig.broker)
    rig.broker.presence.pause(Pause("mail", "k", "50% fail", until_ms=10**30))
    for _ in range(2):
        rig.broker.presence.pause_version += 1
        known.read_due()
    rig.broker.presence.pause(Pause("mail", None, "all fail"))
    known.read_due()
    rig.broker.presence.resume("mail", "k")
    known.read_due()
    known.read_due()
    assert caplog.messages == [
        f"Paused key 'k' in queue 'mail': 50% fail. Nothing of it starts until {10**30} ms.",
        "Paused queue 'mail': all fail. Nothing of it starts until it is resumed.",
        "Resumed key 'k' in queue 'mail'.",
    ]


@pytest.mark.parametrize("arguments", [(), ("--processes", "1")])
def test_a_pause_by_another_process_ends_nothing_and_holds_back_what_comes(
    site: Site, arguments: tuple[str, ...]
) -> None:
    worker = site.worker(*arguments)
    site.send("runs", key="hold")
    running = site.line.next()
    site.broker.presence.pause(Pause(None, "hold", "the provider is down"))
    worker.until_says("Paused key 'hold': the provider is down.")
    site.send("waits", key="hold")
    site.send("other", key="arun")
    assert site.line.next().id == "other"
    running.release()
    assert (running.id, site.line.next().what) == ("runs", "ran")
    assert site.line.none_waits()
    site.broker.presence.resume(None, "hold")
    resumed = site.line.next()
    assert resumed.id == "waits"
    resumed.release()
    assert worker.stop() == 0
    assert site.totals()["finished"] == 3


def test_a_drain_that_was_stopped_counts_a_lane_of_its_queue_as_due_and_not_as_parked(rig: Rig) -> None:
    rig.send("urgent", queue="default^5")
    rig.send("foreign", queue="elsewhere^5")
    rig.broker.advance(1)  # due times are rounded up
    assert summary(rig.broker, Counter(), {("default", "k")}).endswith(
        "Left: 1 due, 0 not due, 1 parked, 0 paused, 0 running elsewhere."
    )
