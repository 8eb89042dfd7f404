"""run_due calls handlers of many with lists, as a worker would, in virtual time."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group
from pytest_django import Settings

from django_delayq import Message, Retry, cancel_delay_messages, delay_execute, get_delay_message
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import SettleAction
from django_delayq.core.message import State
from django_delayq.testing import run_due

Messages = list[Message[int]]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture(autouse=True, params=["no store", pytest.param("sqlite", marks=pytest.mark.django_db)])
def kind(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Each test runs without a store, and with one in the transaction of the test."""
    if request.param == "sqlite":
        settings.DELAYQ = {"default": {"STORE": {}}}
    return str(request.param)


@pytest.fixture(autouse=True)
def _memory(kind: str, delayq_memory: None) -> None:
    """The broker in memory is for those settings."""


@pytest.fixture
def runs() -> list[tuple[timedelta, list[int]]]:
    """How long after `NOW` each batch ran, and its data."""
    return []


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def index(request: pytest.FixtureRequest, runs: list[tuple[timedelta, list[int]]]) -> Handler[int, Any]:
    def note(messages: Messages) -> Any:
        runs.append((datetime.now(UTC) - NOW, [message.data for message in messages]))
        failed = {message.id: Retry("1h") for message in messages if message.data < 0 and message.attempt == 1}
        return failed or None

    def sync(messages: Messages) -> Any:
        return note(messages)

    async def asynchronous(messages: Messages) -> Any:
        return note(messages)

    register = delay_execute(key="index", batch=3, wait="10s")
    return register(asynchronous) if request.param else register(sync)


@pytest.fixture(autouse=True)
def _at_noon() -> Iterator[None]:
    with time_machine.travel(NOW, tick=False):
        yield


def seconds(runs: list[tuple[timedelta, list[int]]]) -> list[tuple[int, list[int]]]:
    return [(round(after.total_seconds()), data) for after, data in runs]


def test_a_batch_runs_when_it_is_full_or_has_waited(index: Any, runs: Any) -> None:
    for number, delay in enumerate(["1s", "2s", "3s", "1m", "65s", "2m"]):
        index.send(number, delay=delay)
    made = run_due("1h")
    assert seconds(runs) == [(3, [0, 1, 2]), (70, [3, 4]), (130, [5])]
    assert [one.ended for one in made] == [SettleAction.FINISH] * 6


def test_at_the_end_of_the_time_no_batch_waits(index: Any, runs: Any) -> None:
    index.send(1)
    index.send(2, delay="1m")
    run_due()
    assert seconds(runs) == [(0, [1])]


def test_a_message_with_an_end_of_its_own_runs_again(index: Any, runs: Any) -> None:
    index.send(1, id="good")
    index.send(-1, id="bad")
    made = run_due(errors="keep")
    assert {one.id: one.ended for one in made} == {"good": SettleAction.FINISH, "bad": SettleAction.RETRY}
    run_due("2h")
    assert [sorted(data) for _, data in runs] == [[-1, 1], [-1]]


def test_an_error_ends_the_run_and_nothing_stays_leased(index: Any, runs: Any) -> None:
    @delay_execute(key="fail", max_attempts=1)
    def fail(message: Message[None]) -> None:
        raise ValueError("no")

    index.send(1, id="waits")
    fail.send(delay="1s")
    with pytest.raises(ValueError, match="no"):
        run_due("1m")
    found = get_delay_message("waits")
    assert found is not None
    assert found.state is State.READY


def test_each_batch_is_delivered_twice(index: Any, runs: Any) -> None:
    index.send(1)
    run_due(deliveries=2)
    assert [data for _, data in runs] == [[1], [1]]


def test_a_message_of_a_failed_batch_that_was_cancelled_meanwhile_ends_so(caplog: pytest.LogCaptureFixture) -> None:
    @delay_execute(key="index", batch=3, max_attempts=1)
    def index(messages: Messages) -> None:
        cancel_delay_messages("a", running=True, by="alice")
        raise ValueError("no")

    for id in ("a", "b"):
        index.send(1, id=id)
    ran = run_due(errors="keep")
    ends = {one.id: (one.ended, one.error) for one in ran}
    assert ends == {
        "a": (SettleAction.CANCEL, "cancelled while it ran, by alice"),
        "b": (SettleAction.BURY, "ValueError: no"),
    }
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in logged if "'a'" in text] == []
    assert len(logged) == 1, "that of the other"


@pytest.mark.django_db
def test_an_atomic_batch_that_fails_writes_nothing(kind: str) -> None:
    @delay_execute(key="atomic", batch=3, atomic=True, max_attempts=1)
    def atomic(messages: Messages) -> None:
        Group.objects.create(name="written")
        raise ValueError("no")

    atomic.send(1, id="a")
    run_due(errors="keep")
    assert not Group.objects.exists()
    assert get_delay_message("a").state is State.FAILED  # type: ignore[union-attr]


def test_run_gives_a_handler_of_many_a_list_of_one() -> None:
    @delay_execute(key="sum", batch=3)
    def total(messages: Messages) -> int:
        return sum(message.data for message in messages)

    assert total.run(3) == 3
