"""A bulk action that has a name is undone for those of its messages that are still as it left them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq import (
    At,
    DelayqError,
    Send,
    State,
    Undone,
    Unsupported,
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
    send_delay_messages_again,
    undo_delay_action,
)
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Action, PutBack, SettleAction
from django_delayq.core import transitions
from django_delayq.models import ActionRow, ErrorMessage, FinishMessage, MessageRow, ReadyMessage, UndoRow
from django_delayq.store import DatabaseBackend, operations, undo
from tests.brokers.rig import settlement
from tests.races import while_another_did
from tests.store.support import WANT, claim, rolled_back

BOTH_SERVERS = pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)


def times(database: str, id: str) -> tuple[datetime, ...]:
    row = ReadyMessage.objects.using(database).get(message_id=id)
    return row.due_at, row.scheduled_at, row.expires_at


def ids_in(database: str, model: type[MessageRow]) -> set[str]:
    return set(model._default_manager.using(database).values_list("message_id", flat=True))


def make_past(database: str, model: type[MessageRow]) -> None:
    """Make all rows of a table due, and sent, an hour ago; they expire ten minutes after that."""
    moment = datetime.now().astimezone() - timedelta(hours=1)
    model._default_manager.using(database).update(
        due_at=moment, scheduled_at=moment, expires_at=moment + timedelta(minutes=10)
    )


def is_about_now(moment: datetime) -> bool:
    return abs(moment - datetime.now().astimezone()) < timedelta(minutes=1)


# Due times


def test_due_times_are_given_back_exactly(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="2h", expires="1h", tag="t")
    send_delay_message("k", 1, id="b", delay="3h", tag="t")
    send_delay_message("k", 1, id="other", delay="3h")
    before = [times(database, id) for id in ("a", "b", "other")]
    assert reschedule_delay_messages(tag="t", delay=0, action="x", by="anna") == 2
    assert times(database, "a") != before[0]
    assert undo_delay_action("x", by="bert") == Undone(2, 0)
    assert [times(database, id) for id in ("a", "b", "other")] == before
    row = ActionRow.objects.using(database).get()
    assert (row.kind, row.by, row.undone_by) == ("run_now", "anna", "bert")


def test_what_runs_has_run_or_has_changed_since_is_left(broker: DatabaseBackend, database: str) -> None:
    ids = ("finished", "runs", "failed", "retried", "crashed")
    for id in ids:
        send_delay_message("k", 1, id=id, delay="1h")
    reschedule_delay_messages(*ids, delay=0, action="x")
    held = {one.id: one for one in claim(broker)}
    assert set(held) == set(ids)
    broker.queue.apply(
        [
            transitions.finish(held["finished"]),
            settlement(held["failed"], SettleAction.BURY, error="no"),
            settlement(held["retried"], SettleAction.RETRY, delay_ms=5_000, error="no"),
            settlement(held["crashed"], SettleAction.CRASH, error="no"),
        ]
    )
    for id in ("moved", "replaced", "cancelled", "same"):
        send_delay_message("k", 1, id=id, delay="1h")
    reschedule_delay_messages("moved", "replaced", "cancelled", "same", delay="2h", action="x")
    reschedule_delay_messages("moved", delay="3h")
    due = ReadyMessage.objects.using(database).get(message_id="replaced").due_at
    send_delay_message("k", 2, id="replaced", at=due, on_conflict="replace")  # due as before, but another message
    cancel_delay_messages("cancelled")
    states = {id: get_delay_message(id) for id in (*ids, "moved", "replaced", "cancelled")}
    assert undo_delay_action("x") == Undone(1, 8)
    assert {id: get_delay_message(id) for id in states} == states


def test_a_message_that_was_put_back_unrun_by_its_worker_is_undone(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    before = times(database, "a")[0]
    reschedule_delay_messages("a", delay=0, action="x")
    (held,) = claim(broker)
    assert broker.queue.apply([transitions.release(held)]) == [True]
    assert undo_delay_action("x") == Undone(1, 0)
    assert times(database, "a")[0] == before


def test_a_due_time_that_is_past_becomes_now_and_the_expiry_moves_with_it(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="1h", expires="10m")
    make_past(database, ReadyMessage)
    reschedule_delay_messages("a", delay="1d", action="x")
    assert undo_delay_action("x") == Undone(1, 0)
    due, scheduled, expires = times(database, "a")
    assert is_about_now(due)
    assert (scheduled, expires) == (due, due + timedelta(minutes=10))
    assert [one.id for one in claim(broker)] == ["a"], "the timer was told"


def test_of_two_moves_in_one_action_the_first_due_time_is_given_back(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    before = times(database, "a")
    reschedule_delay_messages("a", delay="2h", action="x")
    reschedule_delay_messages("a", delay="3h", action="x")
    assert undo_delay_action("x") == Undone(1, 0)
    assert times(database, "a") == before


def test_what_was_rescheduled_to_now_and_to_later_in_one_action_is_undone(
    broker: DatabaseBackend, database: str
) -> None:
    for id in "ab":
        send_delay_message("k", 1, id=id, delay="1h")
    before = [times(database, id) for id in "ab"]
    reschedule_delay_messages("a", delay=0, action="x")
    reschedule_delay_messages("b", delay="3h", action="x")
    with pytest.raises(DelayqError, match="The action 'x' has rescheduled messages"):
        cancel_delay_messages("a", action="x")
    assert undo_delay_action("x") == Undone(2, 0)
    assert [times(database, id) for id in "ab"] == before


def test_a_rule_can_not_be_given_back_so_it_is_refused(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    with pytest.raises(TypeError, match="not for a window or an At"):
        reschedule_delay_messages("a", at=At(days=1, time="09:00", zone="UTC"), action="x")


# Sent again


def finish(broker: DatabaseBackend, *ids: str) -> None:
    send_delay_messages([Send("k", {"id": id}, id=id) for id in ids])
    assert all(broker.queue.apply([transitions.finish(one) for one in claim(broker)]))


def test_what_was_sent_again_is_cancelled_if_it_waits(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a", "b")
    assert send_delay_messages_again("a", "b", delay="1h", action="x") == 2
    old = list(FinishMessage.objects.using(database).order_by("pk").values())
    reschedule_delay_messages("b", delay="2h")
    assert undo_delay_action("x") == Undone(1, 1)
    assert ids_in(database, ReadyMessage) == {"b"}
    info = get_delay_message("a")
    assert info is not None
    assert info.state is State.CANCELLED
    assert list(FinishMessage.objects.using(database).order_by("pk").values())[:2] == old


def test_what_ran_since_it_was_sent_again_is_left(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a", "b", "c")
    send_delay_messages_again("a", "b", "c", action="x")
    held = {one.id: one for one in claim(broker)}
    broker.queue.apply(
        [
            transitions.finish(held["a"]),
            settlement(held["b"], SettleAction.RETRY, delay_ms=60_000, error="no"),
        ]
    )
    assert undo_delay_action("x") == Undone(0, 3)
    assert ids_in(database, ReadyMessage) == {"b", "c"}


def test_a_send_of_the_site_under_the_same_id_is_no_part_of_the_action(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a")
    send_delay_message("k", 1, id="a", delay="1h")
    assert send_delay_messages_again("a", action="x") == 0
    assert undo_delay_action("x") == Undone(0, 0)
    assert ids_in(database, ReadyMessage) == {"a"}


# Cancelled


def test_cancelled_messages_wait_again_as_they_did(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h", expires="1h", tag=("one", "two"), max_attempts=3)
    send_delay_message("k", 1, id="b")
    (held,) = claim(broker)
    broker.queue.apply([settlement(held, SettleAction.RETRY, delay_ms=3_600_000, error="no")])
    rows = {row["message_id"]: row for row in ReadyMessage.objects.using(database).values()}
    infos = [get_delay_message(id) for id in ("a", "b")]
    assert cancel_delay_messages("a", "b", action="x", by="anna") == 2
    assert undo_delay_action("x") == Undone(2, 0)
    assert {row["message_id"]: row for row in ReadyMessage.objects.using(database).values()} == rows
    assert [get_delay_message(id) for id in ("a", "b")] == infos
    assert ids_in(database, FinishMessage) == set()


def test_a_cancelled_message_whose_time_is_past_is_due_now(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h", expires="10m")
    cancel_delay_messages("a", action="x")
    make_past(database, FinishMessage)
    assert undo_delay_action("x") == Undone(1, 0)
    due, scheduled, expires = times(database, "a")
    assert is_about_now(due)
    assert (scheduled, expires) == (due, due + timedelta(minutes=10))
    assert [one.id for one in claim(broker)] == ["a"], "the timer was told"


def test_a_cancelled_message_whose_id_was_used_since_is_left(broker: DatabaseBackend, database: str) -> None:
    for id in ("waits", "finished", "failed", "gone"):
        send_delay_message("k", 1, id=id, delay="1h")
    cancel_delay_messages("waits", "finished", "failed", "gone", action="x")
    send_delay_messages_again("waits", delay="1h")
    send_delay_messages([Send("k", 2, id="finished"), Send("k", 2, id="failed")])
    held = {one.id: one for one in claim(broker)}
    broker.queue.apply(
        [transitions.finish(held["finished"]), settlement(held["failed"], SettleAction.BURY, error="no")]
    )
    FinishMessage.objects.using(database).filter(message_id="gone").delete()
    assert undo_delay_action("x") == Undone(0, 4)
    assert ids_in(database, ReadyMessage) == {"waits"}
    assert FinishMessage.objects.using(database).filter(outcome="cancelled").count() == 3
    assert ids_in(database, ErrorMessage) == {"failed"}


def test_of_two_that_an_action_has_cancelled_under_one_id_the_last_waits_again(
    broker: DatabaseBackend, database: str
) -> None:
    for data in (1, 2, 3):
        send_delay_message("k", data, id="a", delay="1h")
        assert cancel_delay_messages("a", action="x") == 1
    assert undo_delay_action("x") == Undone(1, 2)
    (row,) = ReadyMessage.objects.using(database).values_list("data", flat=True)
    assert row == "3"
    assert FinishMessage.objects.using(database).filter(message_id="a", outcome="cancelled").count() == 2


def test_what_runs_and_is_asked_to_end_is_no_part_of_an_undo(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="runs")
    (held,) = claim(broker)
    send_delay_message("k", 1, id="waits", delay="1h")
    assert cancel_delay_messages("runs", "waits", running=True, by="anna", action="x") == 2
    assert undo_delay_action("x") == Undone(1, 0)
    assert ids_in(database, ReadyMessage) == {"runs", "waits"}
    assert broker.queue.renew([held], 60_000) != [True], "it is still asked to end"


# Timers


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
@pytest.mark.parametrize("timer", ["alone_delayq", "rabbitmq_delayq"])
def test_each_timer_learns_what_waits_again_and_when(request: pytest.FixtureRequest, database: str, timer: str) -> None:
    request.getfixturevalue(timer)
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    send_delay_message("k", 1, id="cancelled", delay="1h")
    cancel_delay_messages("cancelled", action="x")
    make_past(database, FinishMessage)
    send_delay_message("k", 1, id="made due", delay="1h")
    reschedule_delay_messages("made due", delay=0, action="y")
    assert undo_delay_action("y") == undo_delay_action("x") == Undone(1, 0)
    assert [one.id for one in claim(broker)] == ["cancelled"]


# Once, in pages, in a transaction


def test_an_action_is_undone_once(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    before = times(database, "a")
    reschedule_delay_messages("a", delay="2h", action="x")
    assert (undo_delay_action("x"), undo_delay_action("x")) == (Undone(1, 0), Undone(0, 0))
    assert times(database, "a") == before
    with pytest.raises(DelayqError, match="The action 'x' was undone"):
        reschedule_delay_messages("a", delay="2h", action="x")
    cancel_delay_messages("a", action="y")
    with pytest.raises(DelayqError, match="'y' has cancelled messages"):
        reschedule_delay_messages("a", delay="2h", action="y")
    with pytest.raises(DelayqError, match="Nothing is known of an action 'z'"):
        undo_delay_action("z")


def test_an_undo_that_was_cut_short_goes_on(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "PAGE", 2)
    ids = [f"{n}" for n in range(5)]
    send_delay_messages([Send("k", 1, id=id, delay="1h") for id in ids])
    before = {id: times(database, id) for id in ids}
    reschedule_delay_messages(*ids, delay="2h", action="x")
    assert broker.store.begin_undo(Action("x"))
    assert len(broker.store.put_back("x", broker.store.changed_by("x")).pks) == 2
    assert undo_delay_action("x") == Undone(3, 0)
    assert {id: times(database, id) for id in ids} == before


def test_both_are_a_part_of_the_transaction(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    with rolled_back(database):
        cancel_delay_messages("a", action="x")
    assert (ActionRow.objects.using(database).count(), UndoRow.objects.using(database).count()) == (0, 0)
    cancel_delay_messages("a", action="x")
    with rolled_back(database):
        assert undo_delay_action("x") == Undone(1, 0)
    assert ids_in(database, ReadyMessage) == set()
    assert undo_delay_action("x") == Undone(1, 0)


def test_without_a_name_nothing_is_kept(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    reschedule_delay_messages("a", delay="2h")
    cancel_delay_messages("a")
    send_delay_messages_again("a")
    assert (ActionRow.objects.using(database).count(), UndoRow.objects.using(database).count()) == (0, 0)


def test_what_is_kept_of_an_action_goes_after_a_week(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BATCH", 2)
    send_delay_messages([Send("k", 1, id=f"{n}", delay="1h") for n in range(3)])
    cancel_delay_messages("0", "1", "2", action="old")
    send_delay_message("k", 1, id="3", delay="1h")
    cancel_delay_messages("3", action="new")
    actions = ActionRow.objects.using(database)
    actions.filter(name="old").update(acted_at=broker.database.now_ms() - undo.KEPT_MS - 1)
    left = []
    for _ in range(3):
        broker.store.prune()
        left.append((actions.count(), UndoRow.objects.using(database).count()))
    assert left == [(2, 2), (1, 1), (1, 1)]
    assert undo_delay_action("new") == Undone(1, 0)


def test_without_a_store_nothing_can_be_undone(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    for act in (
        lambda: undo_delay_action("x"),
        lambda: cancel_delay_messages("a", action="x"),
        lambda: reschedule_delay_messages("a", delay=0, action="x"),
    ):
        with pytest.raises(Unsupported, match="needs a store"):
            act()


# Races


def make_due(broker: DatabaseBackend, what: str) -> None:
    """Make a message due by the action x."""
    if what == "reschedule":
        send_delay_message("k", 1, id="a", delay="1h")
        reschedule_delay_messages("a", delay=0, action="x")
    else:
        finish(broker, "a")
        send_delay_messages_again("a", action="x")


@BOTH_SERVERS
@pytest.mark.parametrize("what", ["reschedule", "send_again"])
def test_what_a_worker_claims_meanwhile_is_left(broker: DatabaseBackend, database: str, what: str) -> None:
    make_due(broker, what)
    held: list[Any] = []
    assert while_another_did(database, lambda: held.extend(claim(broker)), lambda: undo_delay_action("x")) == Undone(
        0, 1
    )
    assert broker.queue.apply([transitions.finish(one) for one in held]) == [True]


@BOTH_SERVERS
@pytest.mark.parametrize("what", ["reschedule", "send_again"])
def test_what_is_undone_meanwhile_is_not_claimed(broker: DatabaseBackend, database: str, what: str) -> None:
    make_due(broker, what)
    undone: list[Undone] = []

    def claim_now() -> list[Any]:
        return broker.queue.claim_all(WANT, lease_ms=60_000, worker="w").messages

    assert while_another_did(database, lambda: undone.append(undo_delay_action("x")), claim_now) == []
    assert undone == [Undone(1, 0)]
    assert claim_now() == []


@BOTH_SERVERS
def test_of_two_undos_of_a_page_each_message_is_put_back_and_counted_by_one(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    cancel_delay_messages("a", action="x")
    first: list[PutBack] = []

    def put_back() -> None:  # an undo that has begun: that holds no lock for which the other waits before it reads
        first.append(broker.store.put_back("x", broker.store.changed_by("x")))

    then = while_another_did(database, put_back, lambda: undo_delay_action("x"))
    assert ([(len(page.pks), page.left) for page in first], then) == ([(1, 0)], Undone(0, 0))


@BOTH_SERVERS
def test_an_undo_waits_for_a_part_of_its_action_that_is_not_committed(broker: DatabaseBackend, database: str) -> None:
    for id in "ab":
        send_delay_message("k", 1, id=id, delay="1h")
    cancel_delay_messages("a", action="x")
    assert while_another_did(
        database, lambda: cancel_delay_messages("b", action="x"), lambda: undo_delay_action("x")
    ) == Undone(2, 0)


@BOTH_SERVERS
def test_an_id_that_is_sent_meanwhile_is_not_taken_by_an_undo(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    cancel_delay_messages("a", action="x")
    assert while_another_did(
        database, lambda: send_delay_message("k", 2, id="a", delay="1h"), lambda: undo_delay_action("x")
    ) == Undone(0, 1)
    info = get_delay_message("a")
    assert info is not None
    assert info.data == 2


@BOTH_SERVERS
def test_what_was_sent_and_has_ended_meanwhile_keeps_an_undo_from_running_it_twice(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    cancel_delay_messages("a", action="x")

    def send_and_finish() -> None:  # all of it in one transaction, so no timer is told of it
        send_delay_message("k", 2, id="a")
        held: list[Any] = []
        while not held:
            held = broker.queue.claim_all(WANT, lease_ms=60_000, worker="w").messages
        assert broker.queue.apply([transitions.finish(one) for one in held]) == [True]

    assert while_another_did(database, send_and_finish, lambda: undo_delay_action("x")) == Undone(0, 1)
    assert ids_in(database, ReadyMessage) == set()
