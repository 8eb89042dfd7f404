"""Schedules put each occurrence once: after the one before it, whoever ends that, and however long nobody looked."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, NoReturn, cast

import pytest
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models import QuerySet
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from pytest_django import Settings

from django_delayq import (
    At,
    Cron,
    DelayqError,
    Every,
    Message,
    RRule,
    ScheduleInfo,
    Window,
    backfill_delay_schedule,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    get_delay_schedule,
    list_delay_schedules,
    pause_delay_schedules,
    reschedule_delay_messages,
    resume_delay_schedules,
    run_delay_schedule,
    schedule_delay_message,
    send_delay_message,
    sync_delay_schedules,
    undo_delay_action,
    unschedule_delay_messages,
)
from django_delayq.api import registry
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, ClaimRequest, NewMessage, SettleAction
from django_delayq.core.message import State
from django_delayq.core.occurrences import occurrence_of
from django_delayq.core.recurrence import Rule
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, Schedule
from django_delayq.monitor.schedules import upcoming
from django_delayq.store import DatabaseBackend, schedules
from django_delayq.store.database import Database
from django_delayq.store.queries import message_facts
from django_delayq.support.timestamps import from_ms
from tests.brokers.rig import settlement
from tests.commands.support import delayq
from tests.scale import scaled
from tests.store.skewed import DatabaseClock

TABLES = ReadyMessage, FinishMessage, ErrorMessage
START = datetime(2031, 3, 3, 9, 30, tzinfo=UTC)
HOURLY = Every(hours=1)
MONDAYS = [(START + timedelta(weeks=week)).date() for week in range(150)]
LEASE_MS = 60_000


@pytest.fixture
def stored_delayq(alone_delayq: dict[str, Any]) -> dict[str, Any]:
    return alone_delayq


@pytest.fixture
def clock(broker: DatabaseBackend, database: str) -> Iterator[DatabaseClock]:
    """The database's clock. It begins at `START`."""
    clock = DatabaseClock(database)
    with clock.in_use():
        go_to(broker, clock, START)
        yield clock


def go_to(broker: DatabaseBackend, clock: DatabaseClock, at: datetime) -> None:
    clock.jump((at - from_ms(broker.database.now_ms())) // timedelta(milliseconds=1) + 1)


def hours(count: float) -> datetime:
    """Return the start of an hour after `START`, or a part of it."""
    return START.replace(minute=0) + timedelta(hours=count)


def ids(database: str) -> list[str]:
    """Return the ids that wait or run, without the name that all have."""
    return sorted(ReadyMessage.objects.using(database).values_list("message_id", flat=True))


def id_at(count: float, name: str = "s") -> str:
    return f"{name}@{hours(count):%Y-%m-%dT%H:%M:%SZ}"


def claim(broker: DatabaseBackend) -> list[Claimed]:
    return broker.store.claim_all([ClaimRequest("default", "k", 100)], lease_ms=LEASE_MS, worker="w").messages


def run_due(broker: DatabaseBackend, action: SettleAction = SettleAction.FINISH) -> list[str]:
    """Claim and end what is due. Return the ids, without those of messages that had expired."""
    claimed = claim(broker)
    now_ms = broker.database.now_ms()
    expired = [one for one in claimed if one.header and (one.header.expires_at_ms or now_ms) < now_ms]
    ends = [settlement(one, SettleAction.BURY if one in expired else action) for one in claimed]
    broker.queue.apply(ends)
    return sorted(one.id for one in claimed if one not in expired)


def look(broker: DatabaseBackend) -> None:
    """Let maintenance look, however lately it did."""
    store = broker.store
    store._schedules_rest_until = 0.0
    store.put_occurrences()


def test_a_schedule_puts_its_first_occurrence_at_once(broker: DatabaseBackend, clock: DatabaseClock) -> None:
    schedule_delay_message("k", {"a": 1}, name="s", every=HOURLY, tag="t", timeout="5m")
    info = get_delay_message(id_at(1))
    assert info is not None
    assert (info.due_at, info.data, info.tag, info.state) == (hours(1), {"a": 1}, "t", State.PENDING)


@pytest.mark.parametrize("action", [SettleAction.FINISH, SettleAction.BURY])
def test_the_end_of_an_occurrence_puts_the_next(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, action: SettleAction
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    for hour in (1, 2, 3):
        go_to(broker, clock, hours(hour))
        assert run_due(broker, action) == [id_at(hour)]
        assert ids(database) == [id_at(hour + 1)]


def test_a_retry_is_no_end(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(1))
    run_due(broker, SettleAction.RETRY)
    look(broker)
    assert ids(database) == [id_at(1)]


def test_an_atomic_handlers_end_puts_the_next(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(1))
    (claimed,) = claim(broker)
    transition = settlement(claimed, SettleAction.FINISH)
    transition.is_written = True
    with transaction.atomic(using=database):
        assert broker.database.dialect.finish_here(broker.database, int(claimed.pk), claimed.token, 0)
    broker.queue.apply([transition])
    assert ids(database) == [id_at(2)]


def test_an_occurrence_that_cannot_be_put_leaves_the_end_of_the_one_before_it_standing(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(1))

    def fail(database: Database, messages: Sequence[NewMessage]) -> NoReturn:
        database.rows("SELECT no_such_column FROM delayq_schedule")
        pytest.fail("it is refused")

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "_enqueued", fail)
        assert run_due(broker) == [id_at(1)]
    assert FinishMessage.objects.using(database).filter(message_id=id_at(1)).exists()
    assert ids(database) == []
    assert "The next occurrence of schedule 's' can not be put" in caplog.text
    go_to(broker, clock, hours(1) + timedelta(minutes=2))
    look(broker)
    assert ids(database) == [id_at(2)]


def test_an_end_does_not_wait_for_a_schedule_that_another_transaction_has_locked(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    if not connections[database].features.has_select_for_update_skip_locked:
        pytest.skip("its transactions come one after the other")
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(1))

    def end() -> None:
        try:
            run_due(broker)
        finally:
            connections[database].close()

    with transaction.atomic(using=database):
        Schedule.objects.using(database).select_for_update().get()
        thread = threading.Thread(target=end)
        thread.start()
        thread.join(10)
        assert ids(database) == []
    look(broker)
    assert ids(database) == [id_at(2)]


def test_maintenance_puts_what_follows_on_an_end_that_nobody_noticed(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    cancel_delay_messages(id_at(1))
    look(broker)
    assert ids(database) == []  # the one that was cancelled is left out, and nothing is due before the next
    go_to(broker, clock, hours(1))
    look(broker)
    assert ids(database) == [id_at(2)]


def test_nobody_puts_what_follows_while_it_waits_or_runs(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(3))
    look(broker)
    claimed = claim(broker)
    look(broker)
    assert ids(database) == [id_at(1)]
    assert len(claimed) == 1


@pytest.mark.parametrize(
    ("catch_up", "overlap", "run"),
    [
        ("none", "skip", [1, 6]),
        ("none", "after", [1, 6]),
        ("none", "allow", [1, 6]),
        ("last", "skip", [1, 2, 6]),
        ("last", "after", [1, 2, 5, 6]),
        ("last", "allow", [1, 2, 5, 6]),
        ("all", "after", [1, 2, 3, 4, 5, 6]),
        ("all", "allow", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_catch_up_says_which_occurrences_of_an_outage_run(
    broker: DatabaseBackend, clock: DatabaseClock, catch_up: Any, overlap: Any, run: list[int]
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, catch_up=catch_up, overlap=overlap)
    found = []
    for hour in (1, 5.5, 6):  # from 1:00 to 5:30 nobody is there; what is due at 2:00 waits
        go_to(broker, clock, hours(hour))
        for _ in range(6):
            found += run_due(broker)
            look(broker)
    assert found == [id_at(hour) for hour in run]


def test_catch_up_none_lets_a_message_expire_that_could_not_start(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, catch_up="none")
    row = ReadyMessage.objects.using(database).get()
    assert row.expires_at == hours(1) + timedelta(minutes=1)


@pytest.mark.parametrize(("overlap", "then"), [("skip", [4]), ("after", [3])])
def test_overlap_says_what_becomes_of_what_fell_due_meanwhile(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, overlap: Any, then: list[int]
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, overlap=overlap)
    go_to(broker, clock, hours(1))
    (claimed,) = claim(broker)
    go_to(broker, clock, hours(3.5))
    broker.queue.apply([settlement(claimed, SettleAction.FINISH)])
    assert ids(database) == [id_at(hour) for hour in then]


def test_with_overlap_allow_the_next_is_put_while_one_runs(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, overlap="allow")
    go_to(broker, clock, hours(1))
    assert len(claim(broker)) == 1
    look(broker)
    assert ids(database) == [id_at(1), id_at(2)]


def test_with_overlap_allow_occurrences_are_put_before_their_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=Every(seconds=3), overlap="allow")
    look(broker)
    due = ReadyMessage.objects.using(database).order_by("due_at")
    assert [row.due_at - START for row in due] == [timedelta(seconds=seconds) for seconds in (3, 6, 9, 12)]


def test_a_schedule_ends_with_its_count_or_until(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", name="counted", every=HOURLY, count=2)
    schedule_delay_message("k", name="until", every=HOURLY, start=hours(2), until=hours(3))
    found = []
    for hour in (1, 2, 3, 4):
        go_to(broker, clock, hours(hour))
        found += run_due(broker)
        look(broker)
    assert found == [id_at(1, "counted"), id_at(2, "counted"), id_at(2, "until"), id_at(3, "until")]
    assert ids(database) == []
    assert [info.is_over for info in list_delay_schedules()] == [True, True]


def test_the_same_schedule_again_changes_nothing(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY, count=5, start=START)
    before = list(Schedule.objects.using(database).values())
    message = ReadyMessage.objects.using(database).get()
    go_to(broker, clock, hours(0.9))
    schedule_delay_message("k", 1, name="s", every=HOURLY, count=5, start=START)
    assert list(Schedule.objects.using(database).values()) == before
    assert ReadyMessage.objects.using(database).get().pk == message.pk


@pytest.mark.usefixtures("registry")
def test_a_call_does_not_take_over_a_schedule_of_the_code_that_no_worker_has_written_yet(
    broker: DatabaseBackend, database: str
) -> None:
    delay_execute("k", every=HOURLY)(handle)
    with pytest.raises(ValueError, match="'k' is a schedule of the code"):
        schedule_delay_message("other", name="k", every=HOURLY)
    assert not Schedule.objects.using(database).exists()


@pytest.mark.usefixtures("registry")
def test_a_call_does_not_take_over_a_schedule_of_the_code(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    delay_execute("k", every=HOURLY)(handle)
    sync_delay_schedules()
    with pytest.raises(ValueError, match="'k' is a schedule of the code"):
        schedule_delay_message("k", name="k", every=Every(minutes=5))
    assert ids(database) == [id_at(1, "k")]
    sync_delay_schedules()
    assert ids(database) == [id_at(1, "k")]


@pytest.mark.usefixtures("registry")
def test_a_handler_spreads_its_occurrences(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    delay_execute("k", every=HOURLY, spread="30m")(handle)
    sync_delay_schedules()
    (info,) = list_delay_schedules()
    (row,) = ReadyMessage.objects.using(database)
    assert info.spread == timedelta(minutes=30)
    assert row.due_at == info.due_at(hours(1))
    assert hours(1) < row.due_at < hours(1.5)


def handle(message: Message[None]) -> None: ...


def test_a_changed_schedule_moves_what_waits(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    schedule_delay_message("k", 2, name="s", every=Every(minutes=45))
    (row,) = ReadyMessage.objects.using(database)
    assert (row.due_at, row.data) == (hours(0.75), "2")


def test_a_change_while_one_runs_waits_for_its_end(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    go_to(broker, clock, hours(1))
    (claimed,) = claim(broker)
    schedule_delay_message("k", 2, name="s", every=HOURLY)
    look(broker)
    assert ids(database) == [id_at(1)]
    broker.queue.apply([settlement(claimed, SettleAction.FINISH)])
    assert [(row.message_id, row.data) for row in ReadyMessage.objects.using(database)] == [(id_at(2), "2")]


def test_nothing_of_a_paused_schedule_runs(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    assert pause_delay_schedules("s", "other", reason="stocktaking") == 1
    schedule_delay_message("k", name="s", every=Every(minutes=5))  # a change does not end the pause
    go_to(broker, clock, hours(2.5))
    look(broker)
    assert ids(database) == []
    info = get_delay_schedule("s")
    assert info is not None
    assert (info.reason, info.is_over) == ("stocktaking", False)
    assert resume_delay_schedules("s") == 1
    assert ids(database) == [f"s@{hours(2.5) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"]  # the next one alone


def _resume() -> None:
    pause_delay_schedules("s", reason="stocktaking")
    resume_delay_schedules("s")


def _change() -> None:
    schedule_delay_message("k", 2, name="s", every=HOURLY)


@pytest.mark.parametrize("restart", [_resume, _change])
@pytest.mark.parametrize("action", [SettleAction.FINISH, SettleAction.BURY])
def test_an_occurrence_that_ran_before_its_time_is_not_put_again(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    restart: Callable[[], None],
    action: SettleAction,
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    reschedule_delay_messages(id_at(1), delay=0)
    go_to(broker, clock, START + timedelta(seconds=1))
    assert run_due(broker, action) == [id_at(1)]
    assert ids(database) == [id_at(2)]
    restart()
    assert ids(database) == [id_at(2)]
    restart()
    assert ids(database) == [id_at(2)]


def due(database: str) -> dict[str, datetime]:
    """Return what waits, each with the time at which it is due."""
    return {row.message_id: row.due_at for row in ReadyMessage.objects.using(database)}


@pytest.mark.parametrize("resumed", [0.75, 2.25])
def test_an_occurrence_that_was_rescheduled_keeps_its_time_over_a_pause(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, resumed: float
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, count=2)
    reschedule_delay_messages(id_at(1), at=hours(3.5))
    for _ in range(2):
        pause_delay_schedules("s", reason="stocktaking")
        go_to(broker, clock, hours(resumed))
        resume_delay_schedules("s")
        assert due(database) == {id_at(1): hours(3.5)}
    assert [info.so_far for info in list_delay_schedules()] == [1]
    go_to(broker, clock, hours(3.5))
    assert run_due(broker) == [id_at(1)]
    assert due(database) == {id_at(4): hours(4)}


@pytest.mark.parametrize(("moved", "then"), [(0.75, 1), (1.5, 3)])
def test_an_occurrence_whose_new_time_has_passed_in_a_pause_is_as_if_it_was_never_rescheduled(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, moved: float, then: float
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    reschedule_delay_messages(id_at(1), at=hours(moved))
    pause_delay_schedules("s", reason="stocktaking")
    go_to(broker, clock, hours(then - 0.1))
    resume_delay_schedules("s")
    assert due(database) == {id_at(then): hours(then)}


def test_an_occurrence_that_waited_for_its_window_comes_after_a_pause(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    window = Window("mon-sun", "15:00", "16:00", zone="UTC")
    schedule_delay_message("k", name="s", every=HOURLY, window=window)
    go_to(broker, clock, hours(1.5))
    _resume()
    assert due(database) == {id_at(1): hours(6)}


def test_a_change_in_a_pause_is_what_holds_after_it(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    reschedule_delay_messages(id_at(1), at=hours(5))
    pause_delay_schedules("s", reason="stocktaking")
    schedule_delay_message("k", name="s", every=Every(minutes=45))
    resume_delay_schedules("s")
    assert due(database) == {id_at(0.75): hours(0.75)}


@pytest.mark.parametrize("restart", [_resume, _change])
def test_an_occurrence_that_was_cancelled_does_not_come_back(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, restart: Callable[[], None]
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    cancel_delay_messages(id_at(1))
    restart()
    assert ids(database) == [id_at(2)]


def test_a_pause_leaves_what_was_asked_for_beside_the_rule(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    backfill_delay_schedule("s", start=hours(-2), until=hours(-1))
    pause_delay_schedules("s", reason="stocktaking")
    assert ids(database) == sorted([id_at(-2), id_at(-1)])
    resume_delay_schedules("s")
    go_to(broker, clock, START + timedelta(seconds=1))
    assert run_due(broker) == sorted([id_at(-2), id_at(-1)])
    assert ids(database) == [id_at(1)]


def test_a_removed_schedule_puts_nothing_more(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    for name in ("a", "b"):
        schedule_delay_message("k", name=name, every=HOURLY)
    go_to(broker, clock, hours(1))
    claimed = claim(broker)
    assert unschedule_delay_messages("a", "c") == 1
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claimed])
    assert ids(database) == [id_at(2, "b")]


def test_a_schedule_is_a_part_of_the_callers_transaction(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    with transaction.atomic(using=database):
        schedule_delay_message("k", name="s", every=HOURLY)
        assert ids(database) == [id_at(1)]
        transaction.set_rollback(True, using=database)
    assert (ids(database), list(list_delay_schedules())) == ([], [])


def test_one_run_now_leaves_the_rule_as_it_is(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", 7, name="s", every=HOURLY)
    id = run_delay_schedule("s")
    go_to(broker, clock, START + timedelta(seconds=1))
    assert run_due(broker) == [id]
    assert ids(database) == [id_at(1)]
    with pytest.raises(DelayqError, match="no schedule 'x'"):
        run_delay_schedule("x")


def test_a_backfill_puts_each_occurrence_of_the_span(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    assert backfill_delay_schedule("s", start=hours(-3), until=hours(-1)) == 3
    go_to(broker, clock, START + timedelta(seconds=1))
    assert run_due(broker) == [id_at(hour) for hour in (-3, -2, -1)]
    assert ids(database) == [id_at(1)]


def test_a_backfill_puts_nothing_that_the_schedule_never_had(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, start=hours(2), until=hours(4))
    assert backfill_delay_schedule("s", start=hours(-3), until=hours(9)) == 3
    assert ids(database) == [id_at(hour) for hour in (2, 3, 4)]


def test_a_backfill_of_a_span_that_is_backwards_is_refused(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    with pytest.raises(ValueError, match=r"until=.* is before start=.*; give a later one"):
        backfill_delay_schedule("s", start=hours(3), until=hours(2))


def test_two_who_put_at_once_put_one(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    """One of them holds the schedule's row while the other looks: the other leaves it alone, and does not wait."""
    if not connections[database].features.has_select_for_update_skip_locked:
        pytest.skip("its transactions come one after the other")
    schedule_delay_message("k", name="s", every=HOURLY)
    cancel_delay_messages(id_at(1))
    go_to(broker, clock, hours(1))
    seen: list[list[str]] = []

    def other() -> None:
        try:
            look(broker)
            seen.append(ids(database))
        finally:
            connections[database].close()

    with transaction.atomic(using=database):
        assert schedules.put_following(broker.database, {"name__in": ["s"]})
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    look(broker)
    assert (seen, ids(database)) == ([[]], [id_at(2)])


def test_a_rule_that_fails_holds_up_no_other(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        schedule_delay_message("k", name=name, every=HOURLY)
    Schedule.objects.using(database).filter(name="bad").update(rule='{"fortnightly": true}')
    go_to(broker, clock, hours(1))
    assert len(run_due(broker)) == 2
    assert ids(database) == [id_at(2, "good")]
    info = get_delay_schedule("bad")
    assert info is not None
    assert "no rule of this version" in info.error
    assert "'bad'" in caplog.text
    Schedule.objects.using(database).filter(name="bad").update(rule=HOURLY.to_json())
    go_to(broker, clock, hours(1.1))
    look(broker)
    assert ids(database) == [id_at(2, "bad"), id_at(2, "good")]


def is_in_table(day: date) -> bool:
    """Look into a table that is not there, in the database that a test has set."""
    if using := vars(is_in_table).get("using"):
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1 FROM no_such_table")
    return False


def test_a_rule_to_which_the_database_refuses_something_holds_up_no_other(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    registry: None,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calendar is the site's code, and may look into a table. PostgreSQL then refuses the rest as well."""
    own = f"{__name__}.{is_in_table.__name__}"
    settings.DELAYQ = {"default": settings.DELAYQ["default"] | {"CALENDARS": {"own": own}}}
    schedule_delay_message("k", name="bad", every=Every(days=1, time="12:00", zone="UTC", calendar="own"))
    schedule_delay_message("k", name="good", every=Every(days=1, time="12:00", zone="UTC"))
    go_to(broker, clock, TODAY.replace(hour=12))
    with monkeypatch.context() as patch:
        patch.setattr(is_in_table, "using", database, raising=False)
        assert len(run_due(broker)) == 2
        assert len(ids(database)) == 1
        assert "no_such_table" in info_of("bad").error
    look(broker)  # it waits for a minute
    assert len(ids(database)) == 1
    go_to(broker, clock, TODAY.replace(hour=12, minute=2))
    look(broker)
    assert len(ids(database)) == 2
    assert info_of("bad").error == ""


def test_a_message_of_another_with_the_id_of_an_occurrence_is_none(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    send_delay_message("k", id="s@2031-02-30T09:00:00Z")
    send_delay_message("k", id=id_at(0))
    go_to(broker, clock, START + timedelta(seconds=1))
    assert len(run_due(broker)) == 2
    assert ids(database) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": "n" * 180}, r"name='n+\.\.\.n+' has 180 characters; give a schedule at most 146"),
        ({"name": "delayq.s"}, "is for messages of django-delayq itself"),
        ({"every": "every day"}, "every='every day' is str; give Every"),
        ({"every": HOURLY, "delay": "1h"}, "delay=... is no option of a schedule"),
        ({"every": HOURLY, "countdown": 5}, "there is no option 'countdown': write delay="),
        (
            {"every": HOURLY, "zone": "UTC"},
            "there is no option 'zone': there is: at_most_once, expires, max",
        ),
        ({"count": 0}, "count=0 is too small"),
        ({"count": 2**31}, "count=2147483648 is too large"),
        ({"every": None}, "every=None is no rule; give Every"),
        ({"start": datetime(1, 1, 2, tzinfo=UTC)}, "is no time from 1970 to 9000"),
        ({"start": datetime(2031, 1, 1)}, "start=.* is naive"),
        ({"start": hours(2), "until": hours(1)}, "is before start="),
        ({"catch_up": "all"}, 'give overlap="after"'),
        ({"overlap": "never"}, "overlap='never' is unknown"),
        ({"every": Every(days=1, time="9:00", zone="Europe/Rome", calendar=lambda day: False)}, "can't be kept"),
        ({"until": START}, "until=2031-03-03 09:30:00.* is past, so nothing ever runs; give a later one"),
        ({"until": START + timedelta(minutes=1)}, "is before the first occurrence of every='every hour', which is at"),
        (
            {"every": Every(days=1, time="9:00", zone="UTC", calendar=[hours(0).date()]), "until": hours(20)},
            "is before the first occurrence of .*, which is at 2031-03-04 09:00:00",
        ),
        (
            {"every": RRule("FREQ=DAILY;COUNT=3", start=datetime(2031, 3, 1), zone="UTC")},
            "every='FREQ=DAILY;COUNT=3 .* does not come any more after now; give one that does",
        ),
        ({"window": Window("mon", "09:00", "10:00", zone="UTC", calendar=MONDAYS)}, "give one that opens"),
    ],
)
def test_what_no_schedule_can_be_is_refused_with_words(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, wrong: dict[str, Any], told: str
) -> None:
    given: dict[str, Any] = {"name": "s", "every": HOURLY} | wrong
    with pytest.raises((TypeError, ValueError), match=told):
        schedule_delay_message("k", **given)
    assert ids(database) == []


def test_a_change_after_which_nothing_comes_is_refused_but_other_changes_after_the_end_are_not(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY, until=hours(1.5))
    with pytest.raises(ValueError, match="is past, so nothing ever runs"):
        schedule_delay_message("k", 1, name="s", every=HOURLY, until=hours(0))
    assert ids(database) == [id_at(1)]
    go_to(broker, clock, hours(2))
    run_due(broker)
    for data in (1, 2):
        schedule_delay_message("k", data, name="s", every=HOURLY, until=hours(1.5))
    assert [info.data for info in list_delay_schedules()] == [2]


@pytest.mark.usefixtures("registry")
def test_a_schedule_of_the_code_may_have_ended(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    delay_execute("k", every=HOURLY, until=hours(0))(handle)
    sync_delay_schedules()
    assert [info.is_over for info in list_delay_schedules()] == [True]


def test_without_a_store_a_schedule_is_refused(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    get_backend()
    with pytest.raises(DelayqError, match="need a store"):
        schedule_delay_message("k", name="s", every=HOURLY)


STEPS = st.one_of(
    st.integers(-90, 300).map(lambda minutes: ("passes", minutes)),
    st.sampled_from(["starts", "finishes", "fails", "is retried", "dies", "is cancelled", "upkeep"]).map(
        lambda what: (what, 0)
    ),
)
"""What happens: minutes pass (the clock may also go back), a message moves, or a worker dies."""


@pytest.mark.parametrize(
    ("catch_up", "overlap"), [("all", "after"), ("last", "after"), ("last", "skip"), ("none", "skip")]
)
@given(steps=st.lists(STEPS, min_size=10, max_size=40))
@hypothesis_settings(
    max_examples=scaled(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_happens_each_occurrence_is_put_once_and_after_the_one_before(
    broker: DatabaseBackend, database: str, catch_up: Any, overlap: Any, steps: list[tuple[str, int]]
) -> None:
    clock = DatabaseClock(database)
    with clock.in_use():
        go_to(broker, clock, START)
        unschedule_delay_messages("s")
        for table in TABLES:
            table._default_manager.using(database).all().delete()
        schedule_delay_message("k", name="s", every=HOURLY, catch_up=catch_up, overlap=overlap)
        held: list[Claimed] = []
        for what, minutes in steps:
            _do(broker, clock, held, what, minutes)
            assert ReadyMessage.objects.using(database).count() <= 1
            assert set(Counter(_put(database)).values()) <= {1}
        put = _put(database)
        assert put[0] == hours(1)
        if catch_up == "all":
            assert {later - earlier for earlier, later in pairwise(put)} <= {timedelta(hours=1)}


def _do(broker: DatabaseBackend, clock: DatabaseClock, held: list[Claimed], what: str, minutes: int) -> None:
    ends = {"finishes": SettleAction.FINISH, "fails": SettleAction.BURY, "is retried": SettleAction.RETRY}
    match what:
        case "passes":
            clock.jump(minutes * 60_000)
        case "starts":
            held += claim(broker)
        case "dies":
            broker.queue.take_over(["w"])
            held.clear()
        case "is cancelled":
            for row in ReadyMessage.objects.using(broker.database.using):
                cancel_delay_messages(row.message_id)
        case "upkeep":
            look(broker)
        case "runs":
            run_due(broker)
        case _ if held:
            broker.queue.apply([settlement(held.pop(), ends[what])])


def _put(database: str) -> list[datetime]:
    """Return the occurrences that were put, each as often as it was."""
    found = [
        id for table in TABLES for id in table._default_manager.using(database).values_list("message_id", flat=True)
    ]
    return sorted(at for _, at in filter(None, map(occurrence_of, found)))


def test_an_occurrence_is_due_when_the_window_opens_and_keeps_its_id(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    window = Window("mon-sun", "10:30", "18:00", zone="UTC")
    schedule_delay_message("k", name="s", every=HOURLY, window=window, spread="10m")
    (row,) = ReadyMessage.objects.using(database)
    assert row.message_id == id_at(1)
    assert hours(1.5) <= row.due_at < hours(1.5) + timedelta(minutes=10)
    go_to(broker, clock, hours(2))
    look(broker)
    assert run_due(broker) == [id_at(1)]
    (row,) = ReadyMessage.objects.using(database)
    assert row.message_id == id_at(3)  # 11:00 was skipped: the one before it had not ended
    assert message_facts(broker.database, row.message_id).rule  # type: ignore[union-attr]


def test_one_run_now_waits_for_no_window(broker: DatabaseBackend, clock: DatabaseClock, database: str) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, window=Window("mon-sun", "20:00", "21:00", zone="UTC"))
    id = run_delay_schedule("s")
    backfill_delay_schedule("s", start=hours(0), until=hours(0))
    go_to(broker, clock, START + timedelta(seconds=1))
    assert run_due(broker) == sorted([id, id_at(0)])


def test_a_change_leaves_an_overdue_occurrence_to_run(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY, overlap="after")
    go_to(broker, clock, hours(1.2))
    schedule_delay_message("k", 2, name="s", every=HOURLY, overlap="after")
    assert run_due(broker) == [id_at(1)]
    assert [(row.message_id, row.data) for row in ReadyMessage.objects.using(database)] == [(id_at(2), "2")]


@pytest.mark.parametrize("stop", ["pause", "remove"])
def test_what_waits_of_a_schedule_is_cancelled_where_several_wait(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, stop: str
) -> None:
    for name in ("s", "S", "s@2031"):
        schedule_delay_message("k", name=name, every=Every(seconds=3), overlap="allow")
    look(broker)
    assert len(ids(database)) == 12
    if stop == "pause":
        pause_delay_schedules("s", reason="stocktaking")
    else:
        unschedule_delay_messages("s")
    assert len(ids(database)) == 8
    assert not any(id.startswith("s@2031-") for id in ids(database))


def test_what_was_cancelled_before_its_time_does_not_count(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY, count=1)
    pause_delay_schedules("s", reason="stocktaking")
    resume_delay_schedules("s")
    schedule_delay_message("k", 2, name="s", every=HOURLY, count=1)
    assert ids(database) == [id_at(1)]
    go_to(broker, clock, hours(1))
    run_due(broker)
    look(broker)
    assert ids(database) == []


def test_a_backfill_does_not_count_when_it_is_cancelled(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, overlap="allow", count=10)
    backfill_delay_schedule("s", start=hours(0), until=hours(6))
    pause_delay_schedules("s", reason="stocktaking")
    assert ids(database) == []
    info = get_delay_schedule("s")
    assert info is not None
    assert info.so_far == 0


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_nothing_of_a_removed_schedule_is_left(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, overlap: Any
) -> None:
    schedule_delay_message("k", name="s", every=Every(seconds=3), overlap="allow")
    look(broker)
    schedule_delay_message("k", name="s", every=Every(seconds=3), overlap=overlap)
    backfill_delay_schedule("s", start=hours(1), until=hours(1.001))
    unschedule_delay_messages("s")
    assert ids(database) == []


def test_no_occurrence_is_before_a_start_that_was_changed_while_one_ran(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY)
    go_to(broker, clock, hours(1))
    (claimed,) = claim(broker)
    schedule_delay_message("k", name="s", every=HOURLY, start=hours(5))
    info = get_delay_schedule("s")
    assert info is not None
    assert info.next(1) == [one.at for one in upcoming(info, hours(1), 1)] == [hours(5)]
    broker.queue.apply([settlement(claimed, SettleAction.FINISH)])
    assert ids(database) == [id_at(5)]


@pytest.mark.parametrize(("catch_up", "run"), [("last", [1, 2, 4]), ("all", [1, 2, 3, 4]), ("none", [1])])
def test_what_was_missed_until_the_end_is_caught_up_after_it(
    broker: DatabaseBackend, clock: DatabaseClock, catch_up: Any, run: list[int]
) -> None:
    schedule_delay_message("k", name="s", every=HOURLY, until=hours(4), catch_up=catch_up, overlap="after")
    found = []
    for hour in (1, 2_000):
        go_to(broker, clock, hours(hour))
        for _ in range(5):
            found += run_due(broker)
            look(broker)
    assert found == [id_at(hour) for hour in run]


def test_a_change_reaches_an_occurrence_that_waits_for_its_window(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    window = Window("mon-sun", "15:00", "16:00", zone="UTC")
    schedule_delay_message("k", 1, name="s", every=HOURLY, window=window)
    go_to(broker, clock, hours(1.5))
    schedule_delay_message("k", 2, name="s", every=HOURLY)
    assert [(row.message_id, row.data) for row in ReadyMessage.objects.using(database)] == [(id_at(1), "2")]
    info = get_delay_schedule("s")
    assert info is not None
    assert info.so_far == 1


def test_a_schedule_that_is_removed_while_it_is_written_is_written(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    create = QuerySet.bulk_create

    def create_and_remove(self: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(QuerySet, "bulk_create", create)
        found = create(self, *args, **kwargs)
        Schedule.objects.using(database).all().delete()
        return found

    monkeypatch.setattr(QuerySet, "bulk_create", create_and_remove)
    schedule_delay_message("k", 2, name="s", every=HOURLY)
    assert [info.data for info in list_delay_schedules()] == [2]


def test_maintenance_looks_seldom_where_there_are_no_schedules(broker: DatabaseBackend, clock: DatabaseClock) -> None:
    assert schedules.put_due(broker.database) == ([], schedules.NONE_MS)
    schedule_delay_message("k", name="s", every=HOURLY)
    assert schedules.put_due(broker.database) == ([], schedules.LOOK_MS)


# `delayq resolve`: what a change of the time-zone database has moved

NOON = Every(days=1, time="12:00", zone="Europe/Rome")  # 11:00 in UTC, 10:00 by the clocks of Athens, 12:00 of London
NOON_AND_ONE = Cron("0 12,13 * * *", zone="Europe/Rome")
TODAY, TOMORROW = START.replace(minute=0), START.replace(minute=0) + timedelta(days=1)
ChangeZone = Callable[[str, str], None]


def local(day: datetime, hour: int = 12, name: str = "s") -> str:
    """Return the id of the occurrence at this hour of a day in Rome."""
    return f"{name}@{day:%Y-%m-%d}T{hour:02}:00:00[Europe/Rome]"


def resolve(*arguments: str) -> list[str]:
    """Return what the command says."""
    return delayq("resolve", "--zone", "Europe/Rome", *arguments).splitlines()


def info_of(name: str = "s") -> ScheduleInfo:
    info = get_delay_schedule(name)
    assert info is not None
    return info


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("window", [None, Window("mon-sun", "00:00", "24:00", zone="UTC")])
def test_an_occurrence_moves_with_its_local_time(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    overlap: Any,
    window: Window | None,
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, count=2, overlap=overlap, window=window)
    assert resolve() == ["moved 0 of 1 message with a rule in Europe/Rome"]
    change_zone("Europe/Rome", "Europe/Athens")
    said = f"{local(TODAY)}: 2031-03-03T11:00:00.000Z -> 2031-03-03T10:00:00.000Z"
    assert resolve("--dry-run") == [said, "would move 1 of 1 message with a rule in Europe/Rome"]
    assert due(database) == {local(TODAY): TODAY.replace(hour=11)}
    assert resolve() == [said, "moved 1 of 1 message with a rule in Europe/Rome"]
    assert due(database) == {local(TODAY): TODAY.replace(hour=10)}
    assert info_of().so_far == 1
    assert resolve() == ["moved 0 of 1 message with a rule in Europe/Rome"]
    go_to(broker, clock, TODAY.replace(hour=10))
    assert run_due(broker) == [local(TODAY)]
    look(broker)
    assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=10)}


@pytest.mark.parametrize("window", [None, Window("mon-sun", "00:00", "24:00", zone="UTC")])
def test_each_occurrence_that_waits_moves_with_its_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, window: Window | None
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE, overlap="allow", window=window)
    go_to(broker, clock, TODAY.replace(hour=12))
    look(broker)
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    assert run_due(broker) == [local(TODAY)]
    assert due(database) == {local(TODAY, 13): TODAY.replace(hour=13), local(TOMORROW): TOMORROW.replace(hour=12)}


def test_one_that_was_put_late_moves_with_its_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE, overlap="allow", catch_up="all")
    go_to(broker, clock, TODAY.replace(hour=12, minute=30))
    look(broker)  # one o'clock is put half an hour late
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    assert run_due(broker) == [local(TODAY)]
    assert due(database)[local(TODAY, 13)] == TODAY.replace(hour=13)


def test_one_that_was_backfilled_for_the_future_moves_with_its_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    evening = Window("mon-sun", "20:00", "21:00", zone="Europe/Rome")
    schedule_delay_message("k", 1, name="s", every=NOON, window=evening)
    backfill_delay_schedule("s", start=TOMORROW, until=TOMORROW + timedelta(days=1))
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert due(database)[local(TOMORROW)] == TOMORROW.replace(hour=10)  # whatever the window


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_what_comes_earlier_after_a_change_of_the_zone_is_put_in_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, overlap: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE, overlap=overlap)
    cancel_delay_messages(local(TODAY))
    change_zone("Europe/Rome", "Europe/Moscow")
    resolve()
    go_to(broker, clock, TODAY.replace(hour=10))
    look(broker)
    assert run_due(broker) == [local(TODAY, 13)]


def test_an_occurrence_whose_new_time_is_past_runs_late(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=Every(months=1, day=3, time="12:00", zone="Europe/Rome"))
    go_to(broker, clock, TODAY.replace(hour=10, minute=30))
    change_zone("Europe/Rome", "Europe/Athens")
    assert resolve()[0].endswith("-> 2031-03-03T10:00:00.000Z, which is past")
    assert run_due(broker) == [local(TODAY)]
    assert due(database) == {"s@2031-04-03T12:00:00[Europe/Rome]": datetime(2031, 4, 3, 9, tzinfo=UTC)}


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("catch_up", ["none", "last"])
def test_one_that_was_moved_to_a_time_that_is_past_moves_back(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    overlap: Any,
    catch_up: Any,
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, overlap=overlap, catch_up=catch_up)
    go_to(broker, clock, TODAY.replace(hour=10, minute=30))
    for like in ("Europe/Athens", "Europe/Paris"):  # Paris has the clocks of Rome
        change_zone("Europe/Rome", like)
        resolve()
    assert due(database) == {local(TODAY): TODAY.replace(hour=11)}
    go_to(broker, clock, TODAY.replace(hour=11))
    assert run_due(broker) == [local(TODAY)]


def test_one_that_is_overdue_by_both_rules_is_left(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    change_zone("Europe/Rome", "Europe/Athens")
    assert resolve() == ["moved 0 of 1 message with a rule in Europe/Rome"]
    assert due(database) == {local(TODAY): TODAY.replace(hour=11)}


def test_an_overdue_occurrence_that_has_not_started_waits_for_its_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}
    assert info_of().so_far == 1
    assert run_due(broker) == []


def test_a_local_time_that_has_run_does_not_come_again(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11))
    run_due(broker)
    change_zone("Europe/Rome", "Europe/London")  # where it is noon once more in an hour
    resolve()
    assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=12)}


@pytest.mark.parametrize("overlap", ["skip", "after"])
def test_what_runs_is_left_and_its_local_time_does_not_come_again(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, overlap: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, overlap=overlap)
    go_to(broker, clock, TODAY.replace(hour=11))
    held = claim(broker)
    change_zone("Europe/Rome", "Europe/London")
    assert resolve() == ["moved 0 of 0 messages with a rule in Europe/Rome"]
    assert ids(database) == [local(TODAY)]
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in held])
    assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=12)}


@pytest.mark.parametrize("window", [None, Window("mon-sun", "00:00", "24:00", zone="UTC")])
def test_what_somebody_rescheduled_or_cancelled_is_not_moved(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, window: Window | None
) -> None:
    for name in ("cancelled", "moved", "snoozed"):
        schedule_delay_message("k", 1, name=name, every=NOON, window=window)
    cancelled, moved, snoozed = (local(TODAY, name=name) for name in ("cancelled", "moved", "snoozed"))
    cancel_delay_messages(cancelled)
    go_to(broker, clock, TODAY.replace(hour=11))
    moved_to = from_ms(broker.database.now_ms() + 7_200_000)
    reschedule_delay_messages(moved, at=moved_to)
    (held,) = claim(broker)
    broker.queue.apply([settlement(held, SettleAction.SNOOZE, delay_ms=3_600_000)])
    change_zone("Europe/Rome", "Europe/London")
    assert resolve() == ["moved 0 of 0 messages with a rule in Europe/Rome"]
    assert ids(database) == [moved, snoozed]
    assert due(database)[moved] == moved_to
    look(broker)
    assert ids(database) == [local(TOMORROW, name="cancelled"), moved, snoozed]


def test_what_a_pause_holds_back_comes_at_its_new_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    schedule_delay_message("k", 1, name="t", every=NOON)
    reschedule_delay_messages(local(TODAY, name="t"), delay="5h")
    moved_to = due(database)[local(TODAY, name="t")]
    pause_delay_schedules("s", "t", reason="stocktaking")
    change_zone("Europe/Rome", "Europe/Athens")
    assert resolve() == ["moved 0 of 0 messages with a rule in Europe/Rome"]
    assert ids(database) == []
    resume_delay_schedules("s", "t")
    assert due(database) == {local(TODAY): TODAY.replace(hour=10), local(TODAY, name="t"): moved_to}


BOUNDS = pytest.mark.parametrize(
    ("bound", "like", "hour"),
    [
        ({"start": TODAY.replace(hour=11)}, "Europe/Athens", 10),
        ({"until": TODAY.replace(hour=11)}, "Europe/London", 12),
    ],
    ids=["start", "until"],
)


@BOUNDS
@pytest.mark.parametrize(
    "ends", [resolve, lambda: _resume(), lambda: change_data()], ids=["resolve", "pause", "change"]
)
def test_an_occurrence_that_was_put_stays_one_where_its_zone_moves_it_over_a_bound(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    bound: Any,
    like: str,
    hour: int,
    ends: Callable[[], object],
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, count=2, **bound)
    change_zone("Europe/Rome", like)
    ends()
    assert due(database) == {local(TODAY): TODAY.replace(hour=hour)}
    assert info_of().so_far == 1


def test_a_local_time_moves_also_where_another_one_comes_at_its_instant(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=Cron("0 12,13 * * *", zone="Europe/Rome"))
    change_zone("Europe/Rome", "Europe/Athens")  # where it is one o'clock at what was noon
    resolve()
    assert due(database) == {local(TODAY): TODAY.replace(hour=10)}


def test_a_local_time_runs_also_where_another_one_has_run_at_its_instant(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=Cron("0 12,13 * * *", zone="Europe/Rome"))
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    assert run_due(broker) == [local(TODAY)]
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert run_due(broker) == [local(TODAY, 13)]
    assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=10)}


def test_a_local_time_that_is_skipped_no_more_comes_when_clocks_show_what_they_showed_instead(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    night, day = Every(days=1, time="02:30", zone="Europe/Rome"), datetime(2031, 3, 30, tzinfo=UTC)
    schedule_delay_message("k", 1, name="s", every=night, start=day)
    own = "s@2031-03-30T03:30:00[Europe/Rome]"
    assert due(database) == {own: day.replace(hour=1, minute=30)}
    change_zone("Europe/Rome", "Africa/Lagos")
    resolve()
    assert due(database) == {own: day.replace(hour=2, minute=30)}
    go_to(broker, clock, day.replace(hour=2, minute=30))
    assert run_due(broker) == [own]
    assert ids(database) == ["s@2031-03-31T02:30:00[Europe/Rome]"]


def test_a_day_that_became_a_holiday_is_no_change_of_the_zone(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, settings: Settings
) -> None:
    before = settings.DELAYQ["default"]
    for holidays in (["2031-12-25"], ["2031-03-03"]):
        settings.DELAYQ = {"default": before | {"CALENDARS": {"IT": holidays}}}
        closed = Every(days=1, time="12:00", zone="Europe/Rome", calendar="IT")
        schedule_delay_message("k", 1, name="s", every=closed)
    assert resolve() == ["moved 0 of 1 message with a rule in Europe/Rome"]
    assert ids(database) == [local(TODAY)]


@pytest.mark.parametrize("options", [{"catch_up": "none"}, {"expires": "2h"}])
def test_an_occurrence_that_has_expired_stays_so(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, options: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, **options)
    go_to(broker, clock, TODAY.replace(hour=13, minute=30))
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert run_due(broker) == []
    look(broker)
    assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=10)}


def test_an_occurrence_that_has_expired_before_its_local_time_comes_then(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, catch_up="none")
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    go_to(broker, clock, TODAY.replace(hour=12))
    assert run_due(broker) == [local(TODAY)]


def test_without_catch_up_an_occurrence_whose_new_time_is_past_is_left_out(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE, catch_up="none")
    go_to(broker, clock, TODAY.replace(hour=10, minute=30))
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert run_due(broker) == []
    look(broker)
    assert due(database) == {local(TODAY, 13): TODAY.replace(hour=11)}


def test_one_that_waits_for_its_window_in_another_zone_is_left(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    evening = Window("mon-sun", "20:00", "21:00", zone="UTC")
    schedule_delay_message("k", 1, name="s", every=NOON, window=evening)
    go_to(broker, clock, TODAY.replace(hour=10, minute=30))
    change_zone("Europe/Rome", "Europe/Athens")
    assert resolve() == ["moved 0 of 1 message with a rule in Europe/Rome"]
    assert due(database) == {local(TODAY): TODAY.replace(hour=20)}


def test_a_pause_ends_with_the_window_as_it_is_then(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    evening = Window("mon-sun", "20:00", "21:00", zone="Europe/Rome")
    schedule_delay_message("k", 1, name="s", every=Every(hours=24), window=evening)
    pause_delay_schedules("s", reason="stocktaking")
    change_zone("Europe/Rome", "Europe/Athens")
    resume_delay_schedules("s")
    assert list(due(database).values()) == [TOMORROW.replace(hour=18)]


@pytest.mark.parametrize("paused_at", [TODAY.replace(hour=10, minute=15), TODAY.replace(hour=11, minute=15)])
def test_an_occurrence_that_is_paused_and_moved_counts_once(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, paused_at: datetime
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, count=2)
    go_to(broker, clock, paused_at)
    pause_delay_schedules("s", reason="stocktaking")
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    resume_delay_schedules("s")
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}
    assert info_of().so_far == 1


def test_what_was_rescheduled_before_its_zone_changed_can_still_be_changed(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, count=2)
    reschedule_delay_messages(local(TODAY), delay="5h")
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    pause_delay_schedules("s", reason="stocktaking")
    assert info_of().so_far == 0
    resume_delay_schedules("s")
    assert info_of().so_far == 1
    schedule_delay_message("k", 2, name="s", every=NOON, count=2)
    assert [row.data for row in ReadyMessage.objects.using(database)] == ["2"]


@pytest.mark.parametrize("resolves", [True, False])
def test_after_one_that_was_cancelled_the_next_local_time_comes(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, resolves: bool
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE)
    cancel_delay_messages(local(TODAY))
    for like in ("Asia/Tokyo", "Europe/Athens"):  # the local time stays known
        change_zone("Europe/Rome", like)
        if resolves:
            resolve()
    go_to(broker, clock, TODAY.replace(hour=11))
    look(broker)
    assert ids(database) == [local(TODAY, 13)]


def change_data() -> None:
    """Change what the occurrences carry, and nothing else."""
    info = info_of()
    rule, overlap = cast("Rule", info.rule), cast("Any", info.overlap)
    schedule_delay_message(
        "k",
        info.data + 1,
        name="s",
        every=rule,
        overlap=overlap,
        start=info.start,
        until=info.until,
        count=info.count,
    )


RESTARTS = pytest.mark.parametrize("restart", [_resume, change_data], ids=["pause", "change"])


@RESTARTS
@pytest.mark.parametrize("how", ["finishes", "is cancelled"])
@pytest.mark.parametrize("overlap", ["skip", "after", "allow"])
@pytest.mark.parametrize("resolves", [True, False], ids=["resolves", "does not"])
def test_a_local_time_that_is_over_does_not_come_again_after_a_pause_or_a_change(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    restart: Callable[[], None],
    how: str,
    overlap: Any,
    resolves: bool,
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, overlap=overlap)
    go_to(broker, clock, TODAY.replace(hour=11))
    if how == "finishes":
        run_due(broker)
    else:
        cancel_delay_messages(local(TODAY))
    look(broker)
    change_zone("Europe/Rome", "Europe/London")  # where it is noon once more in an hour
    if resolves:
        resolve()
    for _ in range(2):
        restart()
        assert due(database) == {local(TOMORROW): TOMORROW.replace(hour=12)}


@RESTARTS
@pytest.mark.parametrize("how", ["runs early", "is cancelled"])
def test_a_local_time_comes_although_another_one_is_over_at_its_instant(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    restart: Callable[[], None],
    how: str,
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE)
    if how == "runs early":
        reschedule_delay_messages(local(TODAY), delay=0)
        go_to(broker, clock, START + timedelta(minutes=1))
        assert run_due(broker) == [local(TODAY)]
    else:
        cancel_delay_messages(local(TODAY))
    look(broker)
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    for _ in range(2):
        restart()
        assert ids(database) == [local(TODAY, 13)]
    go_to(broker, clock, TODAY.replace(hour=11))
    assert run_due(broker) == [local(TODAY, 13)]


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_a_local_time_moves_to_where_another_one_is_open(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, overlap: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=Cron("0 11,12 * * *", zone="Europe/Rome"), overlap=overlap)
    go_to(broker, clock, TODAY.replace(hour=10))
    if overlap == "allow":
        (held,) = claim(broker)
        broker.queue.apply([settlement(held, SettleAction.RETRY, delay_ms=7_200_000)])
    else:
        run_due(broker, SettleAction.BURY)
        broker.queue.rescue([local(TODAY, 11)])
    look(broker)
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert ids(database) == [local(TODAY, 11), local(TODAY)]
    assert due(database)[local(TODAY)] <= from_ms(broker.database.now_ms())


@pytest.mark.parametrize("ends", [resolve, _resume], ids=["resolve", "pause"])
def test_what_was_rescheduled_by_a_rule_keeps_its_time_in_a_window_too(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, ends: Callable[[], object]
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, window=Window("mon-sun", "00:00", "24:00", zone="UTC"))
    reschedule_delay_messages(local(TODAY), at=At(days=9000, time="18:00", zone="Europe/Rome"))
    moved_to = due(database)
    ends()
    assert due(database) == moved_to


def test_a_rule_that_changes_while_one_is_overdue_leaves_that_to_run_also_in_another_zone(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11, minute=10))
    schedule_delay_message("k", 1, name="s", every=Every(days=1, time="19:00", zone="Europe/Rome"))
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    assert run_due(broker) == [local(TODAY)]
    assert ids(database) == [local(TODAY, 19)]


@pytest.mark.parametrize("unreadable", ["nonsense", "[]"])
def test_a_schedule_whose_rule_cannot_be_read_can_be_written_again(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, unreadable: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    Schedule.objects.using(database).update(rule=unreadable)
    schedule_delay_message("k", 1, name="s", every=NOON)
    assert ids(database) == [local(TODAY)]


def test_the_schedules_next_occurrences_are_in_the_zone_as_it_is_now(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11))
    change_zone("Europe/Rome", "Europe/London")
    info = info_of()
    assert info.last_at == TODAY.replace(hour=12)
    assert info.next(1) == [TOMORROW.replace(hour=12)]


def test_a_change_puts_again_what_was_rescheduled_and_whose_local_time_is_past(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=10, minute=30))
    reschedule_delay_messages(local(TODAY), delay="5h")
    change_zone("Europe/Rome", "Europe/Athens")
    change_data()
    assert ids(database) == [local(TODAY)]


def test_a_pause_that_ends_before_the_messages_are_resolved_keeps_the_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    pause_delay_schedules("s", reason="stocktaking")
    change_zone("Europe/Rome", "Europe/London")
    resume_delay_schedules("s")
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}


def test_the_last_pause_tells_when_a_message_was_due(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    _resume()
    reschedule_delay_messages(local(TODAY), delay="5h")
    moved_to = due(database)[local(TODAY)]
    _resume()
    assert due(database) == {local(TODAY): moved_to}


def test_a_retry_that_was_paused_counts_once_in_another_zone_too(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, count=2)
    go_to(broker, clock, TODAY.replace(hour=11))
    (held,) = claim(broker)
    broker.queue.apply([settlement(held, SettleAction.RETRY, delay_ms=7_200_000)])
    pause_delay_schedules("s", reason="stocktaking")
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    resume_delay_schedules("s")
    assert info_of().so_far == 1


@pytest.mark.parametrize("window", [None, Window("mon-sun", "00:00", "24:00", zone="UTC")])
def test_one_that_was_put_late_waits_for_its_local_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, window: Window | None
) -> None:
    rule = Cron("0 11,12 * * *", zone="Europe/Rome")
    schedule_delay_message("k", 1, name="s", every=rule, overlap="after", window=window)
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    assert run_due(broker) == [local(TODAY, 11)]
    assert ids(database) == [local(TODAY)]
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}


def test_an_earlier_start_brings_earlier_occurrences(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    for cancels in (False, True):
        schedule_delay_message("k", 1, name="s", every=NOON, start=START + timedelta(days=7))
        if cancels:
            cancel_delay_messages(*ids(database))
        schedule_delay_message("k", 1, name="s", every=NOON)
        assert ids(database) == [local(TODAY)]


def test_a_rule_that_changed_during_a_pause_begins_after_it(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=Every(months=1, day=28, time="12:00", zone="Europe/Rome"))
    cancel_delay_messages(*ids(database))
    pause_delay_schedules("s", reason="stocktaking")
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    resume_delay_schedules("s")
    assert ids(database) == [id_at(1)]


def test_a_change_puts_nothing_on_what_became_a_holiday(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, settings: Settings
) -> None:
    before = settings.DELAYQ["default"]
    for data, holidays in enumerate((["2031-12-25"], ["2031-03-03"], ["2031-12-25"])):
        settings.DELAYQ = {"default": before | {"CALENDARS": {"IT": holidays}}}
        closed = Every(days=1, time="12:00", zone="Europe/Rome", calendar="IT")
        schedule_delay_message("k", data, name="s", every=closed)
        assert ids(database) == [local(TODAY if data == 0 else TOMORROW)]  # nor does an earlier one come back


def test_one_that_begins_while_it_is_resolved_is_left(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    change_zone("Europe/Rome", "Europe/London")
    correct = schedules.correct

    def begins_then(*arguments: Any) -> Any:
        assert claim(broker)
        return correct(*arguments)

    monkeypatch.setattr(schedules, "correct", begins_then)
    assert resolve()[1:] == [
        "moved 0 of 1 message with a rule in Europe/Rome",
        "left 1: they started, or got another due time, meanwhile",
    ]
    assert ids(database) == [local(TODAY)]
    assert info_of().so_far == 1


def test_another_zone_is_no_change_of_the_zone(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=Every(days=1, time="12:00", zone="Europe/Athens"))
    go_to(broker, clock, TODAY.replace(hour=10))
    claim(broker)
    schedule_delay_message("k", 1, name="s", every=NOON)
    assert resolve() == ["moved 0 of 0 messages with a rule in Europe/Rome"]


def test_a_rule_that_cannot_be_resolved_holds_up_no_other_schedule(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, settings: Settings
) -> None:
    before = settings.DELAYQ["default"]
    settings.DELAYQ = {"default": before | {"CALENDARS": {"IT": ["2031-12-25"]}}}
    workdays = Window("mon-sun", "00:00", "24:00", zone="UTC", calendar="IT")
    schedule_delay_message("k", 1, name="a", every=NOON, window=workdays)
    schedule_delay_message("k", 1, name="s", every=NOON)
    settings.DELAYQ = {"default": before}
    change_zone("Europe/Rome", "Europe/Athens")
    with pytest.raises(CommandError, match="1 rule could not be resolved; what has them is where it was"):
        resolve()
    assert due(database)[local(TODAY)] == TODAY.replace(hour=10)


@pytest.mark.parametrize("action", [SettleAction.SNOOZE, SettleAction.RETRY])
def test_a_change_leaves_an_occurrence_that_has_begun(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, action: SettleAction
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY)
    go_to(broker, clock, hours(1))
    (held,) = claim(broker)
    broker.queue.apply([settlement(held, action, delay_ms=7_200_000)])
    before = due(database)
    schedule_delay_message("k", 2, name="s", every=HOURLY)
    assert due(database) == before
    go_to(broker, clock, before[id_at(1)])
    assert run_due(broker) == [id_at(1)]
    assert ids(database) == [id_at(4)]


def test_a_schedule_that_has_had_all_that_it_is_to_have_is_refused(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=HOURLY, count=1)
    schedule_delay_message("k", 2, name="s", every=HOURLY, count=1)  # it waits
    go_to(broker, clock, hours(1))
    assert run_due(broker) == [id_at(1)]
    schedule_delay_message("k", 2, name="s", every=HOURLY, count=1)  # as it is
    with pytest.raises(ValueError, match="count=1: schedule 's' has already had 1, so nothing more runs; give more"):
        schedule_delay_message("k", 2, name="s", every=Every(hours=2), count=1)
    schedule_delay_message("k", 2, name="s", every=HOURLY, count=2)
    assert ids(database) == [id_at(2)]


def test_a_change_of_one_that_is_overdue_in_its_old_zone_counts_it_once(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    evening = Window("mon-sun", "20:00", "21:00", zone="UTC")
    schedule_delay_message("k", 1, name="s", every=NOON, count=2, window=evening)
    go_to(broker, clock, TODAY.replace(hour=11, minute=15))
    change_zone("Europe/Rome", "Europe/London")
    schedule_delay_message("k", 2, name="s", every=NOON, count=2, window=evening)
    assert due(database) == {local(TODAY): TODAY.replace(hour=20)}
    assert info_of().so_far == 1


HALF_HOURLY = Cron("0,30 * * * *", zone="Europe/Rome")


def half(hour: int, minute: int) -> str:
    """Return the id of an occurrence of today in Rome."""
    return f"s@2031-03-03T{hour}:{minute:02}:00[Europe/Rome]"


@pytest.mark.parametrize("overlap", ["skip", "after", "allow"])
@pytest.mark.parametrize("left_out", ["by its start", "by a pause"])
@RESTARTS
def test_clocks_that_are_put_back_bring_no_earlier_local_time_again(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    overlap: Any,
    left_out: str,
    restart: Callable[[], None],
) -> None:
    """The local times before the last one have no rows, so only that one tells that they are over."""
    go_to(broker, clock, TODAY.replace(hour=11, minute=10 if left_out == "by its start" else 0))
    schedule_delay_message("k", 1, name="s", every=HALF_HOURLY, overlap=overlap)
    if left_out == "by a pause":
        pause_delay_schedules("s", reason="stocktaking")
        go_to(broker, clock, TODAY.replace(hour=11, minute=10))
        resume_delay_schedules("s")
    go_to(broker, clock, TODAY.replace(hour=11, minute=30))
    look(broker)
    assert run_due(broker) == [half(12, 30)]
    go_to(broker, clock, TODAY.replace(hour=11, minute=40))
    look(broker)
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    restart()
    assert due(database) == {half(13, 0): TODAY.replace(hour=13)}


def test_what_has_run_does_not_come_again_although_its_row_was_pruned(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    go_to(broker, clock, TODAY.replace(hour=11))
    run_due(broker)
    FinishMessage.objects.using(database).all().delete()
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    change_data()
    assert ids(database) == [local(TOMORROW)]


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_what_waits_in_a_zone_that_is_unknown_here_is_stopped(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, overlap: Any
) -> None:
    for name in ("paused", "removed", "s"):
        schedule_delay_message("k", 1, name=name, every=NOON, overlap=overlap)
    for model in (Schedule, ReadyMessage):
        for row in model.objects.using(database).all():
            row.message_id = row.message_id.replace("Europe/Rome", "US/Nowhere")
            row.save(using=database)
    pause_delay_schedules("paused", reason="stocktaking")
    unschedule_delay_messages("removed")
    schedule_delay_message("k", 2, name="s", every=NOON, overlap=overlap)
    assert list(ReadyMessage.objects.using(database).values_list("message_id", "data")) == [(local(TODAY), "2")]


@pytest.mark.parametrize("year", ["0001-01-01T00:00:00[Asia/Tokyo]", "9999-12-31T23:59:59[America/New_York]"])
def test_an_id_of_no_instant_holds_up_no_end(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, year: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    send_delay_message("k", 1, id=f"s@{year}")
    send_delay_message("k", 1, id="x")
    go_to(broker, clock, START + timedelta(minutes=1))
    assert run_due(broker) == [f"s@{year}", "x"]
    pause_delay_schedules("s", reason="stocktaking")
    assert ids(database) == []
    message = get_delay_message(f"s@{year}")
    assert message is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOON, Every(days=1, time="12:00", zone="Europe/Vatican")),
        (Every(hours=24), Cron("0 0 * * *", zone="UTC")),
    ],
    ids=["name", "zone"],
)
def test_what_was_cancelled_does_not_come_back_where_the_zone_gets_another_name(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, before: Any, after: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=before)
    (waits,) = ReadyMessage.objects.using(database)
    at = waits.due_at
    cancel_delay_messages(waits.message_id)
    schedule_delay_message("k", 1, name="s", every=after)
    assert list(due(database).values()) == [at + timedelta(days=1)]


def test_what_a_cancel_gives_back_after_its_zone_has_moved_is_moved_then(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON)
    cancel_delay_messages(local(TODAY), action="oops")
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    undo_delay_action("oops")
    resolve()
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}


def test_after_one_that_was_cancelled_what_is_past_in_its_zone_comes_at_once(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=HALF_HOURLY, overlap="after")
    go_to(broker, clock, TODAY.replace(hour=9, minute=40))
    cancel_delay_messages(half(11, 0))
    change_zone("Europe/Rome", "Europe/Athens")
    resolve()
    look(broker)
    assert ids(database) == [half(11, 30)]


@pytest.mark.parametrize("how", ["is cancelled", "runs early"])
def test_what_is_over_does_not_come_after_a_change_to_a_denser_rule(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, how: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=Cron("0 * * * *", zone="Europe/Rome"))
    (over,) = ids(database)
    if how == "is cancelled":
        cancel_delay_messages(over)
    else:
        reschedule_delay_messages(over, delay=0)
        go_to(broker, clock, START + timedelta(minutes=1))
        assert run_due(broker) == [over]
    schedule_delay_message("k", 1, name="s", every=Cron("0,45 * * * *", zone="Europe/Rome"))
    go_to(broker, clock, hours(0.75))
    assert run_due(broker) == [half(10, 45)]
    look(broker)
    assert ids(database) == [half(11, 45)]


def test_after_a_change_of_the_rule_clocks_that_were_put_back_bring_nothing_again(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=Cron("0 * * * *", zone="Europe/Rome"))
    ran = []
    for hour in (1, 2):
        go_to(broker, clock, hours(hour))
        ran += run_due(broker)
    go_to(broker, clock, hours(2) + timedelta(minutes=10))
    change_zone("Europe/Rome", "Europe/London")
    resolve()
    schedule_delay_message("k", 1, name="s", every=HALF_HOURLY)
    for half_hours in (5, 6, 7, 8):
        go_to(broker, clock, hours(half_hours / 2))
        ran += run_due(broker)
    assert Counter(ran).most_common(1)[0][1] == 1, ran


@pytest.mark.parametrize("overlap", ["skip", "after", "allow"])
def test_after_one_that_was_cancelled_what_follows_comes_at_its_new_time(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, overlap: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON_AND_ONE, overlap=overlap)
    cancel_delay_messages(local(TODAY))
    change_zone("Europe/Rome", "Etc/GMT-3")
    resolve()
    go_to(broker, clock, TODAY.replace(hour=10))
    look(broker)
    assert run_due(broker) == [local(TODAY, 13)]
    assert schedules.put_due(broker.database)[1] > 0


def test_after_clocks_were_put_back_maintenance_rests_until_the_next_one(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, overlap="allow")
    go_to(broker, clock, TODAY.replace(hour=10, minute=59, second=55))
    change_zone("Europe/Rome", "Europe/London")
    look(broker)
    assert schedules.put_due(broker.database)[1] > 0
    assert Schedule.objects.using(database).get().look_at == TODAY.replace(hour=12) - schedules.AHEAD


MONTHLY = Every(months=1, day=28, time="12:00", zone="Europe/Rome")


@pytest.mark.parametrize("changes", [False, True], ids=["as it was", "changed"])
@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_a_pause_that_outlasts_the_row_of_what_it_withdrew_leaves_out_nothing_to_come(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, changes: bool, overlap: Any
) -> None:
    schedule_delay_message("k", 1, name="s", every=MONTHLY, overlap=overlap)
    before = due(database)
    pause_delay_schedules("s", reason="stocktaking")
    FinishMessage.objects.using(database).all().delete()
    if changes:
        schedule_delay_message("k", 2, name="s", every=MONTHLY, overlap=overlap)
    resume_delay_schedules("s")
    assert due(database) == before


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("hour", [9, 11])
def test_a_schedule_that_comes_back_into_the_code_goes_on_with_what_was_withdrawn_and_counts_it_once(
    broker: DatabaseBackend,
    clock: DatabaseClock,
    database: str,
    change_zone: ChangeZone,
    monkeypatch: pytest.MonkeyPatch,
    hour: int,
) -> None:
    delay_execute("s", every=NOON, count=1)(handle)
    sync_delay_schedules()
    go_to(broker, clock, TODAY.replace(hour=hour, minute=40))
    monkeypatch.setattr(registry, "by_alias", {})
    sync_delay_schedules()
    assert ids(database) == []
    if hour == 9:
        FinishMessage.objects.using(database).all().delete()
    change_zone("Europe/Rome", "Europe/London")
    delay_execute("s", every=NOON, count=1)(handle)
    sync_delay_schedules()
    assert due(database) == {local(TODAY): TODAY.replace(hour=12)}
    assert info_of().so_far == 1


def test_one_that_was_withdrawn_once_counts_once_where_it_is_open_again(
    broker: DatabaseBackend, clock: DatabaseClock, database: str
) -> None:
    schedule_delay_message("k", 1, name="s", every=NOON, overlap="allow", count=1)
    _resume()
    reschedule_delay_messages(local(TODAY), delay=0)
    go_to(broker, clock, START + timedelta(minutes=1))
    schedule_delay_message("k", 2, name="s", every=NOON, overlap="allow", count=1)
    assert info_of().so_far == 1
