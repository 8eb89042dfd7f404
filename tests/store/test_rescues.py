"""Many rows are rescued, or made due later, in a few statements, each as if it were alone."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import SettleAction
from django_delayq.core.history import Ended, read
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.sql.stepwise import PAGE
from tests.brokers.rig import settlement
from tests.store.support import claim, rolled_back

MANY = PAGE + 10
IDS = [f"{n:03}" for n in range(MANY)]


def bury(broker: DatabaseBackend, *ids: str) -> None:
    """Send, claim and bury them, each with an error of its own."""
    send_delay_messages(Send("k", {"of": id}, id=id) for id in ids)
    held = claim(broker)
    broker.queue.apply([settlement(one, SettleAction.BURY, error=f"E: {one.id}", detail=f"T {one.id}") for one in held])


def statements(database: str, work: Callable[[], object]) -> int:
    with CaptureQueriesContext(connections[database]) as captured:
        work()
    return len(captured)


def ids_in(database: str, model: type[Any]) -> set[str]:
    return set(model.objects.using(database).values_list("message_id", flat=True))


def test_many_are_rescued_in_few_statements_each_with_its_own_past(broker: DatabaseBackend, database: str) -> None:
    bury(broker, *IDS)
    pks = dict(ErrorMessage.objects.using(database).values_list("message_id", "pk"))
    answers: list[bool] = []
    assert statements(database, lambda: answers.extend(broker.queue.rescue([*IDS, "unknown", IDS[0]]))) <= 2 * 8
    assert answers == [True] * MANY + [False, False]
    assert ids_in(database, ErrorMessage) == set()
    rows = ReadyMessage.objects.using(database)
    assert dict(rows.values_list("message_id", "pk")) == pks
    assert {row.message_id: row.data for row in rows} == {id: f'{{"of":"{id}"}}' for id in IDS}
    for row in rows.all():
        (past,) = read(row.history)
        assert (past.outcome, past.error, past.traceback) == (
            Ended.BURIED,
            f"E: {row.message_id}",
            f"T {row.message_id}",
        )
    assert {one.id for one in claim(broker)} <= set(IDS), "the broker was told"


def test_of_many_those_whose_id_waits_again_are_left_and_of_one_id_the_older(
    broker: DatabaseBackend, database: str
) -> None:
    bury(broker, "a", "b", "c")
    bury(broker, "c")
    older, newer = (
        ErrorMessage.objects.using(database).filter(message_id="c").order_by("pk").values_list("pk", flat=True)
    )
    ErrorMessage.objects.using(database).filter(message_id="c").update(ended_at=7)
    send_delay_message("k", "new", id="b", delay="1h")
    assert broker.queue.rescue(["c", "b", "a"]) == [True, False, True]
    assert ReadyMessage.objects.using(database).get(message_id="c").pk == newer, "of one moment the later row"
    assert ReadyMessage.objects.using(database).get(message_id="b").data == '"new"'
    assert set(ErrorMessage.objects.using(database).values_list("message_id", "pk")) >= {("c", older)}
    assert ids_in(database, ErrorMessage) == {"b", "c"}


def test_a_rescue_that_is_taken_back_has_moved_nothing(broker: DatabaseBackend, database: str) -> None:
    bury(broker, *IDS)
    with rolled_back(database):
        broker.queue.rescue(IDS)
        assert ids_in(database, ReadyMessage) == set(IDS)
    assert ids_in(database, ReadyMessage) == set()
    assert ids_in(database, ErrorMessage) == set(IDS)


def test_each_is_made_due_later_than_its_own_time_in_few_statements(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="running")
    claim(broker)
    ids = IDS[:20]
    send_delay_messages(Send("k", 1, id=id, delay=60 + n, expires=5) for n, id in enumerate(ids))
    send_delay_message("k", 1, id="overdue")
    rows = ReadyMessage.objects.using(database)
    rows.filter(message_id="overdue").update(due_at=1_000, scheduled_at=1_000)
    before = {row.message_id: row for row in rows}
    answers: list[bool] = []
    move = [*ids, "running", "overdue"]
    assert statements(database, lambda: answers.extend(broker.queue.reschedule(move, by_ms=3_600_000))) <= 5
    assert answers == [True] * len(ids) + [False, True]
    for row in rows.all():
        was = before[row.message_id]
        if row.message_id in ids:
            assert row.due_at == row.scheduled_at == was.due_at + timedelta(hours=1)
            assert row.expires_at is not None
            assert row.expires_at - row.due_at == timedelta(seconds=5)
        elif row.message_id == "running":
            assert row.due_at == was.due_at
        else:
            assert row.due_at == row.scheduled_at >= was.sent_at, "never before now"


@pytest.mark.parametrize("ids", [[], ["unknown"]])
def test_where_there_is_nothing_nothing_is_moved(broker: DatabaseBackend, ids: list[str]) -> None:
    assert broker.queue.rescue(ids) == broker.queue.reschedule(ids, by_ms=1) == [False] * len(ids)
