"""A hand and its child process, without a worker around them."""

import contextlib
import os
import queue
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from django_delayq import Message
from django_delayq.brokers.base import Claimed, Header, SettleAction, Transition
from django_delayq.worker import children, process_runner
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.process_runner import ProcessRunner
from django_delayq.worker.settler import Settler
from django_delayq.worker.turns import Turns
from tests.servers.cluster import until
from tests.worker.processes import PATIENCE_S, Site
from tests.worker.rig import Rig, make_handler

MIB = 1024**2
FD_SETSIZE = 1024


class Assign(Settler):
    """Keeps what it is told."""

    def __init__(self, leases: Leases, rig: Rig) -> None:
        super().__init__(rig.broker, leases, OutageLog())
        self.ends: dict[str, Transition] = {}

    def add(self, lease: Lease, settlement: Transition, *, urgent: bool = True) -> None:
        assert lease.claimed.id not in self.ends, "ended twice"
        self.ends[lease.claimed.id] = settlement

    @property
    def verbs(self) -> dict[str, SettleAction]:
        """How each message ended."""
        return {id: settlement.action for id, settlement in list(self.ends.items())}


class Bench:
    """A hand, the lane that it works in, and what becomes of the messages there."""

    def __init__(self, rig: Rig, max_memory: int | None = None) -> None:
        self.leases = Leases(rig.broker, 15_000, OutageLog())
        self.told = Assign(self.leases, rig)
        self.offered: queue.SimpleQueue[PrefetchBuffer] = queue.SimpleQueue()
        self.turns = Turns(self.leases, self.told, lambda: None, self.offered.put, lambda buffer: self.may_stay)
        self.may_stay = True
        self.hand = ProcessRunner("worker", "default", AttemptEvents("worker"), max_memory, 1, self.turns)
        self.buffer = make_buffer()

    def start(self) -> None:
        """Have a child: without one a hand takes no more than one message."""
        assert self.run_one("brisk") == (SettleAction.FINISH, "")
        self.told.ends.clear()

    def fill(self, held_s: float = 60, timeout_ms: int | None = None, **keys: str) -> dict[str, Lease]:
        """Put leases into the lane, of a message for each id, by its handler's key there."""
        now = monotonic()

        def lease_of(id: str, key: str) -> Lease:
            claimed = Claimed(id, 1, 0, Header("default", key, timeout_ms=timeout_ms), b'""')
            return Lease(claimed, self.buffer, now, now + held_s, 0.0)

        leases = {id: lease_of(id, key) for id, key in keys.items()}
        self.buffer.leases.extend(leases.values())
        return leases

    def work(self) -> int:
        """A turn of the hand. How many messages it ended."""
        count, _ = self.hand.work(self.buffer)
        return count

    def work_on(self) -> None:
        """As many turns as there is work for."""
        while self.waiting:
            self.work()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """As `work`, beside the block."""
        thread = threading.Thread(target=self.work)
        thread.start()
        yield
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    def run_one(self, key: str, *, at_most_once: bool = False) -> tuple[SettleAction, str]:
        """How the lease of a message for a handler ends, and why."""
        self.buffer = make_buffer(at_most_once=at_most_once)
        self.told.ends.clear()
        self.fill(a=key)
        self.work()
        settlement = self.told.ends["a"]
        return settlement.action, settlement.error or ""

    @property
    def waiting(self) -> list[str]:
        """What waits in the lane."""
        return [lease.claimed.id for lease in self.buffer.leases]


def make_buffer(*, at_most_once: bool = False) -> PrefetchBuffer:
    """A lane whose handler is known as fast."""

    def func(message: Message[str]) -> None:
        """Never called: the child has its own."""

    return PrefetchBuffer(make_handler(func, at_most_once=at_most_once), (), 1, active=1, mean_s=0.000_1)


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(site: Site, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBench]:
    """Hands whose children know the handlers of the site."""
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_runner, "RESTART_PAUSE_S", 0)
    made: list[Bench] = []

    def make(max_memory: int | None = None) -> Bench:
        made.append(Bench(rig, max_memory))
        return made[-1]

    yield make
    for bench in made:
        bench.hand.close()


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open as `select.select` can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * FD_SETSIZE:
        pytest.skip(f"this process may have no more than {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FD_SETSIZE), hard))
    with open(os.devnull) as file, contextlib.ExitStack() as opened:
        for _ in range(FD_SETSIZE):
            opened.callback(os.close, os.dup(file.fileno()))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_that_dies_of_its_message_is_a_crash_of_that_message(bench: Bench) -> None:
    assert bench.run_one("die") == (SettleAction.CRASH, "its process died (signal 9)")
    assert bench.run_one("run") == (SettleAction.FINISH, "")


def test_at_most_once_is_buried_by_the_death_of_its_child(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    verb, error = bench.run_one("die", at_most_once=True)
    assert verb is SettleAction.BURY
    assert error == "its process died (signal 9); at_most_once: it may have run in part"
    assert "is buried: its process died" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_child_that_died_idle_costs_the_next_message_nothing(
    bench: Bench, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.run_one("run") == (SettleAction.FINISH, "")
    pid = site.line.next().pid
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)
    assert bench.run_one("run") == (SettleAction.FINISH, "")
    assert "is gone (its process died (signal 9)); starting another" in caplog.text


def test_a_child_that_can_not_take_a_message_costs_it_nothing(bench: Bench) -> None:
    assert bench.run_one("only the parent knows it") == (SettleAction.RELEASE, "")


def test_what_a_child_can_not_take_is_given_back_before_its_hand_rests_and_a_stop_ends_the_rest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "RESTART_PAUSE_S", 10 * PATIENCE_S)
    bench.fill(a="only the parent knows it")
    with bench.working():
        until(lambda: bench.told.verbs == {"a": SettleAction.RELEASE})
        bench.turns.stop()


def test_a_child_that_is_never_ready_costs_its_messages_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.worker.hanging_settings")
    monkeypatch.setattr(children, "START_S", 0.5)
    bench.fill(a="run", b="run")
    assert bench.work() == 0
    assert bench.told.verbs == {"a": SettleAction.RELEASE}
    assert bench.waiting == ["b"]
    assert "it is not ready after 0.5 s" in caplog.text


def test_a_message_whose_child_is_killed_at_the_end_of_its_lease_is_charged_nothing(bench: Bench, site: Site) -> None:
    bench.start()
    leases = bench.fill(a="hold")
    with bench.working():
        site.line.next_of("a")
        leases["a"].held_until = 0.0
    assert bench.told.verbs == {"a": SettleAction.INTERRUPT}


def test_a_child_that_dies_costs_what_it_ran_of_its_batch_and_nothing_else(bench: Bench, site: Site) -> None:
    bench.start()
    bench.fill(a="run", b="run", poison="die", c="run", d="run")
    assert bench.work() == 3
    assert bench.told.verbs == {"a": SettleAction.FINISH, "b": SettleAction.FINISH, "poison": SettleAction.CRASH}
    assert bench.waiting == ["c", "d"]  # for this hand or another, by the leases that they have
    bench.work_on()
    assert bench.told.verbs | {"c": SettleAction.FINISH, "d": SettleAction.FINISH} == bench.told.verbs
    pids = {call.id: call.pid for call in [site.line.next() for _ in range(5)]}
    assert pids["a"] == pids["b"] == pids["poison"] != pids["c"] == pids["d"]


def test_a_time_out_in_a_batch_is_that_of_the_message_that_runs(bench: Bench, site: Site) -> None:
    bench.start()
    bench.fill(a="run")
    bench.fill(timeout_ms=300, slow="spin")
    bench.fill(b="run")
    bench.turns.stop()
    assert bench.work() == 2
    assert bench.told.verbs == {"a": SettleAction.FINISH, "slow": SettleAction.RETRY, "b": SettleAction.RELEASE}
    assert bench.told.ends["slow"].error == "HandlerTimeout: It ran for longer than 300ms; its process was killed."


def test_what_waits_behind_a_slow_message_of_its_batch_is_given_to_other_hands(bench: Bench, site: Site) -> None:
    bench.start()
    bench.fill(a="run", slow="hold", b="run", c="run")
    with bench.working():
        assert bench.offered.get(timeout=PATIENCE_S) is bench.buffer
        assert bench.told.verbs == {"a": SettleAction.FINISH}  # nor does it hold up what ended before it
        assert bench.waiting == ["b", "c"]
        site.line.next_of("slow").release()
    assert bench.told.verbs == {"a": SettleAction.FINISH, "slow": SettleAction.FINISH}


def test_what_waits_behind_a_slow_message_is_given_back_by_a_worker_that_stops(bench: Bench, site: Site) -> None:
    bench.start()
    bench.fill(slow="hold", b="run")
    bench.turns.stop()
    with bench.working():
        held = site.line.next_of("slow")
        until(lambda: "b" in bench.told.ends)
        assert bench.told.verbs == {"b": SettleAction.RELEASE}
        held.release()
    assert bench.told.verbs == {"b": SettleAction.RELEASE, "slow": SettleAction.FINISH}
    assert bench.waiting == []


def test_a_lease_that_is_lost_in_a_batch_ends_its_handler_and_harms_no_other(bench: Bench, site: Site) -> None:
    bench.start()
    leases = bench.fill(a="run", lost="seize", b="run")  # the child can't give back what waits behind it
    with bench.working():
        site.line.next_of("lost")
        until(lambda: leases["lost"].abandon is not None)  # it is known here what runs
        bench.leases.lose([leases["lost"]])
    assert bench.told.verbs == {"a": SettleAction.FINISH}
    assert bench.waiting == ["b"]
    assert bench.work() == 1
    assert bench.told.verbs == {"a": SettleAction.FINISH, "b": SettleAction.FINISH}


def test_a_child_over_its_memory_starts_nothing_more(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(max_memory=250 * MIB)
    bench.start()
    bench.fill(a="grow", b="run", c="run")
    assert bench.work() == 1
    assert bench.waiting == ["b", "c"]
    bench.work_on()
    assert set(bench.told.verbs.values()) == {SettleAction.FINISH}
    calls = {call.id: call.pid for call in [site.line.next() for _ in range(3)]}
    assert calls["a"] != calls["b"] == calls["c"]


def test_a_worker_with_a_thousand_connections_has_children_too(bench: Bench, many_files: None) -> None:
    assert bench.run_one("run") == (SettleAction.FINISH, "")


def test_a_time_out_ends_also_who_reads_nothing_of_what_it_is_told(bench: Bench, site: Site) -> None:
    bench.start()
    leases = bench.fill(timeout_ms=2_000, deaf="seize")
    shrink_what_a_child_may_leave_unread(bench)
    with bench.working():
        site.line.next_of("deaf")
        until(lambda: bool(bench.told.ends) or renew(leases["deaf"]))
    assert bench.told.verbs == {"deaf": SettleAction.RETRY}


def shrink_what_a_child_may_leave_unread(bench: Bench) -> None:
    """To what is told within a second: else it is full after some hundred renewals, of a handler that runs for long."""
    assert bench.hand._child is not None
    bench.hand._child._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)


def renew(lease: Lease) -> bool:
    """For so short that it is told of at each look."""
    lease.held_until = monotonic() + 0.04
    return False
