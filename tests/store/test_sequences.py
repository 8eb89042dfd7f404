"""Sequences put each step once, in the transaction that ends the one before; a stop ends them before the next."""

import asyncio
import json
import math
import random
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from io import StringIO
from time import monotonic, sleep
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from pytest_django import Settings

from django_delayq import (
    At,
    Message,
    Send,
    SendError,
    SentMany,
    Sequence,
    Snooze,
    Start,
    Step,
    UnknownKey,
    Unsupported,
    Window,
    cancel_delay_messages,
    get_delay_message,
    send_delay_message,
    send_delay_messages,
    stop_delay_sequences,
    tracing,
)
from django_delayq.api import sequences as api
from django_delayq.api.handlers import Handler
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, ClaimRequest, SettleAction, Transition
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, SequenceRow, SequenceTag
from django_delayq.monitor import explain, why_nowhere
from django_delayq.signals import message_started
from django_delayq.store import DatabaseBackend, sequences
from django_delayq.support.timestamps import from_ms
from django_delayq.worker import attempt
from django_delayq.worker.batches import run_leases
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.executors.asyncio import AsyncioExecutor
from django_delayq.worker.executors.threads import ThreadRunner
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from tests.brokers.rig import settlement
from tests.races import waits_for_a_lock, while_another_did
from tests.scale import scaled
from tests.store.skewed import DatabaseClock
from tests.store.support import MOMENT_MS
from tests.worker.rig import PATIENCE_S, make_handler

START = datetime(2031, 3, 3, 9, 30, tzinfo=UTC)
DAY = timedelta(days=1)
LEASE_MS = 60_000
THREE = [Step("a", "3d"), Step("b", "7d"), Step("c")]


@pytest.fixture
def stored_delayq(alone_delayq: dict[str, Any]) -> dict[str, Any]:
    return alone_delayq


@pytest.fixture(autouse=True)
def _forgotten_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "by_alias", {})


@pytest.fixture
def clock(broker: DatabaseBackend, database: str) -> Iterator[DatabaseClock]:
    """The database's clock. It begins at `START`."""
    clock = DatabaseClock(database)
    with clock.in_use():
        clock.jump((START - now(broker)) // timedelta(milliseconds=1) + 1)
        yield clock


def now(broker: DatabaseBackend) -> datetime:
    return from_ms(broker.database.now_ms())


def pass_time(clock: DatabaseClock, span: timedelta) -> None:
    clock.jump(span // timedelta(milliseconds=1) + 1000)


def waiting(database: str) -> list[str]:
    """Return the ids that wait or run."""
    return sorted(ReadyMessage.objects.using(database).values_list("message_id", flat=True))


def ended(database: str) -> list[tuple[str, str]]:
    rows = FinishMessage.objects.using(database).order_by("ended_at", "pk")
    return list(rows.values_list("message_id", "outcome"))


def claim(broker: DatabaseBackend, *keys: str) -> list[Claimed]:
    while _is_due_in_a_moment(broker):
        pass
    requests = [ClaimRequest("default", key, 100) for key in keys or ("a", "b", "c")]
    return broker.store.claim_all(requests, lease_ms=LEASE_MS, worker="w").messages


def _is_due_in_a_moment(broker: DatabaseBackend) -> bool:
    """Return whether a message was sent for now: it is due a little later, at the next whole millisecond."""
    at = now(broker)
    rows = ReadyMessage.objects.using(broker.database.using)
    return rows.filter(due_at__gt=at, due_at__lte=at + timedelta(milliseconds=MOMENT_MS)).exists()


def end(broker: DatabaseBackend, claimed: list[Claimed], action: SettleAction = SettleAction.FINISH) -> list[Any]:
    return list(broker.queue.apply([settlement(one, action) for one in claimed]))


def look(broker: DatabaseBackend) -> None:
    """Let upkeep look, however lately it did."""
    broker.store._follow_ups_rest_until = 0.0
    broker.store.mend_follow_ups()


def is_empty(database: str) -> bool:
    return not (SequenceRow.objects.using(database).exists() or SequenceTag.objects.using(database).exists())


def purge(id: str) -> None:
    get_backend("default").queue.purge([id])


def run_batch(claimed: list[Claimed], handler: Handler[Any, Any], database: str) -> list[Transition]:
    """Run a batch like a worker, and return what it settles."""
    leases = [Lease(one, handler, 0.0, math.inf, 0.0, started_at=monotonic()) for one in claimed]
    events = AttemptEvents("w")

    async def attempt_batch() -> dict[Lease, Transition | None]:
        nothing: Any = None
        held = Leases(get_backend("default"), LEASE_MS, OutageLog())
        executor = AsyncioExecutor([], events, held, nothing, nothing)
        return await executor._attempt_batch(asyncio.get_running_loop(), leases)

    ends = asyncio.run(attempt_batch()) if handler.is_async else run_leases(leases, events, database)
    return [one for one in ends.values() if one is not None and not one.is_written]


# The walk


def test_each_step_follows_the_end_of_the_one_before(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    dunning = Sequence("dunning", THREE)
    sent = dunning.start({"invoice": 17}, id="invoice:17", tag=("invoice:17", "customer:3"))
    assert (sent.id, sent.created) == ("dunning:invoice:17@1", True)
    assert sent.due_at is not None
    assert abs(sent.due_at - now(broker) - 3 * DAY) < timedelta(seconds=5)
    for number, (key, span) in enumerate([("a", 3 * DAY), ("b", 7 * DAY), ("c", 0 * DAY)], 1):
        assert waiting(database) == [f"dunning:invoice:17@{number}"]
        pass_time(clock, span)
        (claimed,) = claim(broker)
        assert claimed.header is not None
        assert (claimed.header.key, claimed.body) == (key, b'{"invoice":17}')
        found = get_delay_message(claimed.id)
        assert found is not None
        assert found.tag == "invoice:17"
        assert end(broker, [claimed]) == [True]
    assert waiting(database) == []
    assert ended(database) == [(f"dunning:invoice:17@{number}", "finished") for number in (1, 2, 3)]
    assert is_empty(database)


def test_a_retry_and_a_snooze_put_no_step(broker: DatabaseBackend, database: str, clock: DatabaseClock) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    for action in (SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.RELEASE):
        pass_time(clock, 0 * DAY)
        claimed = claim(broker)
        assert end(broker, claimed, action) == [True]
        assert waiting(database) == ["s:x@1"]


def test_a_failed_step_stands_still_until_its_rescue_has_finished(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    end(broker, claim(broker), SettleAction.BURY)
    look(broker)
    assert waiting(database) == []
    assert s.start(id="x").created is False
    broker.queue.rescue(["s:x@1"])
    end(broker, claim(broker))
    assert waiting(database) == ["s:x@2"]


def test_a_sequence_that_is_under_way_stays_as_it_is(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    assert s.start(1, id="x").created is True
    again = s.start(2, id="x")
    assert (again.id, again.created, again.running) == ("s:x@1", False, False)
    assert SequenceRow.objects.using(database).get().data == "1"
    assert s.start(2, id="y").created is True


# Starting many


def test_many_are_started_as_each_would_be(broker: DatabaseBackend, database: str, clock: DatabaseClock) -> None:
    s = Sequence("s", THREE)
    s.start(1, id="old")
    starts = [Start(n, id=f"c:{n}", tag=("dunning", f"customer:{n}")) for n in range(5)]
    again = Start(7, id="c:3")  # an id that is given twice is started once
    assert s.start_many([*starts, again, Start(9, id="old")]) == SentMany(accepted=7, created=5)
    assert s.start_many(iter(starts)) == SentMany(accepted=5)
    assert waiting(database) == [*(f"s:c:{n}@1" for n in range(5)), "s:old@1"]
    found, one = s.get("c:3"), get_delay_message("s:c:3@1")
    assert found is not None
    assert one is not None
    assert (found.step, found.message_id, found.data, found.keys) == (1, "s:c:3@1", 3, ("a", "b", "c"))
    assert (one.tags, one.data) == (("dunning", "customer:3"), 3)
    pass_time(clock, 3 * DAY)
    assert end(broker, claim(broker)) == [True] * 6
    assert waiting(database) == [*(f"s:c:{n}@2" for n in range(5)), "s:old@2"]
    assert stop_delay_sequences(tag="dunning") == 5
    assert waiting(database) == ["s:old@2"]


def test_many_tell_how_many_of_them_meet_a_message_that_runs(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start_many([Start(1, id="goes on"), Start(1, id="stopped")])
    claimed = claim(broker)
    s.stop("stopped")
    starts = [Start(2, id=id, tag="new") for id in ("goes on", "stopped", "other")]
    assert s.start_many(starts) == SentMany(accepted=3, created=2, running=2)
    end(broker, claimed)
    assert waiting(database) == ["s:goes on@2", "s:other@1", "s:stopped@1"]
    assert SequenceTag.objects.using(database).count() == 2


def test_many_cost_no_more_statements_than_a_few(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    counts = []
    for name, number in (("few", 5), ("many", 50)):
        with CaptureQueriesContext(connections[database]) as captured:
            s.start_many(Start(n, id=f"{name}:{n}", tag="t") for n in range(number))
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 20


def test_what_is_wrong_with_one_of_many_leaves_the_batches_before_it(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    starts = [*(Start(n, id=f"{n}") for n in range(3)), Start(object(), id="wrong"), Start(1, id="after")]
    with pytest.raises(SendError, match="2 messages were accepted, the rest was not sent") as caught:
        s.start_many(starts, batch_size=2)
    assert (caught.value.accepted, caught.value.unknown) == (2, ())
    assert isinstance(caught.value.__cause__, TypeError)
    assert waiting(database) == ["s:0@1", "s:1@1"]


def test_many_are_a_part_of_the_callers_transaction(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    with transaction.atomic(using=database):
        assert s.start_many((Start(n, id=f"{n}") for n in range(5)), batch_size=2).created == 5
        transaction.set_rollback(True, using=database)
    assert (waiting(database), is_empty(database)) == ([], True)


def test_many_start_all_or_none_of_a_batch(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no")

    s = Sequence("s", THREE)
    monkeypatch.setattr(sequences, "_put", fail)
    with pytest.raises(SendError, match="0 messages were accepted, 2 are unknown") as caught:
        s.start_many([Start(id="x", tag="t"), Start(id="y")])
    assert caught.value.unknown == ("x", "y")
    assert (waiting(database), is_empty(database)) == ([], True)


@pytest.mark.usefixtures("_locks_rows")
def test_of_two_that_start_many_at_once_each_sequence_starts_once(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    s.start_many(Start(id=id) for id in "ax")
    first = [Start(1, id=id) for id in "abc"]
    answer = while_another_did(
        database, lambda: s.start_many(first), lambda: s.start_many(Start(2, id=id) for id in "dcbxa")
    )
    assert answer == SentMany(accepted=5, created=1)
    assert waiting(database) == [f"s:{id}@1" for id in "abcdx"]


@pytest.mark.usefixtures("_locks_rows")
def test_transactions_that_start_many_of_the_same_ids_do_not_deadlock(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)

    def start_some(seed: int) -> int:
        chance = random.Random(seed)
        for n in range(scaled(15)):
            with transaction.atomic(using=database):
                s.start_many(Start(seed, id=f"{id:03}") for id in chance.sample(range(20 * n, 20 * n + 100), 50))
        return seed

    others = [beside(partial(start_some, seed)) for seed in (1, 2, 3)]
    assert [other() for other in others] == [1, 2, 3]


def test_of_two_starts_while_a_stopped_one_still_runs_the_first_begins_after_it(
    broker: DatabaseBackend, database: str
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(0, id="x")
    held = claim(broker)
    s.stop("x")
    assert s.start(1, id="x").created
    assert not s.start(2, id="x").created
    end(broker, held)
    assert [row.data for row in ReadyMessage.objects.using(database)] == ["1"]
    s.stop("x")
    assert is_empty(database)


@pytest.mark.usefixtures("_locks_rows")
def test_of_two_that_start_in_place_of_one_that_is_over_one_begins(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    s.start(0, id="x")
    ReadyMessage.objects.using(database).all().delete()
    second = while_another_did(database, lambda: s.start(1, id="x"), lambda: s.start(2, id="x"))
    assert not second.created
    assert [row.data for row in ReadyMessage.objects.using(database)] == ["1"]


def test_async_code_starts_many(broker: DatabaseBackend, database: str) -> None:
    async def each() -> AsyncIterator[Start]:
        for n in range(3):
            yield Start(n, id=f"{n}")

    s = Sequence("s", THREE)
    assert async_to_sync(s.astart_many)(each()) == SentMany(accepted=3, created=3)
    assert async_to_sync(s.astart_many)([Start(3, id="3")], batch_size=1).created == 1
    assert waiting(database) == [f"s:{n}@1" for n in range(4)]


@pytest.mark.parametrize("wrong", [5, Start(id="x"), [Send("a")], [{"id": "x"}]], ids=repr)
def test_what_is_no_start_is_refused_with_words(broker: DatabaseBackend, database: str, wrong: Any) -> None:
    with pytest.raises(SendError, match=r"give an iterable of Start\.|give Start\(data, id=\.\.\.\)"):
        Sequence("s", THREE).start_many(wrong)
    assert is_empty(database)


def test_a_wrong_number_and_a_missing_store_are_refused_before_anything_is_started(
    broker: DatabaseBackend, settings: Settings
) -> None:
    for size in (0, 1001, True):
        with pytest.raises((TypeError, ValueError), match="batch_size"):
            Sequence(f"s{size}", THREE).start_many([Start(id="x")], batch_size=size)
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(Unsupported, match="STORE"):
        Sequence("s", THREE).start_many([Start(id="x")])


@pytest.mark.parametrize("leave", [cancel_delay_messages, lambda message: get_backend().queue.purge([message])])
def test_a_cancelled_or_purged_step_ends_it(
    broker: DatabaseBackend, database: str, clock: DatabaseClock, leave: Callable[[str], object]
) -> None:
    s = Sequence("s", THREE)
    s.start(1, id="x", tag="t")
    s.start(1, id="y", tag="t")
    leave("s:x@1")
    leave("s:y@1")
    assert s.start(2, id="y").created is True
    pass_time(clock, 3 * DAY + sequences.LATE)
    look(broker)
    assert waiting(database) == ["s:y@1"]
    assert SequenceRow.objects.using(database).get().sequence_id == "y"
    assert not SequenceTag.objects.using(database).exists()


def test_a_sequence_keeps_the_steps_with_which_it_was_started(broker: DatabaseBackend, database: str) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    api.by_alias.clear()
    Sequence("s", [Step("c")])
    end(broker, claim(broker))
    end(broker, claim(broker, "b"))
    assert ended(database) == [("s:x@1", "finished"), ("s:x@2", "finished")]


def test_windows_and_local_times_count_from_the_end_of_the_step_before(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    office = Window("Mon-Fri", "09:00", "17:00", zone="UTC")
    steps = [Step("a"), Step("b", "36h", window=office), Step("c", at=At(time="08:00", zone="UTC", days=2))]
    Sequence("s", steps).start(id="x")
    friday = datetime(2031, 3, 7, 12, tzinfo=UTC)
    pass_time(clock, friday - now(broker))
    end(broker, claim(broker))
    row = ReadyMessage.objects.using(database).get()
    assert row.due_at == datetime(2031, 3, 10, 9, tzinfo=UTC)
    pass_time(clock, row.due_at - now(broker))
    (claimed,) = claim(broker)
    assert claimed.rule
    end(broker, [claimed])
    assert ReadyMessage.objects.using(database).get().due_at == datetime(2031, 3, 12, 8, tzinfo=UTC)


def test_a_step_whose_zone_is_not_known_holds_up_no_end_and_is_put_once_it_is(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    Sequence("s", [Step("a"), Step("b", window=Window("Mon-Sun", "00:00", "23:59", zone="UTC"))]).start(id="x")
    row = SequenceRow.objects.using(database).get()
    whole = row.plan
    row.plan = whole.replace("UTC", "Nowhere/Land")
    assert row.plan != whole
    row.save(using=database)
    assert end(broker, claim(broker)) == [True]
    assert waiting(database) == []
    SequenceRow.objects.using(database).update(plan=whole)
    pass_time(clock, sequences.LATE)
    look(broker)
    assert waiting(database) == ["s:x@2"]


def test_a_message_of_a_site_with_such_an_id_is_a_message_like_others(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("a", id="s:x@1")
    assert end(broker, claim(broker)) == [True]
    assert (waiting(database), ended(database)) == ([], [("s:x@1", "finished")])


def test_an_end_whose_lease_was_lost_puts_nothing(broker: DatabaseBackend, database: str) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    claimed = claim(broker)
    ReadyMessage.objects.using(database).update(token=7)
    assert end(broker, claimed) == [False]
    assert waiting(database) == ["s:x@1"]


def test_an_end_that_is_told_twice_puts_one_step(broker: DatabaseBackend, database: str) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    claimed = claim(broker)
    assert [end(broker, claimed), end(broker, claimed)] == [[True], [False]]
    assert waiting(database) == ["s:x@2"]


def test_upkeep_puts_what_a_worker_of_an_earlier_version_left_out(
    broker: DatabaseBackend, database: str, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    with monkeypatch.context() as patched:
        patched.setattr("django_delayq.store.settle._may_be_followed", lambda message_id: False)
        end(broker, claim(broker))
    assert waiting(database) == []
    look(broker)
    assert waiting(database) == []  # it may be about to end
    pass_time(clock, sequences.LATE)
    look(broker)
    assert waiting(database) == ["s:x@2"]


def test_upkeep_leaves_what_waits_and_what_has_failed(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    s.start(id="y")
    broker.queue.apply([settlement(one, SettleAction.BURY) for one in claim(broker) if one.id == "s:y@1"])
    for _ in range(3):
        pass_time(clock, sequences.OPEN)
        look(broker)
    assert waiting(database) == ["s:x@1"]
    assert SequenceRow.objects.using(database).count() == 2
    broker.queue.purge_failed(["s:y@1"])
    pass_time(clock, sequences.OPEN)
    look(broker)
    assert SequenceRow.objects.using(database).get().sequence_id == "x"


# Calendars, which are the site's code


@dataclass
class OwnCalendar:
    """A calendar of a site that reads a table of this database, and counts how often it was asked."""

    database: str
    is_ready: bool = True
    asks: int = 0

    def is_holiday(self, day: date) -> bool:
        self.asks += 1
        if not self.is_ready:
            connections[self.database].cursor().execute("SELECT 1 FROM no_such_table")
        return False


@pytest.fixture
def own_calendar(database: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> OwnCalendar:
    """Return the calendar "own" of the alias."""
    calendar = OwnCalendar(database)
    monkeypatch.setattr(sys.modules[__name__], "is_holiday", calendar.is_holiday, raising=False)
    settings.DELAYQ = {"default": settings.DELAYQ["default"] | {"CALENDARS": {"own": f"{__name__}.is_holiday"}}}
    return calendar


def start_with_calendar() -> None:
    window = Window("Mon-Sun", "00:00", "24:00", zone="UTC", calendar="own")
    Sequence("s", [Step("a"), Step("b", window=window)]).start(id="x")


def end_plainly(broker: DatabaseBackend, database: str) -> None:
    assert end(broker, claim(broker)) == [True]


def end_atomically(broker: DatabaseBackend, database: str) -> None:
    (claimed,) = claim(broker)
    assert run_atomic(claimed, lambda message: None, database).is_written


def end_in_atomic_batch(broker: DatabaseBackend, database: str) -> None:
    handler = make_handler(lambda messages: None, batch=10, atomic=True)
    run_batch(claim(broker), handler, database)


@pytest.mark.parametrize("end_step", [end_plainly, end_atomically, end_in_atomic_batch])
def test_a_calendar_that_fails_holds_up_no_end_and_the_step_is_put_once_it_works(
    broker: DatabaseBackend,
    database: str,
    clock: DatabaseClock,
    own_calendar: OwnCalendar,
    end_step: Callable[[DatabaseBackend, str], None],
) -> None:
    """A query of it fails, after which PostgreSQL refuses the rest of a transaction."""
    start_with_calendar()
    own_calendar.is_ready = False
    end_step(broker, database)
    assert (waiting(database), ended(database)) == ([], [("s:x@1", "finished")])
    asks = own_calendar.asks
    look(broker)
    assert own_calendar.asks == asks  # it waits for a minute
    pass_time(clock, sequences.LATE)
    look(broker)  # it fails again
    assert own_calendar.asks > asks
    assert waiting(database) == []
    own_calendar.is_ready = True
    pass_time(clock, sequences.LATE)
    look(broker)
    assert waiting(database) == ["s:x@2"]


@pytest.mark.parametrize("end_step", [end_plainly, end_atomically, end_in_atomic_batch])
def test_the_next_step_is_put_with_the_end_also_where_a_calendar_decides(
    broker: DatabaseBackend,
    database: str,
    own_calendar: OwnCalendar,
    end_step: Callable[[DatabaseBackend, str], None],
) -> None:
    start_with_calendar()
    end_step(broker, database)
    assert waiting(database) == ["s:x@2"]


# Atomic handlers


def run_atomic(claimed: Claimed, work: Callable[[Message[Any]], None], database: str) -> Transition:
    """Run a message as a slot does, in an atomic handler that does what is given."""
    handler = make_handler(work, atomic=True)
    message = attempt.begin(claimed, handler, claimed.due_ms, lambda: True)
    if not isinstance(message, Message):
        return message
    exception = attempt.run_sync(claimed, handler, message, database)
    return attempt.after(claimed, handler, exception, message.started_ms, message.started_ms)


@pytest.fixture
def run(database: str) -> Callable[[Claimed, Callable[[Message[Any]], None]], Transition]:
    """Run a message as `run_atomic` does."""
    return partial(run_atomic, database=database)


Run = Callable[[Claimed, Callable[[Message[Any]], None]], Transition]


def test_the_transaction_of_an_atomic_handler_puts_the_next_step(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    (claimed,) = claim(broker)
    seen: list[list[str]] = []

    def work(message: Message[Any]) -> None:
        transaction.on_commit(lambda: seen.append(waiting(database)), using=database)

    settled = run(claimed, work)
    assert settled.is_written
    assert seen == [["s:x@2"]]
    assert broker.queue.apply([settled]) == [True]
    assert waiting(database) == ["s:x@2"]


def test_an_atomic_handler_that_fails_puts_none(broker: DatabaseBackend, database: str, run: Run) -> None:
    Sequence("s", [Step("a"), Step("b")]).start(id="x")
    (claimed,) = claim(broker)

    def work(message: Message[Any]) -> None:
        raise Snooze("1s")

    broker.queue.apply([run(claimed, work)])
    assert waiting(database) == ["s:x@1"]


def test_a_handler_stops_its_own_sequence(broker: DatabaseBackend, database: str, run: Run) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    (claimed,) = claim(broker)

    def work(message: Message[Any]) -> None:
        assert message.sequence == "x"
        assert s.stop(message.sequence) == 1

    broker.queue.apply([run(claimed, work)])
    assert (waiting(database), ended(database)) == ([], [("s:x@1", "finished")])
    assert is_empty(database)


# Stopping


@pytest.mark.parametrize("by", [{"tag": "customer:3"}, {"tag": "invoice:17"}, {}])
def test_a_stop_cancels_what_waits(broker: DatabaseBackend, database: str, by: dict[str, str]) -> None:
    s = Sequence("s", THREE)
    s.start(id="x", tag=("invoice:17", "customer:3"))
    other = Sequence("other", THREE)
    other.start(id="x", tag="customer:4")
    assert s.stop(*([] if by else ["x"]), **by) == 1
    assert waiting(database) == ["other:x@1"]
    assert ended(database) == [("s:x@1", "cancelled")]
    assert s.stop("x") == 0
    assert SequenceRow.objects.using(database).get().name == "other"
    assert stop_delay_sequences(tag="customer:4") == 1
    assert is_empty(database)


def test_a_rollback_takes_a_stop_and_a_start_back(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", THREE)
    s.start(id="x")
    with transaction.atomic(using=database):
        s.stop("x")
        s.start(id="y")
        transaction.set_rollback(True, using=database)
    assert waiting(database) == ["s:x@1"]
    assert SequenceRow.objects.using(database).get().stopped_at is None


@pytest.mark.parametrize("action", list(SettleAction))
def test_a_step_that_runs_when_its_sequence_is_stopped_is_the_last_and_never_starts_again(
    broker: DatabaseBackend, database: str, action: SettleAction
) -> None:
    if action in (SettleAction.LAPSE, SettleAction.INTERRUPT):
        pytest.skip("no worker settles so, or the lease goes on")
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    claimed = claim(broker)
    assert s.stop("x") == 1
    assert s.stop("x") == 0
    assert waiting(database) == ["s:x@1"]
    assert end(broker, claimed, action) == [True]
    assert waiting(database) == []
    assert is_empty(database) == (action is not SettleAction.BURY)  # else a rescue must find that it was stopped
    failed = ErrorMessage.objects.using(database).exists()
    outcome = "finished" if action is SettleAction.FINISH else "cancelled"
    assert ended(database) == ([] if failed else [("s:x@1", outcome)])


def test_a_claimed_step_does_not_start_once_its_sequence_is_stopped(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    (claimed,) = claim(broker)
    s.stop("x")
    started: list[Message[Any]] = []
    assert broker.queue.apply([run(claimed, started.append)]) == [True]
    assert (started, waiting(database), ended(database)) == ([], [], [("s:x@1", "cancelled")])


def test_a_lease_that_runs_out_after_a_stop_does_not_start_it_again(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    s.start(id="y")
    claim(broker)
    s.stop("x")
    report = broker.database.now_ms() + LEASE_MS
    pass_time(clock, timedelta(milliseconds=LEASE_MS))
    from django_delayq.store import settle

    pks = list(ReadyMessage.objects.using(database).values_list("pk", flat=True))
    settle.reclaim(broker.database, pks, report + 1_000)
    assert (waiting(database), ended(database)) == (["s:y@1"], [("s:x@1", "cancelled")])


def test_a_rescue_after_a_stop_starts_nothing(broker: DatabaseBackend, database: str, run: Run) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    end(broker, claim(broker), SettleAction.BURY)
    assert s.stop("x") == 1
    broker.queue.rescue(["s:x@1"])
    (claimed,) = claim(broker)
    started: list[Message[Any]] = []
    broker.queue.apply([run(claimed, started.append)])
    assert (started, waiting(database)) == ([], [])


def test_a_rescue_starts_nothing_of_a_step_that_failed_after_the_stop(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    held = claim(broker)
    assert s.stop("x") == 1
    end(broker, held, SettleAction.BURY)
    broker.queue.rescue(["s:x@1"])
    (claimed,) = claim(broker)
    started: list[Message[Any]] = []
    broker.queue.apply([run(claimed, started.append)])
    assert (started, waiting(database), ended(database)) == ([], [], [("s:x@1", "cancelled")])
    assert is_empty(database)


ENDS = pytest.mark.parametrize(
    "action", [SettleAction.FINISH, SettleAction.BURY, SettleAction.RETRY, SettleAction.CANCEL]
)


@ENDS
def test_a_sequence_begins_when_another_message_that_runs_under_its_id_has_ended(
    broker: DatabaseBackend, database: str, action: SettleAction
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    send_delay_message("a", 1, id="s:x@1")
    held = claim(broker)
    sent = s.start(2, id="x")
    assert (sent.created, sent.running, sent.due_at) == (True, True, None)
    assert not s.start(3, id="x").created  # it is under way
    explanation = explain("s:x@1")
    assert explanation is not None
    assert explanation.sequence_words == (
        "It is step 1 of 2 of the sequence 's', started as 'x'. "
        "Another message has the id of this step, which is put when that has ended."
    )
    assert end(broker, held, action) == [True]
    assert list(ReadyMessage.objects.using(database).values_list("message_id", "data")) == [("s:x@1", "2")]
    end(broker, claim(broker))
    assert waiting(database) == ["s:x@2"]
    end(broker, claim(broker))
    assert is_empty(database)


@ENDS
def test_a_step_comes_when_another_message_that_runs_under_its_id_has_ended(
    broker: DatabaseBackend, database: str, action: SettleAction
) -> None:
    s = Sequence("s", [Step("a"), Step("b"), Step("c")])
    s.start(2, id="x")
    send_delay_message("b", 1, id="s:x@2")
    held = claim(broker, "b")
    end(broker, claim(broker, "a"))
    assert s.get("x") is not None
    assert end(broker, held, action) == [True]
    assert list(ReadyMessage.objects.using(database).values_list("message_id", "data")) == [("s:x@2", "2")]
    end(broker, claim(broker))
    assert waiting(database) == ["s:x@3"]


def test_a_stop_while_another_message_runs_under_the_id_of_a_step_ends_the_sequence(
    broker: DatabaseBackend, database: str
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    send_delay_message("a", 1, id="s:x@1")
    held = claim(broker)
    s.start(2, id="x")
    assert s.stop("x") == 1
    end(broker, held)
    assert waiting(database) == []
    assert is_empty(database)


def test_a_step_goes_on_also_if_nobody_noticed_how_the_other_message_ended(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    s = Sequence("s", [Step("a"), Step("b"), Step("c")])
    s.start(2, id="x")
    send_delay_message("b", 1, id="s:x@2")
    claim(broker, "b")
    end(broker, claim(broker, "a"))
    ReadyMessage.objects.using(database).all().delete()
    pass_time(clock, sequences.LATE)
    look(broker)
    assert list(ReadyMessage.objects.using(database).values_list("message_id", "data")) == [("s:x@2", "2")]


@pytest.mark.parametrize("over", [cancel_delay_messages, purge])
def test_a_sequence_whose_step_was_cancelled_or_purged_is_not_under_way(
    broker: DatabaseBackend, database: str, over: Callable[[str], object]
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    assert s.get("x") is not None
    over("s:x@1")
    assert s.get("x") is None


def run_one(claimed: Claimed, handler: Handler[Any, Any], database: str) -> Transition:
    """Run a message like a worker, and return what it settles."""
    lease = Lease(claimed, handler, 0.0, math.inf, 0.0, started_at=monotonic())
    events, nothing = AttemptEvents("w"), cast("Any", None)

    async def attempt_one() -> Transition | None:
        held = Leases(get_backend("default"), LEASE_MS, OutageLog())
        executor = AsyncioExecutor([], events, held, nothing, nothing)
        return await executor._attempt(asyncio.get_running_loop(), lease)

    transition = asyncio.run(attempt_one()) if handler.is_async else ThreadRunner(database, events).run(lease)
    assert transition is not None
    return transition


class Ends:
    """A tracer that keeps what each attempt raised."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def sending(self, using: str, messages: Any) -> tracing.Span:
        raise AssertionError("nothing is sent")

    def running(self, handler: tracing.Traced, message: Message[Any]) -> tracing.Span:
        return self

    def end(self, error: BaseException | None) -> None:
        self.errors.append(error)


@pytest.fixture
def traced() -> Iterator[Ends]:
    ends = Ends()
    tracing.use(ends)
    yield ends
    tracing.use(None)


@pytest.mark.parametrize("kind", ["atomic", "plain", "async"])
def test_a_step_does_not_start_that_is_stopped_while_it_begins(
    broker: DatabaseBackend, database: str, traced: Ends, kind: str
) -> None:
    """A receiver of `message_started` takes its time, and meanwhile somebody stops the sequence."""
    s, called = Sequence("s", [Step("a")]), list[str]()

    def note(message: Message[Any]) -> None:
        called.append(message.id)

    async def anote(message: Message[Any]) -> None:
        note(message)

    def stop(**facts: Any) -> None:
        s.stop("x")

    s.start(id="x")
    (claimed,) = claim(broker)
    message_started.connect(stop)
    try:
        transition = run_one(
            claimed, make_handler(anote if kind == "async" else note, atomic=kind == "atomic"), database
        )
    finally:
        message_started.disconnect(stop)
    assert called == []
    assert not any(traced.errors), "a tracer may follow what was not called, but no error"
    assert broker.queue.apply([transition]) == [True]
    assert (waiting(database), ended(database)) == ([], [("s:x@1", "cancelled")])


def test_the_time_of_an_async_step_begins_after_the_look_whether_it_was_stopped(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sequence("s", [Step("a")]).start(id="x")
    (claimed,) = claim(broker)
    called: list[str] = []
    look = attempt.check_not_stopped

    async def note(message: Message[Any]) -> None:
        called.append(message.id)

    def look_slowly(*args: Any) -> None:
        look(*args)
        sleep(0.2)  # as behind the sync code of other handlers

    monkeypatch.setattr(attempt, "check_not_stopped", look_slowly)
    transition = run_one(claimed, make_handler(note, timeout_ms=100), database)
    assert (called, transition.action) == (["s:x@1"], SettleAction.FINISH)


@pytest.mark.parametrize("kind", ["atomic", "plain", "async"])
def test_a_batch_does_not_start_a_step_that_is_stopped_while_it_begins(
    broker: DatabaseBackend, database: str, traced: Ends, kind: str
) -> None:
    s, called = Sequence("s", [Step("a")]), list[list[str]]()

    def note(messages: list[Message[Any]]) -> None:
        called.append([message.id for message in messages])

    async def anote(messages: list[Message[Any]]) -> None:
        note(messages)

    def stop(**facts: Any) -> None:
        s.stop("x")

    for id in ("x", "y"):
        s.start(id=id)
    handler = make_handler(anote if kind == "async" else note, batch=10, atomic=kind == "atomic")
    message_started.connect(stop)
    try:
        transitions = run_batch(claim(broker), handler, database)
    finally:
        message_started.disconnect(stop)
    assert called == []
    assert traced.errors == [None, None]
    assert broker.queue.apply(transitions) == [True, True]
    assert (waiting(database), ended(database)) == (["s:y@1"], [("s:x@1", "cancelled")])
    broker.queue.apply(run_batch(claim(broker), handler, database))
    assert called == [["s:y@1"]]


def test_an_atomic_step_does_not_start_that_is_stopped_before_its_transaction_begins(
    broker: DatabaseBackend, database: str
) -> None:
    s, started = Sequence("s", [Step("a")]), list[Message[Any]]()
    s.start(id="x")
    (claimed,) = claim(broker)
    handler = make_handler(lambda message: started.append(message), atomic=True)
    message = attempt.begin(claimed, handler, 0, lambda: True)
    assert isinstance(message, Message)
    s.stop("x")
    exception = attempt.run_sync(claimed, handler, message, database)
    assert broker.queue.apply([attempt.after(claimed, handler, exception, 0, 0)]) == [True]
    assert (started, waiting(database), ended(database)) == ([], [], [("s:x@1", "cancelled")])


def test_one_that_is_stopped_and_started_while_a_step_runs_begins_anew_when_that_ends(
    broker: DatabaseBackend, database: str
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(1, id="x")
    end(broker, claim(broker))
    claimed = claim(broker)
    with transaction.atomic(using=database):
        s.stop("x")
        sent = s.start(2, id="x")
    assert (sent.id, sent.created, sent.running, sent.due_at) == ("s:x@2", True, True, None)
    end(broker, claimed, SettleAction.RETRY)
    row = ReadyMessage.objects.using(database).get()
    assert (row.message_id, row.data) == ("s:x@1", "2")
    end(broker, claim(broker))
    assert waiting(database) == ["s:x@2"]


def test_a_failed_one_that_is_stopped_and_started_begins_anew_at_once(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(1, id="x")
    end(broker, claim(broker), SettleAction.BURY)
    s.stop("x")
    assert s.start(2, id="x").created is True
    end(broker, claim(broker))
    assert waiting(database) == ["s:x@2"]


# Races of a stop with an end, in both orders


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin some work in another thread. Return a function that waits for its end, and returns its answer."""
    answers: list[Any] = []

    def answer() -> None:
        try:
            answers.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=answer)
    thread.start()

    def join() -> Any:
        thread.join(PATIENCE_S)
        return answers[0]

    return join


@pytest.fixture
def _locks_rows(database: str) -> None:
    if connections[database].vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")


@pytest.mark.usefixtures("_locks_rows")
def test_an_end_that_meets_a_stop_waits_for_nothing_and_holds_up_no_other(
    broker: DatabaseBackend, database: str
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    s.start(id="y")
    send_delay_message("a", id="z")
    send_delay_messages(Send("filler", at=START) for _ in range(300))  # MariaDB locks all rows of a small table
    claimed = sorted(claim(broker), key=lambda one: one.id)
    with transaction.atomic(using=database):
        s.stop("x")
        assert beside(lambda: end(broker, claimed))() == [None, True, True]
    ReadyMessage.objects.using(database).filter(key="filler").delete()
    assert waiting(database) == ["s:x@1", "s:y@2"]
    assert end(broker, claimed[:1]) == [True]
    assert waiting(database) == ["s:y@2"]


@pytest.mark.usefixtures("_locks_rows")
def test_a_stop_that_is_rolled_back_lets_the_end_go_on(broker: DatabaseBackend, database: str) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    claimed = claim(broker)
    with transaction.atomic(using=database):
        s.stop("x")
        assert beside(lambda: end(broker, claimed))() == [None]
        transaction.set_rollback(True, using=database)
    assert end(broker, claimed) == [True]
    assert waiting(database) == ["s:x@2"]


@pytest.mark.usefixtures("_locks_rows")
@pytest.mark.parametrize("by", ["id", "tag"])
def test_a_stop_that_meets_an_end_waits_for_it_and_cancels_the_step_that_it_put(
    broker: DatabaseBackend, database: str, by: str
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x", tag="t")
    claimed = claim(broker)
    with transaction.atomic(using=database):
        assert end(broker, claimed) == [True]
        stopped = beside(lambda: s.stop("x") if by == "id" else s.stop(tag="t"))
        waits_for_lock(database)
    assert stopped() == 1
    assert (waiting(database), is_empty(database)) == ([], True)
    assert ended(database) == [("s:x@1", "finished"), ("s:x@2", "cancelled")]


@pytest.mark.usefixtures("_locks_rows")
def test_an_atomic_handler_that_ends_while_a_stop_is_under_way_puts_nothing(
    broker: DatabaseBackend, database: str, run: Run
) -> None:
    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    (claimed,) = claim(broker)
    runs = threading.Event()
    go_on = threading.Event()

    def work(message: Message[Any]) -> None:
        runs.set()
        assert go_on.wait(PATIENCE_S)

    ends = beside(lambda: run(claimed, work))
    assert runs.wait(PATIENCE_S)
    with transaction.atomic(using=database):
        s.stop("x")
        go_on.set()
        waits_for_lock(database)
    assert ends().is_written
    assert (waiting(database), is_empty(database)) == ([], True)


@pytest.mark.usefixtures("_locks_rows")
def test_a_lease_that_runs_out_while_a_stop_is_under_way_is_left_for_the_next_look(
    broker: DatabaseBackend, database: str, clock: DatabaseClock
) -> None:
    from django_delayq.store import settle

    s = Sequence("s", [Step("a"), Step("b")])
    s.start(id="x")
    (claimed,) = claim(broker)
    pass_time(clock, timedelta(milliseconds=LEASE_MS))
    now_ms = broker.database.now_ms()
    with transaction.atomic(using=database):
        s.stop("x")
        assert beside(lambda: settle.reclaim(broker.database, [int(claimed.pk)], now_ms))().rows == {}
    assert settle.reclaim(broker.database, [int(claimed.pk)], now_ms).rows == {int(claimed.pk): None}
    assert (waiting(database), ended(database)) == ([], [("s:x@1", "cancelled")])


def waits_for_lock(database: str) -> None:
    """Wait until another transaction waits for a lock on this server."""
    until = monotonic() + PATIENCE_S
    while not waits_for_a_lock(database):
        assert monotonic() < until, "nobody waits"
        sleep(0.2)  # InnoDB refreshes what it shows ten times a second, if nobody reads it meanwhile


# What is told


def test_explain_names_the_sequence_and_what_follows(broker: DatabaseBackend, clock: DatabaseClock) -> None:
    s = Sequence("s", [Step("a", "3d"), Step("b", "7d")])
    s.start({"n": 1}, id="x", tag="t")
    told = explain("s:x@1")
    assert told is not None
    assert told.sequence == s.get("x")
    assert told.sequence is not None
    assert (told.sequence.keys, told.sequence.step, told.sequence.data) == (("a", "b"), 1, {"n": 1})
    at = from_ms(told.info.due_ms) + 7 * DAY
    assert told.sequence_words == (
        "It is step 1 of 2 of the sequence 's', started as 'x'."
        f" Then 'b' follows, at {at:%Y-%m-%d %H:%M:%S} UTC at the earliest."
    )
    out = StringIO()
    call_command("delayq", "explain", "s:x@1", stdout=out)
    assert f"sequence: {told.sequence_words}" in out.getvalue()
    out = StringIO()
    call_command("delayq", "explain", "s:x@1", "--json", stdout=out)
    shape = json.loads(out.getvalue())["sequence"]
    assert (shape["name"], shape["id"], shape["step"], shape["keys"]) == ("s", "x", 1, ["a", "b"])
    assert (shape["message_id"], shape["stopped_at"]) == ("s:x@1", None)


def test_explain_of_a_step_to_come_says_when_it_comes(broker: DatabaseBackend, clock: DatabaseClock) -> None:
    s = Sequence("s", [Step("a", "3d"), Step("b", "7d"), Step("c", "1d")])
    s.start(1, id="x")
    told = explain("s:x@1")
    assert told is not None
    at = from_ms(told.info.due_ms) + 8 * DAY
    assert why_nowhere("s:x@3", "default") == (
        "It is step 3 of 3 of the sequence 's', started as 'x'. It is still to come: the sequence has come to 's:x@1'."
        f" It is due at {at:%Y-%m-%d %H:%M:%S} UTC at the earliest."
    )
    with pytest.raises(CommandError, match=r"No table has a message 's:x@2'\. It is step 2 of 3 of"):
        call_command("delayq", "explain", "s:x@2")
    assert why_nowhere("s:x@4", "default") == why_nowhere("s:y@2", "default") == why_nowhere("other", "default") == ""
    pass_time(clock, 3 * DAY)
    end(broker, claim(broker, "a"), SettleAction.BURY)
    assert why_nowhere("s:x@2", "default").endswith(
        "That has failed: what follows comes once it was rescued and has finished."
    )


def test_explain_of_a_step_to_come_says_that_its_sequence_was_stopped(broker: DatabaseBackend) -> None:
    s = Sequence("s", [Step("a"), Step("b", "1d")])
    s.start(1, id="x")
    claim(broker, "a")
    s.stop("x")
    assert why_nowhere("s:x@2", "default").endswith("It does not come: the sequence was stopped while 's:x@1' ran.")
    s.start(1, id="x")
    assert "the sequence was stopped, and begins anew when 's:x@1' has ended." in why_nowhere("s:x@2", "default")


@pytest.mark.parametrize("is_running", [False, True], ids=["waits", "runs"])
def test_explain_of_a_step_that_a_stop_has_cancelled_names_the_stop(
    broker: DatabaseBackend, clock: DatabaseClock, is_running: bool
) -> None:
    s = Sequence("s", [Step("a"), Step("b", "1d")])
    s.start(1, id="x", tag="customer:3")
    s.start(1, id="y")
    held = claim(broker, "a") if is_running else []
    at = f"{now(broker):%Y-%m-%d %H:%M}"
    s.stop(tag="customer:3")
    s.stop("y")
    pass_time(clock, DAY)
    end(broker, held, SettleAction.RETRY)
    by_tag, by_id = explain("s:x@1"), explain("s:y@1")
    assert by_tag is not None
    assert by_id is not None
    assert (by_tag.sequence, by_tag.happens_next) == (None, "Nothing: it is over.")
    by = "" if is_running else ", by the tag 'customer:3'"  # what runs knows the time of the stop, and no more
    assert re.fullmatch(
        r"It was step 1 of the sequence 's', started as 'x'\."
        rf" That was stopped at {at}:\d\d UTC{by}, and this message was cancelled\.",
        by_tag.sequence_words,
    )
    assert re.search(rf"That was stopped at {at}:\d\d UTC, and this message was cancelled\.", by_id.sequence_words)
    out = StringIO()
    call_command("delayq", "explain", "s:x@1", stdout=out)
    assert f"sequence: {by_tag.sequence_words}" in out.getvalue()


def test_explain_of_a_step_that_was_cancelled_by_its_id_tells_of_no_stop(broker: DatabaseBackend) -> None:
    Sequence("s", THREE).start(id="x")
    cancel_delay_messages("s:x@1")
    told = explain("s:x@1")
    assert told is not None
    assert told.sequence_words == ""


@pytest.mark.usefixtures("broker")
def test_explain_of_a_message_that_is_no_step_names_none() -> None:
    send_delay_message("a", id="s:x@1")
    told = explain("s:x@1")
    assert told is not None
    assert (told.sequence, told.sequence_words) == (None, "")


# Mistakes


def test_wrong_steps_and_names_are_refused() -> None:
    wrong: list[tuple[str, Any, type[Exception]]] = [
        ("", THREE, ValueError),
        ("a:b", THREE, ValueError),
        ("a@b", THREE, ValueError),
        ("delayq.own", THREE, ValueError),
        ("s", [], ValueError),
        ("s", [Step("a")] * 100, ValueError),
        ("s", ["a"], TypeError),
        ("s", Step("a"), TypeError),
        ("s", None, TypeError),
        ("s", [Step("a", "soon")], ValueError),
        ("s", [Step("a", priority=1_000)], ValueError),
        ("s", [Step("a", queue="a b\n")], ValueError),
        ("s", [Step("a", timeout="soon")], ValueError),
        ("s", [Step("a", max_attempts="3")], TypeError),  # type: ignore[arg-type]
        ("s", [Step("a", at_most_once="no")], TypeError),  # type: ignore[arg-type]
        ("s", [Step("a", "1d", at=At(time="08:00", zone="UTC"))], TypeError),
        ("s", [Step("a", at=START)], TypeError),  # type: ignore[arg-type]
    ]
    for name, steps, error in wrong:
        with pytest.raises(error):
            Sequence(name, steps)
    Sequence("s", THREE)
    with pytest.raises(ValueError, match="belongs to another"):
        Sequence("s", THREE)


@pytest.mark.usefixtures("broker")
def test_a_start_that_can_not_be_is_refused_whole(database: str, stored_delayq: dict[str, Any]) -> None:
    s = Sequence("s", THREE)
    wrong: list[dict[str, Any]] = [{"id": ""}, {"id": "x" * 200}, {"id": "x", "tag": ""}, {"id": "x", "data": object()}]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError)):
            s.start(**arguments)
    with pytest.raises(TypeError):
        s.stop()
    assert (waiting(database), is_empty(database)) == ([], True)


def test_an_unknown_key_and_a_missing_store_are_refused_with_words(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    s = Sequence("s", THREE)
    for call in (lambda: s.start(id="x"), lambda: s.stop("x"), lambda: s.get("x")):
        with pytest.raises(Unsupported, match="STORE"):
            call()


def test_an_unknown_key_is_refused_at_the_start(
    broker: DatabaseBackend, stored_delayq: dict[str, Any], settings: Settings, database: str
) -> None:
    stored_delayq["OPTIONS"]["unknown_keys"] = "error"
    settings.DELAYQ = {"default": stored_delayq}
    with pytest.raises(UnknownKey):
        Sequence("s", THREE).start(id="x")
    assert is_empty(database)


# Any walk


ACTIONS = st.sampled_from(
    ["finish", "retry", "fail", "rescue", "stop", "start", "cancel", "upkeep", "finish", "finish"]
)


@hypothesis_settings(
    max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ACTIONS, max_size=12))
def test_any_walk_is_what_the_rules_say(
    broker: DatabaseBackend, database: str, clock: DatabaseClock, actions: list[str]
) -> None:
    for table in (ReadyMessage, FinishMessage, ErrorMessage, SequenceRow, SequenceTag):
        table.objects.using(database).all().delete()
    api.by_alias.clear()
    s = Sequence("s", [Step("a"), Step("b"), Step("c")])
    step, failed = 0, False  # the model: which step it has come to, 0 if none, and whether that has failed
    for action in actions:
        pass_time(clock, 0 * DAY)
        if action == "start":
            assert s.start(id="x").created is not bool(step)
            step, failed = (step, failed) if step else (1, False)
        elif action == "stop":
            assert s.stop("x") == bool(step)
            step, failed = 0, False
        elif action == "cancel" and step and not failed:
            assert cancel_delay_messages(f"s:x@{step}") == 1
            step = 0
        elif action == "rescue" and step:
            assert broker.queue.rescue([f"s:x@{step}"]) == [failed]
            failed = False
        elif action == "upkeep":
            SequenceRow.objects.using(database).update(look_at=START.replace(year=2020))
            look(broker)
        elif action in ("finish", "retry", "fail"):
            claimed = claim(broker)
            assert [one.id for one in claimed] == ([f"s:x@{step}"] if step and not failed else [])
            verb = {"finish": SettleAction.FINISH, "retry": SettleAction.RETRY, "fail": SettleAction.BURY}[action]
            assert end(broker, claimed, verb) == [True] * len(claimed)
            if claimed and action == "finish":
                step = step + 1 if step < 3 else 0
            failed = failed or bool(claimed and action == "fail")
        assert waiting(database) == ([f"s:x@{step}"] if step and not failed else [])
