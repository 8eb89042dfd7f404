"""A batch of settlements is one statement on PostgreSQL and a few on the others, however many messages it ends."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_messages
from django_delayq.brokers.base import Claimed, SettleAction, Transition
from django_delayq.core.history import MOST, MOST_BYTES, Ended, PastAttempt, add, read
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, claim

MANY = 50
MOST_STATEMENTS = {"postgresql": 1, "sqlite": 5, "mysql": 5}
"""Of a batch that ends in one way, BEGIN and COMMIT included."""
MOST_STATEMENTS_OF_A_MIX = {"postgresql": 1, "sqlite": 10, "mysql": 10}
TRICKY = 'E: "outcome":"x" \\ \x1f é ❄ "'


@pytest.fixture
def held(broker: DatabaseBackend) -> list[Claimed]:
    """Many messages that were claimed."""
    send_delay_messages(Send("k", 1, id=f"{n:02}") for n in range(MANY))
    return claim(broker)


def count_statements(database: str, work: Callable[[], object]) -> int:
    with CaptureQueriesContext(connections[database]) as captured:
        work()
    return len(captured)


def end(held: Sequence[Claimed], *verbs: SettleAction) -> list[Transition]:
    return [
        settlement(
            each,
            verb,
            delay_ms=1_000 if verb in (SettleAction.RETRY, SettleAction.SNOOZE) else 0,
            error="E: no",
            detail="Tr",
        )
        for each, verb in zip(held, cycle(verbs), strict=False)
    ]


@pytest.mark.parametrize("verb", SettleAction)
def test_many_ends_of_one_kind_are_few_statements(
    broker: DatabaseBackend, held: list[Claimed], database: str, verb: SettleAction
) -> None:
    ends = end(held, verb)
    number = count_statements(database, lambda: broker.queue.apply(ends))
    assert number <= MOST_STATEMENTS[connections[database].vendor]
    assert broker.queue.apply(ends) == [False] * MANY


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.alters_tables  # space that rows of other tests have left would be filled first
def test_rows_are_finished_in_the_order_in_which_their_handlers_ended(
    broker: DatabaseBackend, held: list[Claimed], database: str
) -> None:
    """Ids mostly grow in that order: so their indexes grow at the end, where a page that splits stays full."""
    broker.queue.apply(end(held, SettleAction.FINISH))
    rows = broker.database.rows("SELECT message_id FROM delayq_finish ORDER BY ctid")
    assert [id for (id,) in rows] == [each.id for each in held]


def test_many_that_killed_their_workers_are_buried_in_few_statements(
    broker: DatabaseBackend, held: list[Claimed], database: str
) -> None:
    ends = end([replace(each, crashes=2) for each in held], SettleAction.CRASH)
    number = count_statements(database, lambda: broker.queue.apply(ends))
    assert number <= MOST_STATEMENTS[connections[database].vendor]
    rows = ErrorMessage.objects.using(database)
    assert {(row.error, row.crashes, row.failures, row.detail) for row in rows} == {
        ("killed its worker 3 times: E: no", 3, 0, "")
    }
    assert rows.count() == MANY


def test_ends_of_every_kind_are_few_statements(broker: DatabaseBackend, held: list[Claimed], database: str) -> None:
    ends = end(held, *(verb for verb in SettleAction if verb is not SettleAction.CANCEL))  # see the next test
    number = count_statements(database, lambda: broker.queue.apply(ends))
    assert number <= MOST_STATEMENTS_OF_A_MIX[connections[database].vendor]
    waiting = {row.message_id: row for row in ReadyMessage.objects.using(database)}
    finished = {row.message_id for row in FinishMessage.objects.using(database)}
    buried = {row.message_id for row in ErrorMessage.objects.using(database)}
    for one in ends:
        if one.action in (SettleAction.FINISH, SettleAction.BURY):
            assert one.id in (finished if one.action is SettleAction.FINISH else buried)
            continue
        row = waiting.pop(one.id)
        assert (row.token is None, row.worker, row.interrupted) == (
            (False, "w", True) if one.action is SettleAction.INTERRUPT else (True, "", False)
        )
        assert (row.failures, row.crashes) == (
            int(one.action is SettleAction.RETRY),
            int(one.action in (SettleAction.CRASH, SettleAction.LAPSE)),
        )
        assert (row.due_at > row.scheduled_at) == (one.action in (SettleAction.RETRY, SettleAction.SNOOZE))
    assert waiting == {}


def test_messages_that_are_cancelled_while_they_run_are_moved_in_few_statements(
    broker: DatabaseBackend, held: list[Claimed], database: str
) -> None:
    ends = end(held, SettleAction.CANCEL)
    number = count_statements(database, lambda: broker.queue.apply(ends))
    assert number <= MOST_STATEMENTS[connections[database].vendor]
    rows = FinishMessage.objects.using(database)
    assert {(row.outcome, row.error) for row in rows} == {("cancelled", "cancelled while it ran")}
    assert rows.count() == MANY


def test_leases_that_ran_out_are_reclaimed_in_few_statements(
    broker: DatabaseBackend, held: list[Claimed], database: str
) -> None:
    ReadyMessage.objects.using(database).update(lease_until=5, crashes=1)
    assert count_statements(database, lambda: broker.queue.maintain(lease_ms=LEASE_MS)) <= 10
    rows = list(ReadyMessage.objects.using(database))
    assert {(row.crashes, row.token) for row in rows} == {(2, None)}
    assert [read(row.history)[0].outcome for row in rows] == [Ended.LOST] * MANY


def _past(number: int, traceback: str) -> str:
    history = "[]"
    for attempt in range(1, number + 1):
        history = add(history, PastAttempt(attempt, attempt, attempt + 1, "w0", Ended.FAILED, TRICKY, traceback))
    return history


@pytest.mark.parametrize(
    "past",
    [
        pytest.param("[]", id="none"),
        pytest.param(_past(1, TRICKY), id="one"),
        pytest.param(_past(MOST - 1, ""), id="one less than it keeps"),
        pytest.param(_past(MOST, ""), id="as many as it keeps"),
        pytest.param(_past(4, "x" * (MOST_BYTES // 5)), id="nearly too long"),
    ],
)
@pytest.mark.parametrize("verb", [SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.CRASH])
def test_the_history_grows_as_it_does_anywhere(
    broker: DatabaseBackend, database: str, verb: SettleAction, past: str
) -> None:
    send_delay_messages([Send("k", 1, id="a")])
    ReadyMessage.objects.using(database).update(history=past, failures=7)
    (held,) = claim(broker, "w1")
    traceback = TRICKY * 300
    assert broker.queue.apply([settlement(held, verb, error=TRICKY, detail=traceback, started_ms=3, ended_ms=4)]) == [
        True
    ]
    told = {
        SettleAction.RETRY: (Ended.FAILED, TRICKY, traceback),
        SettleAction.SNOOZE: (Ended.SNOOZED, "", ""),
        SettleAction.CRASH: (Ended.CRASHED, TRICKY, ""),
    }
    row = ReadyMessage.objects.using(database).get()
    assert read(row.history) == read(add(past, PastAttempt(8, 3, 4, "w1", *told[verb])))
    assert len(row.history.encode()) <= MOST_BYTES


def test_a_full_history_holds_up_no_other_end(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send("k", 1, id=id) for id in ("full", "new"))
    ReadyMessage.objects.using(database).filter(message_id="full").update(history=_past(MOST, ""))
    assert broker.queue.apply(end(claim(broker), SettleAction.RETRY)) == [True, True]
    assert set(ReadyMessage.objects.using(database).values_list("failures", flat=True)) == {1}


def test_an_atomic_handlers_end_is_one_statement_of_its_transaction(
    broker: DatabaseBackend, held: list[Claimed], database: str
) -> None:
    one, finish_here = held[0], broker.database.dialect.finish_here
    with transaction.atomic(using=database):
        number = count_statements(database, lambda: finish_here(broker.database, int(one.pk), one.token, one.due_ms))
    assert number <= {"postgresql": 1, "sqlite": 3, "mysql": 3}[connections[database].vendor]
    assert FinishMessage.objects.using(database).get().message_id == one.id
