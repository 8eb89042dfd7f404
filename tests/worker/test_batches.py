"""Handlers of many: what a batch is, when it starts, and how each of its messages ends."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from django_delayq import Bury, Message, Retry, Snooze
from django_delayq.brokers.base import Pause, SettleAction
from django_delayq.core.message import State
from django_delayq.signals import message_finished
from django_delayq.worker.dispatcher import Dispatcher
from tests.worker.rig import PATIENCE_S, Rig, make_handler

Messages = list[Message[Any]]
Run = Callable[[Messages], Any]
FOREVER_MS = 600_000


def as_sync(run: Run) -> Run:
    def handler(messages: Messages) -> Any:
        return run(messages)

    return handler


def as_async(run: Run) -> Callable[[Messages], Coroutine[Any, Any, Any]]:
    async def handler(messages: Messages) -> Any:
        return run(messages)

    return handler


@pytest.fixture(params=[as_sync, as_async], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Each test runs with handlers of both kinds."""
    return request.param


class Notes:
    """The ids of each batch that ran."""

    def __init__(self, ends: Callable[[Messages], Any] = lambda messages: None) -> None:
        self.batches: list[list[str]] = []
        self._ends = ends

    def __call__(self, messages: Messages) -> Any:
        self.batches.append([message.id for message in messages])
        return self._ends(messages)

    @property
    def ids(self) -> list[str]:
        return [id for batch in self.batches for id in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def ids_of(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_a_full_batch_starts_at_once_and_takes_no_more(rig: Rig, kind: Any) -> None:
    notes, ids = Notes(), ids_of(7)
    rig.send(*ids)
    rig.broker.advance(1)
    rig.start(make_handler(kind(notes), batch=3, wait_ms=FOREVER_MS, concurrency=1))
    rig.broker.until(lambda: sum(notes.sizes) == 6 and rig.broker.queue.counts().running == 1)
    assert notes.sizes == [3, 3]
    waiting = [id for id in ids if id not in notes.ids]
    assert [rig.see(id).state for id in waiting] == [State.RUNNING]  # it is leased, and waits for others
    rig.stop()
    assert rig.see(waiting[0]).state is State.READY
    assert rig.see(waiting[0]).failures == 0


def test_a_batch_that_is_not_full_starts_once_its_wait_is_over(rig: Rig, kind: Any) -> None:
    notes = Notes()
    rig.send("a", "b")
    rig.broker.advance(1)
    rig.start(make_handler(kind(notes), batch=100, wait_ms=300))
    rig.until_gone("a", "b")
    assert [sorted(batch) for batch in notes.batches] == [["a", "b"]]


def test_messages_that_come_meanwhile_join_the_batch_that_waits(rig: Rig, kind: Any) -> None:
    notes = Notes()
    rig.start(make_handler(kind(notes), batch=3, wait_ms=FOREVER_MS))
    for id in ("a", "b", "c"):
        rig.send(id)
        rig.broker.advance(1)
        if id != "c":
            rig.until_state(id, State.RUNNING)
    rig.until_gone("a", "b", "c")
    assert notes.batches == [["a", "b", "c"]]


def test_what_waits_for_its_batch_is_not_released_as_unstarted(
    rig: Rig, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher.release_unstarted, "__defaults__", (0.3,))
    released: list[SettleAction] = []
    notes = Notes()
    worker = rig.make(make_handler(kind(notes), batch=100, wait_ms=900))
    monkeypatch.setattr(worker.settler, "release", lambda leases: released.extend([SettleAction.RELEASE] * len(leases)))
    thread = threading.Thread(target=worker.run, daemon=True)
    rig.send("a")
    rig.broker.advance(1)
    thread.start()
    rig.until_gone("a")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (notes.batches, released) == ([["a"]], [])


def test_a_drain_waits_for_no_more(rig: Rig, kind: Any) -> None:
    notes, ids = Notes(), ids_of(5)
    rig.send(*ids)
    rig.drain(make_handler(kind(notes), batch=3, wait_ms=FOREVER_MS, concurrency=1))
    assert sorted(notes.ids) == ids
    assert max(notes.sizes) == 3


def test_an_at_most_once_message_does_not_wait(rig: Rig, kind: Any) -> None:
    notes = Notes()
    rig.send("a", at_most_once=True)
    rig.broker.advance(1)
    rig.start(make_handler(kind(notes), batch=3, wait_ms=FOREVER_MS))
    rig.until_gone("a")
    assert notes.batches == [["a"]]


def test_what_it_raises_fails_all_each_by_its_own_failures(rig: Rig, kind: Any) -> None:
    def fail(messages: Messages) -> None:
        raise ValueError("no index")

    rig.send("first", max_attempts=1)
    rig.send("second", max_attempts=2)
    rig.drain(make_handler(kind(fail), batch=10, concurrency=1))
    assert (rig.see("first").state, rig.see("second").state) == (State.FAILED, State.PENDING)
    assert [rig.see(id).failures for id in ("first", "second")] == [1, 1]
    assert rig.see("second").error == "ValueError: no index"


@pytest.mark.parametrize(("steer", "failures"), [(Retry("1h"), 1), (Snooze("1h"), 0)], ids=["retry", "snooze"])
def test_a_retry_or_snooze_that_it_raises_is_for_all(rig: Rig, kind: Any, steer: Exception, failures: int) -> None:
    def handler(messages: Messages) -> None:
        raise steer

    rig.send("a", "b")
    rig.drain(make_handler(kind(handler), batch=10))
    assert [(rig.see(id).state, rig.see(id).failures) for id in "ab"] == [(State.PENDING, failures)] * 2


def test_each_message_gets_the_end_that_it_returns_and_the_others_finish(rig: Rig, kind: Any) -> None:
    ends = {"retry": Retry("1h"), "snooze": Snooze("1h"), "bury": Bury("no use"), "fail": KeyError("x"), "none": None}
    rig.send("good", *ends)
    worker = rig.drain(make_handler(kind(Notes(lambda messages: ends)), batch=10))
    assert [rig.broker.queue.get(id) for id in ("good", "none")] == [None, None]
    found = {id: (rig.see(id).state, rig.see(id).failures) for id in ends if id != "none"}
    assert found == {
        "retry": (State.PENDING, 1),
        "snooze": (State.PENDING, 0),
        "bury": (State.FAILED, 1),
        "fail": (State.PENDING, 1),
    }
    assert worker.counts == {"finish": 2, "retry": 2, "snooze": 1, "bury": 1}


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (3, "returns None, or a dict"),
        ({"stranger": ValueError()}, "the id of none of its messages"),
        ({"a": "wrong"}, "give an exception, or None"),
        ({"a": ValueError}, "give an exception, or None"),
    ],
)
def test_what_it_must_not_return_fails_all(rig: Rig, kind: Any, returned: object, error: str) -> None:
    rig.send("a", "b")
    rig.drain(make_handler(kind(Notes(lambda messages: returned)), batch=10))
    assert [rig.see(id).failures for id in "ab"] == [1, 1]
    assert error in rig.see("a").error


def test_data_that_does_not_fit_is_buried_alone(rig: Rig, kind: Any) -> None:
    def index(messages: list[Message[int]]) -> None:
        seen.extend(messages)

    seen: list[Message[int]] = []
    handler = make_handler(kind(index), batch=10)
    handler.__dict__["data_type"] = int
    rig.send("good", data=3)
    rig.send("bad", data="three")
    rig.drain(handler)
    assert [message.data for message in seen] == [3]
    assert rig.see("bad").state is State.FAILED
    assert rig.broker.queue.get("good") is None


def test_a_message_that_is_lost_while_it_runs_gets_no_end_and_the_others_do(kind: Any) -> None:
    rig = Rig(lease_ms=900)
    taken = threading.Event()

    def handler(messages: Messages) -> None:
        stolen = next(message for message in messages if message.id == "a")
        rig.broker._places.entries["a"].token = 999_999  # as if another had claimed it
        assert _until(lambda: not stolen.is_held())
        held.extend(message.id for message in messages if message.is_held())
        taken.set()

    held: list[str] = []
    rig.send("a", "b", "c")
    rig.broker.advance(1)
    rig.start(make_handler(kind(handler), batch=3, wait_ms=FOREVER_MS))
    assert taken.wait(PATIENCE_S)
    rig.until_gone("b", "c")
    assert sorted(held) == ["b", "c"]
    assert rig.broker.queue.get("a") is not None
    rig.stop()


def _until(is_so: Callable[[], bool]) -> bool:
    waiting = threading.Event()
    for _ in range(1_000):
        if is_so():
            return True
        waiting.wait(0.01)
    return False


def test_a_time_out_is_of_the_run_and_charges_each_message(rig: Rig) -> None:
    async def hang(messages: Messages) -> None:
        await asyncio.sleep(PATIENCE_S)

    rig.send("a", timeout_ms=FOREVER_MS)
    rig.send("b")
    rig.drain(make_handler(hang, batch=10, timeout_ms=100))
    assert [(rig.see(id).failures, rig.see(id).error) for id in "ab"] == [
        (1, "HandlerTimeout: It ran for longer than 100ms.")
    ] * 2


def test_signals_are_sent_for_each_message(rig: Rig, kind: Any) -> None:
    def note(id: str, **_: Any) -> None:
        finished.append(id)

    finished: list[str] = []
    message_finished.connect(note)
    try:
        rig.send("a", "b")
        rig.drain(make_handler(kind(Notes()), batch=10))
    finally:
        message_finished.disconnect(note)
    assert sorted(finished) == ["a", "b"]


def test_a_pause_releases_what_waits_for_its_batch(rig: Rig, kind: Any) -> None:
    notes = Notes()
    rig.send("a")
    rig.broker.advance(1)
    rig.start(make_handler(kind(notes), batch=10, wait_ms=FOREVER_MS))
    rig.until_state("a", State.RUNNING)
    rig.broker.presence.pause(Pause("default", None, "x"))
    rig.broker.queue.wake()
    rig.until_state("a", State.READY)
    assert notes.batches == []
