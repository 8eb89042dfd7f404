"""Figures of what ended: right where all is counted, and from as many rows as were asked for."""

from typing import Any

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.base import Verb
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import StoredBroker, ended
from django_delayq.store.ended import Finished, Minute, Sample, finished, samples
from tests.brokers.rig import settlement
from tests.store.support import claim


def send(database: str, *ids: str, **options: Any) -> None:
    """Messages that are ready on return."""
    for id in ids:
        send_delay_message("k", 1, id=id, **options)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 1)


def end(broker: StoredBroker, verb: Verb, **settled: Any) -> None:
    """All that is due ends so."""
    broker.settle([settlement(claimed, verb, **settled) for claimed in claim(broker)])


def ran_ms(broker: StoredBroker, *pairs: tuple[str, str]) -> dict[str, float]:
    return samples(broker.database, [], [], 1, pairs)[2]


@pytest.fixture
def some_ended(broker: StoredBroker, database: str) -> None:
    """Three messages that finished at 60, 69 and 130 s, and one that was cancelled at 100 s."""
    send(database, "a", "b", "c", "cancelled")
    broker.cancel(["cancelled"])
    broker.settle([settlement(claimed, Verb.FINISH) for claimed in claim(broker)])
    rows = FinishMessage.objects.using(database)
    for id, ended_ms in (("a", 60_000), ("b", 69_000), ("c", 130_000), ("cancelled", 100_000)):
        rows.filter(message_id=id).update(due_at=ended_ms - 100, started_at=ended_ms - 90, ended_at=ended_ms)


@pytest.mark.usefixtures("some_ended")
def test_what_finished_is_given_by_the_minute_as_far_back_as_was_read(broker: StoredBroker) -> None:
    first, second = Minute(1, 1), Minute(2, 2)
    assert finished(broker.database, 130_000, 100_000, 10) == Finished(30_000, {0: first, 1: second})
    assert finished(broker.database, 130_000, 70_000, 10) == Finished(60_000, {0: first, 1: Minute(1, 1)})  # after it
    assert finished(broker.database, 130_000, 100_000, 3) == Finished(69_000, {0: first, 1: Minute(1, 1)})
    assert finished(broker.database, 59_000, 10_000, 10) == Finished(49_000)


@pytest.mark.usefixtures("some_ended")
def test_windows_tell_how_many_finished_in_them_and_how_late_the_last_had_started(broker: StoredBroker) -> None:
    _, windows, _ = samples(broker.database, [], [(59_999, 69_000), (60_000, 69_000), (70_000, 120_000)], 1, [])
    assert windows == [Sample(2, [10]), Sample(1, [10]), Sample()]


@pytest.mark.usefixtures("some_ended")
def test_lateness_is_in_whole_ms_beside_how_long_messages_ran(broker: StoredBroker) -> None:
    stepped, windows, ran = samples(broker.database, [(0, 200_000, 1)], [(0, 200_000)], 1, [("default", "k")])
    assert ran == {"k": 90}
    assert {type(late_ms) for one in (*stepped, *windows) for late_ms in one.late_ms} == {int}


@pytest.mark.usefixtures("some_ended")
def test_every_nth_message_tells_how_late_it_had_started(broker: StoredBroker) -> None:
    (all_, some), _, _ = samples(broker.database, [(0, 130_000, 1), (0, 130_000, 1_000_000)], [], 1, [])
    assert (all_, some) == (Sample(0, [10, 10, 10]), Sample())


def test_how_long_a_message_ran_is_the_mean_of_those_of_its_key(broker: StoredBroker, database: str) -> None:
    send(database, "a", "b")
    end(broker, Verb.FINISH)
    rows = FinishMessage.objects.using(database)
    rows.filter(message_id="a").update(started_at=F("ended_at") - 30_000)
    rows.filter(message_id="b").update(started_at=F("ended_at") - 10_000)
    assert ran_ms(broker, ("default", "k"), ("default", "new")) == {"k": 20_000}
    assert ran_ms(broker, ("mail", "k"), ("default", "k")) == {"k": 20_000}
    assert ran_ms(broker, ("mail", "k")) == {}


def test_a_message_ran_for_as_long_as_all_its_attempts(broker: StoredBroker, database: str) -> None:
    send(database, "fails twice, then finishes", "fails four times")
    end(broker, Verb.FINISH)
    finished_rows = FinishMessage.objects.using(database)
    finished_rows.update(started_at=F("ended_at") - 1_000)
    finished_rows.filter(message_id__startswith="fails twice").update(failures=2)
    finished_rows.filter(message_id="fails four times").delete()
    assert ran_ms(broker, ("default", "k")) == {"k": 3_000}
    send(database, "buried")
    end(broker, Verb.BURY)
    ErrorMessage.objects.using(database).update(started_at=F("ended_at") - 1_000, failures=4)
    assert ran_ms(broker, ("default", "k")) == {"k": 3_500}


def test_what_never_ran_does_not_count(broker: StoredBroker, database: str) -> None:
    send(database, "cancelled")
    broker.cancel(["cancelled"])
    send(database, "expired")
    end(broker, Verb.BURY)
    ErrorMessage.objects.using(database).update(started_at=None)
    assert ran_ms(broker, ("default", "k")) == {}


def test_the_last_ones_tell_how_long_messages_run(
    broker: StoredBroker, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "RAN", 2)
    send(database, "a", "b", "c", "d")
    end(broker, Verb.FINISH)
    rows = FinishMessage.objects.using(database)
    for id, ended_ms, ran in (("a", 1_000_000, 90_000), ("b", 2_000_000, 3_000), ("c", 3_000_000, 1_000)):
        rows.filter(message_id=id).update(ended_at=ended_ms, started_at=ended_ms - ran)
    rows.filter(message_id="d").update(ended_at=4_000_000, outcome="cancelled")
    assert ran_ms(broker, ("default", "k")) == {"k": 2_000}
