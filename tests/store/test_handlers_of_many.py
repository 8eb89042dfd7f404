"""Atomic handlers of many, on each database: all ends are in the transaction of what the handler writes."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_delayq import Bury, Message, Retry, Sequence, Snooze, Step, get_delay_message, send_delay_message
from django_delayq.api import registry
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import SettleAction
from django_delayq.conf import get_alias
from django_delayq.core.message import State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.signals import message_started
from django_delayq.store import DatabaseBackend
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.worker.rig import make_handler

pytestmark = pytest.mark.usefixtures("registry")

Messages = list[Message[Any]]


def drain(broker: DatabaseBackend, handler: Handler[Any, Any]) -> Worker:
    worker = Worker(get_alias("default"), broker, {"k": handler}, Options(drain=True))
    assert worker.run()
    return worker


def atomic_handler(func: Callable[[Messages], Any]) -> Handler[Any, Any]:
    handler = make_handler(func, batch=100, atomic=True, concurrency=1)
    registry.register(handler)
    return handler


def send(*ids: str) -> None:
    for id in ids:
        send_delay_message("k", id=id)
    time.sleep(0.002)  # due times are rounded up to whole milliseconds


def state_of(id: str) -> State | None:
    found = get_delay_message(id)
    return None if found is None else found.state


def test_what_it_writes_and_every_end_are_one_transaction(broker: DatabaseBackend, database: str) -> None:
    ends = {"retry": Retry("1h"), "snooze": Snooze("1h"), "bury": Bury("no use")}

    def index(messages: Messages) -> Any:
        Group.objects.using(database).bulk_create(Group(name=message.id) for message in messages)
        return ends

    handler = atomic_handler(index)
    send("a", "b", *ends)
    worker = drain(broker, handler)
    assert Group.objects.using(database).count() == 5
    assert set(FinishMessage.objects.using(database).values_list("message_id", flat=True)) == {"a", "b"}
    assert {id: state_of(id) for id in ends} == {
        "retry": State.PENDING,
        "snooze": State.PENDING,
        "bury": State.FAILED,
    }
    assert worker.counts == {
        SettleAction.FINISH: 2,
        SettleAction.RETRY: 1,
        SettleAction.SNOOZE: 1,
        SettleAction.BURY: 1,
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_steps_of_sequences_run_together(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr("django_delayq.api.sequences.by_alias", {})
    runs: list[list[str]] = []

    def index(messages: Messages) -> None:
        runs.append(sorted(message.id for message in messages))

    async def aindex(messages: Messages) -> None:
        index(messages)

    handler = make_handler(aindex if is_async else index, batch=100, concurrency=1)
    registry.register(handler)
    sequence = Sequence("s", [Step("k"), Step("k", "1h")])
    for id in ("a", "b"):
        sequence.start(id=id)
    time.sleep(0.002)  # due times are rounded up to whole milliseconds
    drain(broker, handler)
    assert runs == [["s:a@1", "s:b@1"]]
    assert set(ReadyMessage.objects.using(database).values_list("message_id", flat=True)) == {"s:a@2", "s:b@2"}


def test_a_message_whose_retry_was_in_the_transaction_runs_again(broker: DatabaseBackend, database: str) -> None:
    runs: list[list[str]] = []

    def index(messages: Messages) -> Any:
        runs.append([message.id for message in messages])
        return {"a": Retry(0)} if len(runs) == 1 else None

    handler = atomic_handler(index)
    send("a", "b")
    drain(broker, handler)
    assert [sorted(run) for run in runs] == [["a", "b"], ["a"]]
    assert set(FinishMessage.objects.using(database).values_list("message_id", flat=True)) == {"a", "b"}


def test_what_it_raises_rolls_all_back_and_fails_all(broker: DatabaseBackend, database: str) -> None:
    def index(messages: Messages) -> None:
        Group.objects.using(database).create(name="written")
        raise ValueError("no index")

    handler = atomic_handler(index)
    send("a", "b")
    drain(broker, handler)
    assert not Group.objects.using(database).exists()
    assert [(state_of(id), get_delay_message(id).failures) for id in "ab"] == [(State.PENDING, 1)] * 2  # type: ignore[union-attr]


def test_a_message_that_is_lost_meanwhile_rolls_all_back_and_the_others_run_again_uncounted(
    broker: DatabaseBackend, database: str
) -> None:
    runs: list[dict[str, int]] = []

    def steal(id: str, **_: Any) -> None:  # as if another had claimed it
        ReadyMessage.objects.using(database).filter(message_id="a").update(token=1)

    def index(messages: Messages) -> None:
        runs.append({message.id: message.attempt for message in messages})
        for message in messages:
            Group.objects.using(database).create(name=message.id)

    message_started.connect(steal)
    handler = atomic_handler(index)
    send("a", "b")
    try:
        drain(broker, handler)
    finally:
        message_started.disconnect(steal)
    assert runs == [{"a": 1, "b": 1}, {"b": 1}]
    assert list(Group.objects.using(database).values_list("name", flat=True)) == ["b"]
    assert state_of("a") is State.RUNNING
