"""Messages are listed by tag, key, beginning of the id and state, wherever their rows are."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from django_delayq import (
    Bury,
    Message,
    State,
    Unsupported,
    alist_delay_messages,
    cancel_delay_messages,
    delay_execute,
    list_delay_messages,
    send_delay_message,
)
from django_delayq.models import ReadyMessage
from django_delayq.store.listing import CHUNK
from django_delayq.testing import run_due, use_memory_broker

pytestmark = pytest.mark.django_db


@pytest.fixture
def messages(registry: None, settings: Settings) -> Any:
    """A message in each state, of two keys and two orders."""

    @delay_execute(key="remind", queue="slow")
    def remind(message: Message[str]) -> None: ...

    @delay_execute(key="bill", max_attempts=1)
    def bill(message: Message[str]) -> None:
        raise Bury("no such order")

    settings.DELAYQ = {"default": {"STORE": {}}}
    with use_memory_broker():
        remind.send("ended", id="order:7:ended", tag="order:7")
        bill.send("failed", id="order:7:failed", tag="order:7")
        run_due(errors="keep")
        remind.send("cancelled", id="order:7:cancelled", tag="order:7", delay="1h")
        cancel_delay_messages("order:7:cancelled")
        remind.send("waits", id="order:7:waits", tag="order:7", delay="1h")
        remind.send("is due", id="order:70:due", tag="order:70")
        past = timezone.now() - timedelta(seconds=1)  # SQLite's clock rounds a due time up, to the next millisecond
        ReadyMessage.objects.filter(message_id="order:70:due").update(due_at=past)
        remind.send("runs", id="order:7:runs", tag="order:7", queue="other")
        ReadyMessage.objects.filter(message_id="order:7:runs").update(token=1, worker="w")
        yield


def _listed(**asked: Any) -> dict[str, State]:
    return {info.id.rpartition(":")[2]: info.state for info in list_delay_messages(**asked)}


ALL = {
    "waits": State.PENDING,
    "due": State.READY,
    "runs": State.RUNNING,
    "failed": State.FAILED,
    "ended": State.FINISHED,
    "cancelled": State.CANCELLED,
}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, set(ALL)),
        ({"tag": "order:7"}, set(ALL) - {"due"}),
        ({"id_prefix": "order:7:"}, set(ALL) - {"due"}),
        ({"id_prefix": "order:70"}, {"due"}),
        ({"key": "bill"}, {"failed"}),
        ({"key": "remind", "tag": "order:7"}, {"waits", "runs", "ended", "cancelled"}),
        ({"key": "nothing"}, set()),
        ({"states": [State.READY, State.FINISHED]}, {"due", "ended"}),
        ({"states": ["running"]}, {"runs"}),
        ({"states": []}, set()),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_matches_is_listed_with_its_state(messages: None, asked: dict[str, Any], names: Collection[str]) -> None:
    assert _listed(**asked) == {name: ALL[name] for name in names}


def test_a_listed_message_is_told_whole(messages: None) -> None:
    running, failed = (next(list_delay_messages(states=[state])) for state in (State.RUNNING, State.FAILED))
    assert (running.data, running.queue, running.holder, running.tag) == ("runs", "other", "w", "order:7")
    assert (failed.error, failed.holder, failed.lease_until) == ("Bury: no such order", "", None)


def test_from_async_code(messages: None) -> None:
    async def ids() -> list[str]:
        return [info.id async for info in alist_delay_messages(states=[State.FAILED])]

    assert async_to_sync(ids)() == ["order:7:failed"]


def test_a_long_list_is_read_in_parts(messages: None) -> None:
    for n in range(CHUNK + 1):
        send_delay_message("remind", "", id=f"many:{n}", delay="1d")
    with CaptureQueriesContext(connection) as queries:
        assert sum(1 for _ in list_delay_messages(id_prefix="many:")) == CHUNK + 1
    assert len(queries) == 4  # the clock, and one for each table


def test_the_list_of_a_key_is_found_by_an_index(messages: None) -> None:
    with CaptureQueriesContext(connection) as queries:
        list(list_delay_messages(key="remind", states=[State.READY]))
    sql = [query["sql"] for query in queries if "delayq_ready" in query["sql"]][-1]
    assert "slow" in sql
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        assert "delayq_ready_due (alias=? AND queue=? AND key=?)" in str(cursor.fetchall())


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"states": "ready"}, TypeError, "State.READY"),
        ({"states": [State.GONE]}, ValueError, "give some of State.PENDING"),
        ({"tag": ""}, ValueError, "tag"),
        ({"key": 1}, TypeError, "key"),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_at_once(
    messages: None, asked: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        list_delay_messages(**asked)


def test_without_a_store_nothing_can_be_listed(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(Unsupported, match="STORE"):
        list_delay_messages()
