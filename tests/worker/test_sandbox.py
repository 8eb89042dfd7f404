"""The sandbox of a suspect, without a worker around it."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from django_delayq import Message
from django_delayq.brokers.base import CancelRequest, Claimed, Header, SettleAction, Transition
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.process import sandbox
from django_delayq.worker.process.sandboxed import Parent
from tests.servers.cluster import until
from tests.worker.processes import PATIENCE_S, Site
from tests.worker.rig import Rig, make_handler


class Bench:
    """Runs messages in sandboxes that know the handlers of the site."""

    def __init__(self) -> None:
        self.ends: list[Transition | None] = []

    def lease(
        self, key: str, *, at_most_once: bool = False, timeout_ms: int | None = None, data: bytes = b'""'
    ) -> Lease:
        """The lease of a message for a handler."""

        def func(message: Message[str]) -> None:
            """Never called: the child has its own."""

        handler = make_handler(func, at_most_once=at_most_once)
        claimed = Claimed("a", 1, 0, Header("default", key, timeout_ms=timeout_ms), data)
        return Lease(claimed, handler, monotonic(), monotonic() + 60, 0.0, started_at=monotonic())

    def run(self, lease: Lease) -> Transition | None:
        """Return how it ends."""
        with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
            return run(lease)

    def run_one(self, key: str, *, at_most_once: bool = False) -> tuple[SettleAction, str]:
        """Return how the lease of a message for a handler ends, and why."""
        transition = self.run(self.lease(key, at_most_once=at_most_once))
        assert transition is not None
        return transition.action, transition.error or ""

    @contextlib.contextmanager
    def running(self, lease: Lease) -> Iterator[None]:
        """Do what `run` does, beside the block."""
        thread = threading.Thread(target=lambda: self.ends.append(self.run(lease)))
        thread.start()
        yield
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    @property
    def action(self) -> SettleAction | None:
        """Return how the last ended that ran beside a block."""
        end = self.ends[-1]
        return None if end is None else end.action


@pytest.fixture
def bench(site: Site, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    return Bench()


def test_a_child_that_dies_of_its_message_is_a_crash_of_that_message(bench: Bench) -> None:
    assert bench.run_one("die") == (SettleAction.CRASH, "its process died (signal 9)")
    assert bench.run_one("abort") == (SettleAction.CRASH, "its process died (signal 6)")
    assert bench.run_one("run") == (SettleAction.FINISH, "")


def test_a_child_runs_one_message_after_the_other(bench: Bench, site: Site) -> None:
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        for key in ("run", "close", "run"):  # the second one fails
            assert run(bench.lease(key, data=b'{"order":0}' if key == "close" else b'""'))
    assert len({site.line.next_of("a").pid for _ in range(2)}) == 1


def test_the_death_of_a_child_that_has_run_others_is_charged_to_none(bench: Bench, site: Site) -> None:
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        ends = [run(bench.lease("second")) for _ in range(3)]
    assert [end and (end.action, end.crashes) for end in ends] == [(SettleAction.FINISH, 0)] * 3
    first, died, again, died_too, last = (site.line.next_of("a").pid for _ in range(5))
    assert (first, again) == (died, died_too)
    assert len({first, again, last}) == 3


def test_a_message_that_kills_its_child_is_charged_once_it_did_so_alone(bench: Bench) -> None:
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        assert run(bench.lease("run"))
        end = run(bench.lease("die"))
    assert end is not None
    assert (end.action, end.crashes) == (SettleAction.CRASH, 1)


def test_a_message_that_may_run_only_once_has_a_child_of_its_own(bench: Bench, site: Site) -> None:
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        assert run(bench.lease("second"))
        end = run(bench.lease("second", at_most_once=True))
    assert end is not None
    assert end.action is SettleAction.FINISH
    assert len({site.line.next_of("a").pid for _ in range(2)}) == 2


def test_a_child_runs_so_many_messages_and_no_more(bench: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_RUNS", 2)
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        for _ in range(3):
            assert run(bench.lease("run"))
    pids = [site.line.next_of("a").pid for _ in range(3)]
    assert pids[0] == pids[1] != pids[2]


def test_a_child_that_is_killed_while_it_waits_costs_the_next_message_nothing(bench: Bench, site: Site) -> None:
    with sandbox.in_sandboxes("worker", "default", AttemptEvents("worker")) as run:
        assert run(bench.lease("run"))
        os.kill(site.line.next_of("a").pid, signal.SIGKILL)
        end = run(bench.lease("run"))
    assert end is not None
    assert (end.action, end.crashes) == (SettleAction.FINISH, 0)


def test_a_message_that_ends_while_its_lease_is_looked_at_leaves_the_child_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases = iter([Bench().lease("run")])  # it is gone at the second look
    monkeypatch.setattr(Parent, "_lease", property(lambda _: next(leases, None), lambda *_: None), raising=False)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        parent = Parent(ours)
        parent.listen()
    assert parent.take() is None


def test_a_child_scrubs_what_it_tells_of_a_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    delayq = json.loads(os.environ["DELAYQ_TEST"])
    delayq["OPTIONS"]["scrub"] = "tests.scrubs.without_cards"
    monkeypatch.setenv("DELAYQ_TEST", json.dumps(delayq))
    transition = bench.run(bench.lease("close", data=b'{"order":-4111111111111111}'))
    assert transition is not None
    assert transition.error == "ValueError: there is no order -(card)"
    assert "4111111111111111" not in transition.detail
    assert "Traceback" in transition.detail


def test_at_most_once_is_buried_by_the_death_of_its_child(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    verb, error = bench.run_one("die", at_most_once=True)
    assert verb is SettleAction.BURY
    assert error == "its process died (signal 9); at_most_once: it may have run in part"
    assert "failed for good: its process died" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_child_that_can_not_take_a_message_costs_it_nothing_but_a_pause(bench: Bench) -> None:
    transition = bench.run(bench.lease("only the parent knows it"))
    assert transition is not None
    assert (transition.action, transition.delay_ms) == (SettleAction.RELEASE, sandbox.RESTART_PAUSE_MS)


def test_a_child_that_is_never_ready_costs_its_message_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.worker.hanging_settings")
    monkeypatch.setattr(sandbox, "START_S", 0.5)
    assert bench.run_one("run") == (SettleAction.RELEASE, "")
    assert "it is not ready after 0.5 s" in caplog.text


def test_a_message_whose_child_is_killed_at_the_end_of_its_lease_is_charged_nothing(bench: Bench, site: Site) -> None:
    lease = bench.lease("hold")
    with bench.running(lease):
        site.line.next_of("a")
        lease.held_until = 0.0
    assert bench.action is SettleAction.INTERRUPT


def test_a_lease_that_is_lost_ends_its_handler_at_once(bench: Bench, site: Site, rig: Rig) -> None:
    lease = bench.lease("seize")
    with bench.running(lease):
        call = site.line.next_of("a")
        Leases(rig.broker, 15_000, OutageLog()).lose([lease])
        assert call.ended()
    assert bench.action is None


def test_a_time_out_kills_the_child(bench: Bench) -> None:
    transition = bench.run(bench.lease("spin", timeout_ms=300))
    assert transition is not None
    assert transition.action is SettleAction.RETRY
    assert transition.error == "HandlerTimeout: It ran for longer than 300ms; its process was killed."


def test_an_answer_that_is_none_leaves_the_message_to_lapse(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert bench.run(bench.lease("garble")) is None
    assert "is left to lapse" in caplog.text


def test_a_message_with_much_data_reaches_the_child(bench: Bench) -> None:
    transition = bench.run(bench.lease("run", data=b'"%s"' % (b"x" * (1 << 20))))
    assert transition is not None
    assert transition.action is SettleAction.FINISH


def test_a_child_ends_as_any_process_does(bench: Bench, site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench.run_one("mutter") == (SettleAction.FINISH, "")
    assert [site.line.next().what, site.line.next().what] == ["ran", "leaves"]
    assert "muttered a" in capfd.readouterr().out


def test_a_worker_with_a_thousand_connections_has_sandboxes_too(bench: Bench, many_files: None) -> None:
    assert bench.run_one("run") == (SettleAction.FINISH, "")


def test_a_time_out_ends_also_who_reads_nothing_of_what_it_is_told(
    bench: Bench, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = socket.socketpair

    def narrow_pair() -> tuple[socket.socket, socket.socket]:
        """It takes what is told within a second: a real one is full after some hundred renewals."""
        ours, theirs = pair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return ours, theirs

    monkeypatch.setattr(socket, "socketpair", narrow_pair)
    lease = bench.lease("seize", timeout_ms=2_000)
    with bench.running(lease):
        site.line.next_of("a")
        until(lambda: bool(bench.ends) or renew(lease))
    assert bench.action is SettleAction.RETRY


def renew(lease: Lease) -> bool:
    """For so short that it is told of at each look."""
    lease.held_until = monotonic() + 0.04
    return False


def test_a_child_process_imports_nothing_from_the_working_directory(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "django_delayq.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert bench.run_one("run")[0] is SettleAction.FINISH


def test_a_child_process_finds_a_site_that_its_parent_found_in_the_working_directory(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_here.py").write_text("from tests.worker.settings import *\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings_here")
    assert bench.run_one("run")[0] is SettleAction.FINISH


def test_a_message_that_is_cancelled_ends_its_child_and_is_charged_nothing(bench: Bench, site: Site) -> None:
    lease = bench.lease("hold")
    with bench.running(lease):
        site.line.next_of("a")
        lease.cancel_request = CancelRequest("alice", 1)
        assert lease.on_cancel_request is not None
        lease.on_cancel_request()
    end = bench.ends[-1]
    assert end is not None
    assert (end.action, end.error, end.crashes) == (SettleAction.CANCEL, "cancelled while it ran, by alice", 0)


def test_a_message_that_is_cancelled_before_its_child_has_it_does_not_start(bench: Bench) -> None:
    lease = bench.lease("run")
    lease.cancel_request = CancelRequest("", 1)
    end = bench.run(lease)
    assert end is not None
    assert (end.action, end.error) == (SettleAction.CANCEL, "cancelled while it ran")


def test_a_child_tells_how_far_its_handler_is(bench: Bench, site: Site) -> None:
    lease = bench.lease("far")
    with bench.running(lease):
        line = site.line.next_of("a")
        until(lambda: lease.progress == "0.4 12 of 30")
        line.release()
    assert bench.action is SettleAction.FINISH
