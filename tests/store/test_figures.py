"""Figures of the tables: right where all is counted, and honest where it is not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import SetCount, Verb
from django_delayq.fields import to_epoch_ms
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import StoredBroker, figures
from django_delayq.store.figures import HOUR_MS, Finished, Minute, Sample, Waiting, finished, samples, waiting
from tests.brokers.rig import settlement
from tests.store.support import claim


def look(broker: StoredBroker) -> Waiting:
    return waiting(broker.database, broker.database.now_ms())


def send(database: str, *ids: str, key: str = "k", **options: Any) -> None:
    """Messages that are due at once are ready on return."""
    for id in ids:
        send_delay_message(key, 1, id=id, **options)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 1)


def test_each_state_is_counted_by_queue_and_key(broker: StoredBroker, database: str) -> None:
    send(database, "running", "finished", "buried", "retried")
    ends = {"finished": Verb.FINISH, "buried": Verb.BURY, "retried": Verb.RETRY}
    held = {claimed.id: claimed for claimed in claim(broker)}
    broker.settle([settlement(held[id], verb, delay_ms=HOUR_MS) for id, verb in ends.items()])
    send(database, "ready", queue="mail")
    send(database, "pending", "pending too", key="l", delay="1d")
    seen = look(broker)
    assert [(each.queue, each.key, each.pending, each.ready) for each in seen.counts.waiting] == [
        ("default", "k", 1, 0),
        ("default", "l", 2, 0),
        ("mail", "k", 0, 1),
    ]
    assert (seen.counts.running, seen.counts.error) == (1, 1)
    assert (seen.retried, seen.errors_last_hour) == (1, 1)


def test_the_figures_are_those_of_the_exact_look(broker: StoredBroker, database: str) -> None:
    send(database, "a", "b", "c")
    (first, *_) = claim(broker)
    rows = ReadyMessage.objects.using(database)
    rows.filter(message_id="b").update(lease_until=F("due_at"), crashes=2)  # a suspect
    send(database, "d", delay="1h")
    exact, seen = broker.counts(), look(broker).counts
    assert first.id == "a"
    assert (seen.waiting, seen.running, seen.suspects) == (exact.waiting, exact.running, exact.suspects)
    assert (seen.running, seen.suspects) == (2, 1)


def test_what_is_pending_is_told_by_the_hour(broker: StoredBroker, database: str) -> None:
    full_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    for id, minutes in (("a", 0), ("b", 59), ("c", 60)):
        send(database, id, at=full_hour + timedelta(minutes=minutes, seconds=1))
    seen = look(broker)
    hour_ms = to_epoch_ms(full_hour)
    assert (seen.pending_by_hour, seen.known_until_ms) == ({hour_ms: 2, hour_ms + HOUR_MS: 1}, None)


def test_large_sets_are_counted_in_part_and_say_so(
    broker: StoredBroker, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST", 20)
    monkeypatch.setattr(figures, "MOST_DUE", 16)
    monkeypatch.setattr(figures, "LEAST", 5)
    send_delay_messages(Send("k", 1, id=f"{i:02}", delay=3600 + i) for i in range(30))
    send_delay_messages(Send("l", 1, delay=3600) for _ in range(9))
    many, few = look(broker).counts.waiting
    assert (many.pending, many.pending_capped, many.ready_capped) == (10, True, False)
    assert (few.pending, few.pending_capped) == (9, False)
    ReadyMessage.objects.using(database).filter(key="k").update(due_at=F("due_at") - 2 * HOUR_MS)
    many, few = look(broker).counts.waiting
    assert (many.ready, many.ready_capped, many.pending_capped) == (8, True, False)


def test_hours_are_known_as_far_as_was_counted(
    broker: StoredBroker, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setattr(figures, "MOST", 5)
    monkeypatch.setattr(figures, "LEAST", 5)
    send_delay_messages(Send("k", 1, id=str(i), delay=3600 + i) for i in range(9))
    assert look(broker).known_until_ms == sorted(ms for ms in _due_ms(database).values())[4]


def test_the_number_of_statements_does_not_grow_with_the_number_of_keys(broker: StoredBroker, database: str) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connections[database]) as captured:
            look(broker)
        return len(captured)

    send(database, "a")
    before = statements()
    send_delay_messages(Send(f"key {i}", 1) for i in range(30))
    assert statements() == before


@pytest.mark.parametrize("names", [("%s", "100%"), ("'; --", '"x"'), ("ü", "{i}")])
def test_a_queue_and_a_key_are_data(broker: StoredBroker, database: str, names: tuple[str, str]) -> None:
    queue, key = names
    send(database, "a", key=key, queue=queue)
    (seen,) = look(broker).counts.waiting
    assert seen == SetCount(queue, key, 0, 1, seen.next_due_ms)


@pytest.fixture
def ended(broker: StoredBroker, database: str) -> None:
    """Three messages that finished at 60, 69 and 130 s, and one that was cancelled at 100 s."""
    send(database, "a", "b", "c", "cancelled")
    broker.cancel(["cancelled"])
    broker.settle([settlement(claimed, Verb.FINISH) for claimed in claim(broker)])
    rows = FinishMessage.objects.using(database)
    for id, ended_ms in (("a", 60_000), ("b", 69_000), ("c", 130_000), ("cancelled", 100_000)):
        rows.filter(message_id=id).update(due_at=ended_ms - 100, started_at=ended_ms - 90, ended_at=ended_ms)


@pytest.mark.usefixtures("ended")
def test_what_finished_is_given_by_the_minute_as_far_back_as_was_read(broker: StoredBroker) -> None:
    first, second = Minute(1, 1), Minute(2, 2)
    assert finished(broker.database, 130_000, 100_000, 10) == Finished(30_000, {0: first, 1: second})
    assert finished(broker.database, 130_000, 70_000, 10) == Finished(60_000, {0: first, 1: Minute(1, 1)})  # after it
    assert finished(broker.database, 130_000, 100_000, 3) == Finished(69_000, {0: first, 1: Minute(1, 1)})
    assert finished(broker.database, 59_000, 10_000, 10) == Finished(49_000)


@pytest.mark.usefixtures("ended")
def test_windows_tell_how_many_finished_in_them_and_how_late_the_last_had_started(broker: StoredBroker) -> None:
    _, windows = samples(broker.database, [], [(59_999, 69_000), (60_000, 69_000), (70_000, 120_000)], 1)
    assert windows == [Sample(2, [10]), Sample(1, [10]), Sample()]


@pytest.mark.usefixtures("ended")
def test_every_nth_message_tells_how_late_it_had_started(broker: StoredBroker) -> None:
    (all_, some), _ = samples(broker.database, [(0, 130_000, 1), (0, 130_000, 1_000_000)], [], 1)
    assert (all_, some) == (Sample(0, [10, 10, 10]), Sample())


def _due_ms(database: str) -> dict[str, int]:
    return {row.message_id: to_epoch_ms(row.due_at) for row in ReadyMessage.objects.using(database)}
