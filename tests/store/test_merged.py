"""A message that has ended still tells how many sends were merged into it."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from django_delayq import (
    cancel_delay_messages,
    get_delay_message,
    send_delay_message,
    undo_delay_action,
)
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.monitor import explain
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import settlement
from tests.store.support import claim


def send_three(id: str, **options: str) -> None:
    for n in range(3):
        send_delay_message("k", n, id=id, on_conflict="replace", **options)  # type: ignore[arg-type]


def run(verb: SettleAction) -> Callable[[DatabaseBackend], None]:
    def end(broker: DatabaseBackend) -> None:
        (held,) = claim(broker)
        assert broker.queue.apply([settlement(held, verb, error="no")]) == [True]

    return end


def cancel(broker: DatabaseBackend) -> None:
    assert cancel_delay_messages("a") == 1


def cancel_while_it_runs(broker: DatabaseBackend) -> None:
    (held,) = claim(broker)
    broker.queue.cancel(["a"], "anna")
    assert broker.queue.apply([settlement(held, SettleAction.CANCEL, error="no")]) == [True]


@pytest.mark.parametrize(
    ("end", "table"),
    [
        (run(SettleAction.FINISH), FinishMessage),
        (run(SettleAction.BURY), ErrorMessage),
        (cancel, FinishMessage),
        (cancel_while_it_runs, FinishMessage),
    ],
    ids=["finished", "failed", "cancelled", "cancelled while it ran"],
)
def test_what_has_ended_tells_how_many_sends_were_merged(
    broker: DatabaseBackend, database: str, end: Callable[[DatabaseBackend], None], table: type[MessageRow]
) -> None:
    send_three("a")
    end(broker)
    assert table._default_manager.using(database).get().merged_sends == 2
    explanation = explain("a")
    assert explanation is not None
    assert explanation.info.merged == 2


def test_a_failed_message_tells_it_until_it_is_rescued(broker: DatabaseBackend, database: str) -> None:
    send_three("a")
    run(SettleAction.BURY)(broker)
    failed = get_delay_message("a")
    assert failed is not None
    assert failed.merged == 2
    assert broker.queue.rescue(["a"]) == [True]
    rescued = get_delay_message("a")
    assert rescued is not None
    assert rescued.merged == 0
    assert ReadyMessage.objects.using(database).get().first_at is None


def test_a_message_whose_cancel_is_undone_goes_on_with_its_sends(broker: DatabaseBackend, database: str) -> None:
    send_three("a", delay="2h")
    rows = ReadyMessage.objects.using(database)
    rows.update(first_at=rows.get().first_at - timedelta(hours=1))
    cancel_delay_messages("a", action="x")
    undo_delay_action("x")
    assert rows.get().merged == 2
    before = rows.get()
    due_at = send_delay_message("k", 4, id="a", delay="2h", on_conflict="replace", max_wait="90m").due_at
    assert due_at == before.first_at + timedelta(minutes=90)
