"""Batches in a site's tests: what follows one comes once all of its members have ended, however they did."""

import pytest
from pytest_django import Settings

from django_delayq import Batch, Send, cancel_delay_messages
from django_delayq.testing import run_due
from tests.testing.handlers import batches_done


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Put the default alias on a store of each kind."""
    kind: str = request.param
    name: str = request.getfixturevalue({"postgresql": "postgres_database"}.get(kind, f"{kind}_database"))
    settings.DELAYQ = {"default": {"STORE": {}, "DATABASE": name}}
    return name


pytestmark = pytest.mark.usefixtures("database", "delayq_memory")


def batch_of_two() -> Batch:
    with Batch("testing.batch_done", data="x") as batch:
        batch.send_many([Send("testing.note", "a"), Send("testing.note", "b", delay="1d")])
    return batch


def test_the_message_after_a_batch_comes_when_the_last_member_has_ended() -> None:
    batch = batch_of_two()
    run_due(until="23h")
    assert batches_done == []
    assert [attempt.id for attempt in run_due(until="2h")] == [f"{batch.id}/000000002", batch.id]
    assert [(done.total, done.finished, done.data) for done in batches_done] == [(2, 2, "x")]


def test_it_comes_at_once_if_the_last_member_was_cancelled() -> None:
    batch = batch_of_two()
    run_due()
    assert cancel_delay_messages(f"{batch.id}/000000002") == 1
    assert [attempt.id for attempt in run_due()] == [batch.id]
    assert [(done.finished, done.cancelled) for done in batches_done] == [(1, 1)]
    assert run_due(until="30d") == []


def test_it_comes_if_a_handler_cancels_the_last_member() -> None:
    batch = batch_of_two()
    with Batch("testing.batch_done") as other:
        other.send("testing.cancel", f"{batch.id}/000000002")
    run_due()
    assert {done.batch: (done.finished, done.cancelled) for done in batches_done} == {
        batch.id: (1, 1),
        other.id: (1, 0),
    }


@pytest.mark.usefixtures("_no_library")
def test_it_comes_as_messages_get_older() -> None:
    batch = batch_of_two()
    run_due(until="1h")
    cancel_delay_messages(f"{batch.id}/000000002")
    run_due()
    assert [(done.finished, done.cancelled) for done in batches_done] == [(1, 1)]
