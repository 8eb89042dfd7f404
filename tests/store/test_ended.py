"""Figures of what ended: right where all is counted, and from as many rows as were asked for."""

from typing import Any

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend, run_times
from django_delayq.store.run_times import Ran
from django_delayq.store.throughput import Finished, Minute, Sample, finished, samples
from tests.brokers.rig import settlement
from tests.store.support import claim


def send(database: str, *ids: str, **options: Any) -> None:
    """Messages that are ready on return."""
    for id in ids:
        send_delay_message("k", 1, id=id, **options)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 1)


def end(broker: DatabaseBackend, verb: SettleAction, **settled: Any) -> None:
    """All that is due ends so."""
    broker.queue.apply([settlement(claimed, verb, **settled) for claimed in claim(broker)])


def ran_ms(broker: DatabaseBackend, *pairs: tuple[str, str]) -> dict[str, float]:
    """As the dashboard asks: by the last that ended of all, and of what is rare among them by queue and key."""
    of_last = finished(broker.database, 0, 0, 1)[1]
    of_rare = samples(broker.database, [], [], 1, run_times.rare(of_last, pairs))[2]
    return run_times.means_ms(of_last | of_rare, pairs)


@pytest.fixture(params=[1, run_times.ENOUGH], ids=["common", "rare"])
def enough(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long messages ran is told by the last that ended of all, or by a look of each queue and key."""
    monkeypatch.setattr(run_times, "ENOUGH", request.param)


@pytest.fixture
def some_ended(broker: DatabaseBackend, database: str) -> None:
    """Three messages that finished at 60, 69 and 130 s, and one that was cancelled at 100 s."""
    send(database, "a", "b", "c", "cancelled")
    broker.queue.cancel(["cancelled"])
    broker.queue.apply([settlement(claimed, SettleAction.FINISH) for claimed in claim(broker)])
    rows = FinishMessage.objects.using(database)
    for id, ended_ms in (("a", 60_000), ("b", 69_000), ("c", 130_000), ("cancelled", 100_000)):
        rows.filter(message_id=id).update(due_at=ended_ms - 100, started_at=ended_ms - 90, ended_at=ended_ms)


@pytest.mark.usefixtures("some_ended")
def test_what_finished_is_given_by_the_minute_as_far_back_as_was_read(broker: DatabaseBackend) -> None:
    def found(now_ms: int, span_ms: int, most: int) -> Finished:
        return finished(broker.database, now_ms, span_ms, most)[0]

    one, two, together = Minute(1, 1), Minute(2, 1), Minute(2, 2)
    assert found(130_000, 100_000, 10) == Finished(30_000, {0: one, 1: two})
    assert found(130_000, 70_000, 10) == Finished(60_000, {0: one, 1: one})  # after it
    assert found(130_000, 100_000, 3) == Finished(69_000, {0: one, 1: one})
    assert found(69_500, 10_000, 10) == Finished(59_500, {0: together})
    assert found(59_000, 10_000, 10) == Finished(49_000)


@pytest.mark.usefixtures("some_ended")
def test_windows_tell_how_many_finished_in_them_and_how_late_the_last_had_started(broker: DatabaseBackend) -> None:
    _, windows, _ = samples(broker.database, [], [(59_999, 69_000), (60_000, 69_000), (70_000, 120_000)], 1, [])
    assert windows == [Sample(2, [10]), Sample(1, [10]), Sample()]


@pytest.mark.usefixtures("some_ended")
def test_lateness_is_in_whole_ms_beside_how_long_messages_ran(broker: DatabaseBackend) -> None:
    stepped, windows, of_pairs = samples(broker.database, [(0, 200_000, 1)], [(0, 200_000)], 1, [("default", "k")])
    assert of_pairs == {("default", "k"): Ran(3, 270)}
    assert {type(late_ms) for one in (*stepped, *windows) for late_ms in one.late_ms} == {int}


@pytest.mark.usefixtures("some_ended")
def test_every_nth_message_tells_how_late_it_had_started(broker: DatabaseBackend) -> None:
    (all_, some), _, _ = samples(broker.database, [(0, 130_000, 1), (0, 130_000, 1_000_000)], [], 1, [])
    assert (all_, some) == (Sample(0, [10, 10, 10]), Sample())


@pytest.mark.usefixtures("enough")
def test_how_long_a_message_ran_is_the_mean_of_those_of_its_key(broker: DatabaseBackend, database: str) -> None:
    send(database, "a", "b")
    end(broker, SettleAction.FINISH)
    rows = FinishMessage.objects.using(database)
    rows.filter(message_id="a").update(started_at=F("ended_at") - 30_000)
    rows.filter(message_id="b").update(started_at=F("ended_at") - 10_000)
    assert ran_ms(broker, ("default", "k"), ("default", "new")) == {"k": 20_000}
    assert ran_ms(broker, ("mail", "k"), ("default", "k")) == {"k": 20_000}
    assert ran_ms(broker, ("mail", "k")) == {}


@pytest.mark.usefixtures("enough")
def test_a_message_ran_for_as_long_as_all_its_attempts(broker: DatabaseBackend, database: str) -> None:
    send(database, "fails twice, then finishes", "fails four times")
    end(broker, SettleAction.FINISH)
    finished_rows = FinishMessage.objects.using(database)
    finished_rows.update(started_at=F("ended_at") - 1_000)
    finished_rows.filter(message_id__startswith="fails twice").update(failures=2)
    finished_rows.filter(message_id="fails four times").delete()
    assert ran_ms(broker, ("default", "k")) == {"k": 3_000}
    send(database, "buried")
    end(broker, SettleAction.BURY)
    ErrorMessage.objects.using(database).update(started_at=F("ended_at") - 1_000, failures=4)
    assert ran_ms(broker, ("default", "k")) == {"k": 3_500}


@pytest.mark.usefixtures("enough")
def test_what_never_ran_does_not_count(broker: DatabaseBackend, database: str) -> None:
    send(database, "cancelled")
    broker.queue.cancel(["cancelled"])
    send(database, "expired")
    end(broker, SettleAction.BURY)
    ErrorMessage.objects.using(database).update(started_at=None)
    assert ran_ms(broker, ("default", "k")) == {}


@pytest.mark.usefixtures("enough")
def test_the_last_ones_tell_how_long_messages_run(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "MOST", 2)
    send(database, "a", "b", "c", "d")
    end(broker, SettleAction.FINISH)
    rows = FinishMessage.objects.using(database)
    for id, ended_ms, took_ms in (("a", 1_000_000, 90_000), ("b", 2_000_000, 3_000), ("c", 3_000_000, 1_000)):
        rows.filter(message_id=id).update(ended_at=ended_ms, started_at=ended_ms - took_ms)
    rows.filter(message_id="d").update(ended_at=4_000_000, outcome="cancelled")
    assert ran_ms(broker, ("default", "k")) == {"k": 2_000}


def test_what_is_common_is_told_by_the_last_that_ended_and_the_rest_by_its_own_last(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "LAST", 3)
    monkeypatch.setattr(run_times, "ENOUGH", 2)
    send(database, "a", "b", "c", "d")
    end(broker, SettleAction.FINISH)
    send(database, "buried")
    end(broker, SettleAction.BURY)
    rows = FinishMessage.objects.using(database)
    for number, id in enumerate(("a", "b", "c", "d")):
        ended_ms = 2_000_000 + number
        rows.filter(message_id=id).update(ended_at=ended_ms, started_at=ended_ms - 1_000)
    rows.filter(message_id="a").update(key="rare", started_at=F("ended_at") - 5_000)
    rows.filter(message_id="b").update(key="rare", started_at=F("ended_at") - 9_000)
    ErrorMessage.objects.using(database).update(ended_at=1_000_000, started_at=0)
    assert finished(broker.database, 0, 0, 1)[1] == {
        ("default", "k"): Ran(2, 2_000),
        ("default", "rare"): Ran(1, 9_000),
    }
    assert ran_ms(broker, ("default", "k"), ("default", "rare")) == {"k": 1_000, "rare": 7_000}


def test_a_key_of_which_its_own_last_were_all_cancelled_is_told_by_those_that_ran_among_the_last_of_all(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "LOOKED", 2)
    monkeypatch.setattr(run_times, "MOST", 2)
    send(database, "ran")
    end(broker, SettleAction.FINISH)
    FinishMessage.objects.using(database).update(started_at=F("ended_at") - 4_000, ended_at=F("ended_at") - 1_000)
    send(database, "cancelled", "cancelled too")
    broker.queue.cancel(["cancelled", "cancelled too"])
    assert ran_ms(broker, ("default", "k")) == {"k": 3_000}
