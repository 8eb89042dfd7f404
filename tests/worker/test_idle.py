"""What a worker asks of its broker that has nothing to do."""

import threading
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.core.limits import Limits
from django_delayq.worker import maintenance
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


class Knowing(WatchedBroker):
    """Knows after a wait that a claim would find nothing, as Redis does. Tells nobody of pauses."""

    def wait(self, timeout: float) -> bool:
        super().wait(timeout)
        may_find = self._until_due() <= 0
        self.at_end_of_wait()
        return may_find

    def at_end_of_wait(self) -> None:
        """What happens when it has been decided."""

    @property
    def pause_version(self) -> int:
        return 0

    @pause_version.setter
    def pause_version(self, _: int) -> None: ...


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Workers whose maintenance is due all the time."""
    monkeypatch.setattr(maintenance, "EVERY_S", 0.001)
    return Rig(broker_class=Knowing)


def test_a_worker_claims_nothing_where_its_broker_knows_of_nothing(rig: Rig) -> None:
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.upkeeps > 2)
    claims, upkeeps = rig.broker.claims, rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 20)
    assert rig.broker.claims == claims
    rig.send("a")
    rig.until_gone("a")
    rig.stop()


def test_a_heartbeat_tells_a_worker_who_else_lives(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def workers() -> list[WorkerInfo]:
        asked.append(None)
        return []

    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0.001)
    monkeypatch.setattr(rig.broker, "workers", workers)
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.upkeeps > 20)
    rig.stop()
    assert asked == []


def test_a_drain_that_waits_for_its_last_handler_claims_nothing_meanwhile(rig: Rig, gate: threading.Event) -> None:
    started = threading.Event()

    def handler(message: Message[Any]) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    rig.send("a")
    rig.broker.advance(1)
    rig.start(make_handler(handler), drain=True)
    assert started.wait(PATIENCE_S)
    upkeeps = rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 2)
    claims, upkeeps = rig.broker.claims, rig.broker.upkeeps
    rig.broker.until(lambda: rig.broker.upkeeps > upkeeps + 20)
    assert rig.broker.claims == claims
    gate.set()
    rig.join()
    assert rig.broker.claims == claims + 1  # which found nothing more


def test_what_is_paused_no_more_is_claimed_also_where_nobody_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0)
    rig.broker.presence.pause(Pause("default", None, "x"))
    rig.start(make_handler(lambda message: None))
    rig.send("a")
    rig.broker.until(lambda: rig.broker.upkeeps > 2)
    rig.broker.presence.resume("default", None)
    rig.until_gone("a")
    rig.stop()


def test_a_buffer_that_a_claim_left_out_is_claimed_for_though_the_broker_knows_of_nothing(rig: Rig) -> None:
    limited = make_handler(lambda message: None, limits=Limits(interval_us=20_000))
    rig.send("a", "b", "c")
    rig.start(limited, make_handler(lambda message: None, "idle"))
    rig.until_gone("a", "b", "c")
    rig.stop()


def test_a_wake_up_that_comes_just_when_a_wait_has_ended_is_followed_by_a_claim(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.upkeeps > 2)
    claims = rig.broker.claims
    monkeypatch.setattr(rig.broker, "at_end_of_wait", worker._loop._woken.set)
    rig.broker.until(lambda: rig.broker.claims > claims)
    rig.stop()
