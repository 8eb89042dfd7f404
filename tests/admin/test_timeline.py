"""The attempts of a message on its page: each with its worker, its times, how it ended and its traceback."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_delayq import cancel_delay_messages
from django_delayq.admin.message.page import timeline
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import claim, finish, page, pk_of, send, settle, text_of, url


@pytest.fixture
def failed_twice(broker: DatabaseBackend, database: str) -> ErrorMessage:
    """A message that failed once, was tried again at once, and failed for good."""
    send("a")
    settle(
        broker, claim(broker, worker="host:1"), SettleAction.RETRY, error="TimeoutError: bank", detail="Traceback: one"
    )
    settle(
        broker,
        claim(broker, worker="host:2"),
        SettleAction.BURY,
        error="ValueError: no",
        detail="Traceback: two",
        failed=True,
    )
    return ErrorMessage.objects.using(database).get()


def test_every_attempt_is_there_with_its_worker_and_error(failed_twice: ErrorMessage) -> None:
    steps = timeline(failed_twice)
    assert [(step.number, step.worker, step.error) for step in steps] == [
        (1, "host:1", "TimeoutError: bank"),
        (2, "host:2", "ValueError: no"),
    ]
    assert [str(step.outcome) for step in steps] == ["failed", "failed for good"]


def test_the_page_shows_the_tracebacks_of_all_attempts(failed_twice: ErrorMessage, superuser: Client) -> None:
    response = superuser.get(url("errormessage", failed_twice.pk, "change"))
    shown = text_of(response)
    assert "failed: TimeoutError: bank" in shown
    assert page(response).count("Traceback: one") == page(response).count("Traceback: two") == 1


def test_a_message_that_waits_for_its_next_attempt_shows_the_traceback_of_its_last(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a")
    settle(
        broker, claim(broker), SettleAction.RETRY, delay_ms=60_000, error="TimeoutError: bank", detail="Traceback: bank"
    )
    shown = page(superuser.get(url("readymessage", pk_of(database, "a"), "change")))
    assert "<details open><summary>Traceback</summary>" in shown
    assert shown.count("Traceback: bank") == 1


def test_an_attempt_tells_how_long_it_waited_and_took(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a")
    row = FinishMessage.objects.using(database).get()
    row.started_at = row.sent_at + timedelta(minutes=5)
    row.ended_at = row.started_at + timedelta(seconds=90)
    (step,) = timeline(row)
    assert (step.waited, step.took, step.outcome) == ("5m", "1m30s", "finished")


def test_the_attempt_that_runs_is_the_last(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a")
    claim(broker, worker="host:9")
    (step,) = timeline(ReadyMessage.objects.using(database).get())
    assert (step.number, step.worker, step.took, str(step.outcome)) == (1, "host:9", "-", "runs")


def test_a_message_that_never_ran_has_no_attempts(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1h")
    assert timeline(ReadyMessage.objects.using(database).get()) == []
    assert "Attempts" not in text_of(superuser.get(url("readymessage", pk_of(database, "a"), "change")))


def test_a_cancel_after_an_attempt_is_no_other_attempt(broker: DatabaseBackend, database: str) -> None:
    send("a")
    settle(broker, claim(broker), SettleAction.RETRY, delay_ms=60_000, error="TimeoutError: bank")
    cancel_delay_messages("a")
    steps = timeline(FinishMessage.objects.using(database).get())
    assert [(step.number, str(step.outcome)) for step in steps] == [(1, "failed"), ("-", "cancelled")]


def test_a_burial_without_an_attempt_has_no_number(broker: DatabaseBackend, database: str) -> None:
    send("a")
    settle(broker, claim(broker), SettleAction.RETRY, error="TimeoutError: bank")
    settle(broker, claim(broker), SettleAction.BURY, error="It has expired.")
    steps = timeline(ErrorMessage.objects.using(database).get())
    assert [(step.number, step.error) for step in steps] == [(1, "TimeoutError: bank"), ("-", "It has expired.")]


def test_a_failure_after_a_snooze_is_an_attempt(broker: DatabaseBackend, database: str) -> None:
    send("a")
    settle(broker, claim(broker), SettleAction.SNOOZE)
    settle(broker, claim(broker), SettleAction.BURY, error="ValueError: no", detail="Traceback: one", failed=True)
    assert [step.number for step in timeline(ErrorMessage.objects.using(database).get())] == [1, 1]


DEEP = f'[{{"x":{"[" * 100_000}{"]" * 100_000}}}]'


@pytest.mark.parametrize("history", ["", "nonsense", "[1]", '[{"attempt": 1}]', DEEP], ids=lambda text: text[:16])
def test_a_history_that_somebody_else_wrote_breaks_no_page(
    broker: DatabaseBackend, superuser: Client, database: str, history: Any
) -> None:
    send("a", delay="1h")
    ReadyMessage.objects.using(database).update(history=history)
    page(superuser.get(url("readymessage", pk_of(database, "a"), "change")))
