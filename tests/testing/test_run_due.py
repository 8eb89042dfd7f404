"""run_due: moves virtual time, and does with messages what a worker does."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from pytest_django import Settings

from django_delayq import (
    Bury,
    DuplicateMessage,
    cancel_delay_messages,
    get_delay_message,
    send_delay_message,
)
from django_delayq.api.send import header_of
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, Header, NewMessage, SettleAction, Transition
from django_delayq.core import transitions
from django_delayq.core.message import State
from django_delayq.signals import message_finished, message_started
from django_delayq.testing import arun_due, run_due, sent_messages
from django_delayq.testing.timeline import messages_of
from tests.testing import handlers
from tests.testing.handlers import (
    chain,
    fail,
    for_ever,
    hourly,
    note,
    note_async,
    once,
    rated,
    seen,
    steer,
    stop,
    stop_async,
)


@pytest.fixture(autouse=True, params=["no store", pytest.param("sqlite", marks=pytest.mark.django_db), "postgresql"])
def kind(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Each test runs without a store, with one in the transaction of the test, and with one that commits."""
    kind: str = request.param
    if kind == "sqlite":
        settings.DELAYQ = {"default": {"STORE": {}}}
    elif kind == "postgresql":
        settings.DELAYQ = {"default": {"STORE": {}, "DATABASE": request.getfixturevalue("postgres_database")}}
    return kind


@pytest.fixture(autouse=True)
def _memory(kind: str, delayq_memory: None) -> None:
    """The broker in memory is for those settings."""


def _data() -> list[str]:
    return [message.data for message in seen]


@pytest.mark.parametrize("delay", [None, 0, "1ms", "3d"])
def test_what_is_due_by_then_runs(delay: str | None) -> None:
    note.send("a", delay=delay)
    (attempt,) = run_due(until=delay or 0)
    assert (attempt.key, attempt.number, attempt.ended) == ("testing.note", 1, SettleAction.FINISH)
    assert _data() == ["a"]
    assert run_due(until="30d") == []


def test_what_is_due_later_waits_and_time_adds_up() -> None:
    note.send("a", delay="3d")
    assert run_due(until="2d") == []
    assert [message.data for message in sent_messages()] == ["a"]
    assert len(run_due(until="1d")) == 1


def test_what_is_due_later_holds_up_nothing_of_another_queue() -> None:
    note.send("now")
    note_async.send("later", delay="3d")
    run_due(until="1d")
    assert _data() == ["now"]


@pytest.mark.parametrize("gets_older", [False, True], ids=["a clock that moves", "messages that get older"])
def test_a_rate_lets_messages_start_at_their_turns_of_each_value(
    request: pytest.FixtureRequest, gets_older: bool
) -> None:
    if gets_older:
        request.getfixturevalue("_no_library")
    for _ in range(4):
        rated.send("a")
        rated.send("b")
    attempts = run_due(until="2h")
    began_at = attempts[0].at
    hours: dict[str, list[float]] = {"a": [], "b": []}
    for attempt, message in zip(attempts, seen, strict=True):
        assert (attempt.ended, attempt.number) == (SettleAction.FINISH, 1)
        hours[message.data].append(round((attempt.at - began_at) / timedelta(hours=1), 3))
    assert hours == {"a": [0, 0, 1, 2], "b": [0, 0, 1, 2]}


def test_what_waits_for_its_turn_keeps_its_order_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    release = transitions.release

    def note_release(claimed: Claimed, *delay_ms: int) -> Transition:
        released.append(claimed.id)
        return release(claimed, *delay_ms)

    monkeypatch.setattr(transitions, "release", note_release)
    ids = [f"m{n}" for n in range(9)]
    for id in ids:
        hourly.send(id, id=id)
    assert [attempt.id for attempt in run_due(until="8h")] == ids
    assert released == ids[1:]


def test_what_its_rate_does_not_let_start_by_then_waits() -> None:
    for _ in range(3):
        rated.send("a")
    assert len(run_due()) == 2
    assert len(sent_messages()) == 1
    assert run_due() == []
    assert len(run_due(until="1h")) == 1


def test_data_without_what_the_rate_counts_fails_as_at_a_worker() -> None:
    broker = get_backend("default")
    broker.queue.enqueue([NewMessage("x", Header("default", "testing.rated"), b"[")])
    (attempt,) = run_due(errors="keep")
    assert attempt.ended is SettleAction.BURY


def test_an_instant_is_reached() -> None:
    note.send("a", at=timezone.now() + timedelta(days=3))
    note.send("now", at=timezone.now())
    run_due()
    assert _data() == ["now"]
    run_due(until="3d")
    assert _data() == ["now", "a"]


def test_due_order_over_queues_and_keys_whatever_the_order_of_sending() -> None:
    note.send("3", delay="3h")
    note_async.send("2", delay="2h")
    note_async.send("4", delay="4h")
    note.send("1", delay="1h")
    attempts = run_due(until="1d")
    assert _data() == ["1", "2", "3", "4"]
    assert [attempt.key for attempt in attempts[:2]] == ["testing.note", "testing.note_async"]


def test_each_runs_at_its_due_time(kind: str) -> None:
    sent = note.send("a", delay="3d")
    assert sent.due_at is not None
    (attempt,) = run_due(until="7d")
    (message,) = seen
    assert timedelta(0) <= attempt.at - sent.due_at < timedelta(minutes=1)
    assert timedelta(0) <= message.lateness < timedelta(minutes=1)
    if kind == "no store":
        assert message.due_at == sent.due_at


def test_failures_are_tried_again_after_their_backoff_and_buried_in_the_end() -> None:
    fail.send("x", id="f")
    attempts = run_due(until="59m", errors="keep")
    assert [(attempt.number, attempt.ended, str(attempt.exception)) for attempt in attempts] == [
        (1, SettleAction.RETRY, "x")
    ]
    attempts = run_due(until="1d", errors="keep")
    assert [(attempt.number, attempt.ended) for attempt in attempts] == [
        (2, SettleAction.RETRY),
        (3, SettleAction.BURY),
    ]
    assert round((attempts[1].at - attempts[0].at) / timedelta(hours=1)) == 2
    info = get_delay_message("f")
    assert info is not None
    assert (info.state, info.error) == (State.FAILED, "ValueError: x")


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        ("retry", [(1, SettleAction.RETRY), (2, SettleAction.FINISH)]),
        ("snooze", [(1, SettleAction.SNOOZE), (1, SettleAction.FINISH)]),
        ("bury", [(1, SettleAction.BURY)]),
    ],
)
def test_a_handler_steers_its_message(data: str, ends: list[tuple[int, SettleAction]]) -> None:
    steer.send(data)
    assert [(attempt.number, attempt.ended) for attempt in run_due(until="5m", errors="keep")] == ends


@pytest.mark.parametrize("microseconds", [0, 300])
def test_until_is_reached_though_due_times_are_rounded_up(microseconds: int) -> None:
    """The clock stands still, so that no time passes between the hops."""
    with time_machine.travel(datetime(2030, 1, 1, microsecond=microseconds, tzinfo=UTC), tick=False):
        chain.send(3)
        assert len(run_due(until="3d")) == 4


def test_what_handlers_send_runs_when_it_comes_due() -> None:
    chain.send(3)
    assert len(run_due(until="2d")) == 3
    assert len(run_due(until="2d")) == 1


def test_an_expired_message_is_buried_unrun() -> None:
    note.send("a", id="a", delay="1h", expires="1m")
    note.send("first", delay="30m")
    messages_of("default").age(2 * 3_600_000)
    attempts = run_due(errors="keep")
    assert [attempt.ended for attempt in attempts] == [SettleAction.FINISH, SettleAction.BURY]
    assert _data() == ["first"]
    assert "expired" in attempts[1].error


def test_a_message_without_a_handler_stays_parked() -> None:
    get_backend().queue.enqueue([NewMessage("parked", Header("default", "testing.nobody"), b"1")])
    assert run_due(until="1d") == []
    assert [info.id for info in sent_messages()] == ["parked"]


def test_a_handler_that_raises_fails_the_test_by_its_own_exception() -> None:
    note.send("first")
    fail.send("x", id="f", delay="1h")
    note.send("later", delay="3h")
    with pytest.raises(ValueError, match="x") as failed:
        run_due(until="1d")
    (told,) = failed.value.__notes__
    assert "Message 'f' (key 'testing.fail'), attempt 1: it would be tried again." in told
    assert 'errors="keep"' in told
    assert _data() == ["first", "x"]
    assert [message.data for message in sent_messages()] == ["x", "later"]  # it ended as in a worker


def test_so_does_one_that_fails_without_having_run_or_for_good() -> None:
    note.send("a", delay="1h", expires="1m")
    messages_of("default").age(2 * 3_600_000)
    with pytest.raises(AssertionError, match=r"expired.*key 'testing.note'.*failed for good"):
        run_due()
    steer.send("bury")
    with pytest.raises(Bury, match="no use"):
        run_due()


@pytest.fixture
def sent_by_later_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose data is of version 2, for a handler that knows version 1."""
    with monkeypatch.context() as later:
        later.setattr(note, "version", 2)
        header_of.cache_clear()
        note.send("a", id="a")
    header_of.cache_clear()


@pytest.mark.usefixtures("sent_by_later_code")
def test_data_of_a_later_version_fails_the_test_and_is_called_that() -> None:
    with pytest.raises(AssertionError) as failed:
        run_due()
    assert str(failed.value) == (
        "its data is of version 2, and this code knows no later one than 1. "
        "Message 'a' (key 'testing.note'), attempt 1: a worker with this code would not run it, but leave it to later "
        'code. If the test means it to wait, write run_due(…, errors="keep").'
    )
    assert seen == []


@pytest.mark.usefixtures("sent_by_later_code")
def test_data_of_a_later_version_waits_where_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = run_due(until="2m", errors="keep")
    assert {(attempt.number, attempt.ended) for attempt in attempts} == {(1, SettleAction.RELEASE)}
    monkeypatch.setattr("django_delayq.testing.running.MOST_ATTEMPTS", 10)
    with pytest.raises(
        RuntimeError, match=r"10 attempts and no end.*version 2, and this code knows no later one than 1"
    ):
        run_due(until="1h", errors="keep")
    waiting = get_delay_message("a")
    assert waiting is not None
    assert (waiting.failures, seen) == (0, [])


def test_a_snooze_is_no_failure() -> None:
    steer.send("snooze")
    assert [attempt.ended for attempt in run_due(until="1h")] == [SettleAction.SNOOZE, SettleAction.FINISH]


def test_what_to_do_with_errors_is_raise_or_keep() -> None:
    with pytest.raises(ValueError, match="errors='ignore'"):
        run_due(errors="ignore")  # type: ignore[arg-type]


def test_a_cancelled_message_does_not_run() -> None:
    note.send("a", id="a", delay="1h")
    assert cancel_delay_messages("a") == 1
    assert run_due(until="1d") == []


def test_everything_delivered_twice_with_a_token_of_its_own() -> None:
    note.send("a", delay="1h")
    note_async.send("b", delay="2h")
    attempts = run_due(until="1d", deliveries=2)
    assert _data() == ["a", "a", "b", "b"]
    assert [attempt.number for attempt in attempts] == [1, 1, 1, 1]
    assert seen[0].token != seen[1].token
    assert run_due(until="1d") == []


def test_delivered_twice_a_failure_is_tried_again_as_ever() -> None:
    fail.send("x")
    assert [attempt.number for attempt in run_due(until="1d", deliveries=2, errors="keep")] == [1, 2, 3]


def test_at_most_once_is_delivered_once() -> None:
    once.send("a")
    assert len(run_due(deliveries=2)) == 1
    assert _data() == ["a"]


@pytest.mark.parametrize("deliveries", [0, 1.5, "2", True])
def test_what_is_no_number_of_deliveries_is_refused(deliveries: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"deliveries={deliveries!r} "):
        run_due(deliveries=deliveries)


def test_handlers_without_an_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.testing.running.MOST_ATTEMPTS", 50)
    for_ever.send("a")
    with pytest.raises(RuntimeError, match="50 attempts and no end"):
        run_due(until="1s")


def test_signals_are_sent_as_by_a_worker() -> None:
    told: list[object] = []

    def receive(**facts: object) -> None:
        told.append((facts["signal"], facts["key"]))

    message_started.connect(receive)
    message_finished.connect(receive)
    try:
        note.send("a")
        run_due()
    finally:
        message_started.disconnect(receive)
        message_finished.disconnect(receive)
    assert told == [(message_started, "testing.note"), (message_finished, "testing.note")]


def test_in_an_event_loop_the_async_twin_is_named_and_works() -> None:
    async def use() -> None:
        await note_async.asend("a", delay="1h")
        with pytest.raises(RuntimeError, match="arun_due"):
            run_due()
        assert len(await arun_due(until="1h")) == 1

    async_to_sync(use)()
    assert _data() == ["a"]


def test_on_a_broker_whose_time_does_not_move_it_says_what_to_do(settings: object) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker"}}  # type: ignore[attr-defined]
    with pytest.raises(ImproperlyConfigured, match=r"MemoryBroker.*DelayqMixin"):
        run_due()


def test_a_conflict_is_seen_as_on_any_broker() -> None:
    send_delay_message("testing.note", "a", id="a", delay="1h")
    with pytest.raises(DuplicateMessage):
        send_delay_message("testing.note", "b", id="a", on_conflict="raise")
    assert handlers.seen == []


@pytest.mark.parametrize("how", ["retry", "look"])
def test_what_is_cancelled_while_it_runs_ends_so(kind: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    stop.send(how, id="a")
    (attempt,) = run_due(until="1h")
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
    assert (attempt.ended, attempt.error) == (SettleAction.CANCEL, "cancelled while it ran, by alice")
    info = get_delay_message("a")
    assert info is None if kind == "no store" else info is not None and info.state is State.CANCELLED
    assert run_due(until="30d") == []


def test_what_returns_although_it_is_cancelled_has_finished() -> None:
    stop.send("return")
    (attempt,) = run_due()
    assert attempt.ended is SettleAction.FINISH


def test_an_async_handler_that_is_cancelled_ends_so() -> None:
    stop_async.send("x")
    (attempt,) = run_due()
    assert attempt.ended is SettleAction.CANCEL


def test_a_handler_sees_its_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    stop.send("return", id="a")

    def look_and_cancel(*ids: str, **options: Any) -> int:
        info = get_delay_message("a")
        assert info is not None
        shown.append(info.progress)
        return cancel_delay_messages(*ids, **options)

    monkeypatch.setattr(handlers, "cancel_delay_messages", look_and_cancel)
    run_due()
    assert shown == [(0.5, "half")]
