"""What a heartbeat tells of its worker."""

import asyncio
import threading

import pytest

from django_delayq import Message
from django_delayq.brokers.base import ExecutorInfo, MaintenanceResult, RunInfo, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.worker import maintenance
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat with all maintenance."""
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 0)


@pytest.mark.usefixtures("often")
def test_a_heartbeat_tells_what_runs_and_since_when(rig: Rig) -> None:
    seen: list[Message[None]] = []
    ends = threading.Event()

    def run(message: Message[None]) -> None:
        seen.append(message)
        ends.wait(PATIENCE_S)

    rig.send("a", queue="mail")
    rig.start(make_handler(run, queue="mail"))
    rig.broker.until(lambda: seen and any(worker.runs for worker in rig.broker.presence.workers()))
    ((run_info,),) = [worker.runs for worker in rig.broker.presence.workers()]
    assert (run_info.id, run_info.queue, run_info.key) == ("a", "mail", "k")
    assert abs(run_info.started_ms - seen[0].started_ms) < 1_000  # not the monotonic clock's
    ends.set()
    rig.broker.until(lambda: not any(worker.runs for worker in rig.broker.presence.workers()))


def test_a_heartbeat_tells_how_many_messages_run_at_once_of_each_key(rig: Rig) -> None:
    async def run_async(message: Message[None]) -> None: ...

    def run(message: Message[None]) -> None: ...

    rig.start(
        make_handler(run, key="k", former_keys=("was k",)),
        make_handler(run, key="l", concurrency=1),
        make_handler(run_async, key="m", concurrency=7),
        threads=3,
    )
    rig.broker.until(rig.broker.presence.workers)
    (worker,) = rig.broker.presence.workers()
    assert worker.executors == [ExecutorInfo(4, {"k": 3, "was k": 3, "l": 1}), ExecutorInfo(7, {"m": 7})]


@pytest.mark.usefixtures("often")
def test_a_heartbeat_tells_of_those_that_run_for_longest_and_of_no_more_than_it_may(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MOST_RUNS", 2)
    ends = threading.Event()
    started: list[str] = []

    async def run(message: Message[None]) -> None:
        started.append(message.id)
        while not ends.is_set():
            await asyncio.sleep(0.01)

    rig.send("a")
    rig.start(make_handler(run))
    rig.broker.until(lambda: started == ["a"])
    rig.send("b", "c")

    def told() -> list[RunInfo]:
        return [run for worker in rig.broker.presence.workers() for run in worker.runs]

    rig.broker.until(lambda: len(started) == 3 and len(told()) == 2)
    assert told()[0].id == "a"
    assert [worker.running for worker in rig.broker.presence.workers()] == [3]
    ends.set()


@pytest.mark.usefixtures("often")
def test_a_heartbeat_that_the_broker_does_not_take_is_told_once_and_stops_no_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    def refuse(worker: WorkerInfo) -> None:
        refused.append(worker.name)
        raise BrokerUnavailable("It takes nothing.")

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    caplog.set_level("INFO")
    with monkeypatch.context() as patch:
        patch.setattr(rig.broker, "heartbeat", refuse)
        rig.start(make_handler(lambda message: None))
        rig.broker.until(lambda: len(refused) > 1)
        rig.send("a")
        rig.until_gone("a")
        rig.broker.until(lambda: len(refused) > 2)
        assert [text for text in told() if "It takes nothing." in text or "is back" in text] == [
            "It takes nothing. Trying again until it works."
        ]
    rig.broker.until(lambda: "The broker is back." in told())


class BrokenUpkeep(WatchedBroker):
    """A broker whose maintenance fails for a reason that nobody has thought of."""

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        raise UnicodeError("not ours")


@pytest.mark.usefixtures("often")
def test_upkeep_that_fails_for_any_reason_stops_neither_heartbeats_nor_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(broker_class=BrokenUpkeep)
    rig.send("a")
    rig.start(make_handler(lambda message: None))
    rig.until_gone("a")
    rig.broker.until(rig.broker.presence.workers)
    rig.stop()
    assert "not ours" in caplog.text
