"""Figures of the tables: right where all is counted, and honest where it is not."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.brokers.base import SetCount, SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend, statistics
from django_delayq.store.statistics import FULL, HOURS, Bounds, Waiting, hour_began_ms, waiting
from django_delayq.support.timestamps import HOUR_MS, to_epoch_ms
from tests.brokers.rig import settlement
from tests.store.support import claim


def look(broker: DatabaseBackend, bounds: Bounds = FULL) -> Waiting:
    return waiting(broker.database, broker.database.now_ms(), bounds=bounds)


def send(database: str, *ids: str, key: str = "k", **options: Any) -> None:
    """Messages that are due at once are ready on return."""
    for id in ids:
        send_delay_message(key, 1, id=id, **options)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 1)


def test_each_state_is_counted_by_queue_and_key(broker: DatabaseBackend, database: str) -> None:
    send(database, "running", "finished", "buried", "retried")
    ends = {"finished": SettleAction.FINISH, "buried": SettleAction.BURY, "retried": SettleAction.RETRY}
    held = {claimed.id: claimed for claimed in claim(broker)}
    broker.queue.apply([settlement(held[id], verb, delay_ms=HOUR_MS) for id, verb in ends.items()])
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


def test_the_figures_are_those_of_the_exact_look(broker: DatabaseBackend, database: str) -> None:
    send(database, "a", "b", "c")
    (first, *_) = claim(broker)
    rows = ReadyMessage.objects.using(database)
    rows.filter(message_id="b").update(token=None, lease_until=None, crashes=2)  # a suspect
    send(database, "d", delay="1h")
    exact, seen = broker.queue.counts(), look(broker).counts
    assert first.id == "a"
    assert (seen.waiting, seen.running, seen.suspects) == (exact.waiting, exact.running, exact.suspects)
    assert (seen.running, seen.suspects) == (2, 1)


def test_what_is_pending_is_told_by_the_hour(broker: DatabaseBackend, database: str) -> None:
    full_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    for id, minutes in (("a", 0), ("b", 59), ("c", 60)):
        send(database, id, at=full_hour + timedelta(minutes=minutes, seconds=1))
    seen = look(broker)
    hour_ms = to_epoch_ms(full_hour)
    pair = ("default", "k")
    assert seen.pending_by_hour == {hour_ms: {pair: 2}, hour_ms + HOUR_MS: {pair: 1}}
    assert seen.known_until_ms is None


def test_hours_are_those_of_a_zone(broker: DatabaseBackend, database: str) -> None:
    zone = ZoneInfo("Asia/Kathmandu")  # UTC+05:45
    full_hour = datetime.now(zone).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    for id, minutes in (("a", 0), ("b", 59), ("c", 60)):
        send(database, id, at=full_hour + timedelta(minutes=minutes, seconds=1))
    seen = waiting(broker.database, broker.database.now_ms(), zone)
    hour_ms = to_epoch_ms(full_hour)
    pair = ("default", "k")
    assert seen.pending_by_hour == {hour_ms: {pair: 2}, hour_ms + HOUR_MS: {pair: 1}}
    assert seen.hour_began_ms == hour_ms - HOUR_MS


@pytest.mark.parametrize(
    ("zone", "now", "began"),
    [
        ("UTC", "15:15", "15:00"),
        ("Asia/Kolkata", "15:15", "14:30"),
        ("America/St_Johns", "15:15", "14:30"),
        ("Australia/Lord_Howe", "14:59", "14:00"),  # UTC+11 until 15:00,
        ("Australia/Lord_Howe", "15:15", "14:30"),  # UTC+10:30 from then on
    ],
)
def test_an_hour_began_less_than_an_hour_ago_by_the_clock_of_its_zone(zone: str, now: str, began: str) -> None:
    now_ms, expected_ms = (to_epoch_ms(datetime.fromisoformat(f"2026-04-04T{each}Z")) for each in (now, began))
    assert hour_began_ms(now_ms, ZoneInfo(zone)) == expected_ms


def test_what_is_due_after_the_hours_is_told_as_one(broker: DatabaseBackend, database: str) -> None:
    send(database, "a", delay=f"{HOURS + 1}h")
    send(database, "b", delay="30d")
    seen = look(broker)
    now_ms = seen.counts.now_ms
    assert seen.pending_by_hour == {now_ms - now_ms % HOUR_MS + HOURS * HOUR_MS: {("default", "k"): 2}}


def test_large_sets_are_counted_in_part_and_say_so(broker: DatabaseBackend, database: str) -> None:
    bounds = Bounds(pending=20, due=16, least=5)
    send_delay_messages(Send("k", 1, id=f"{i:02}", delay=3600 + i) for i in range(30))
    send_delay_messages(Send("l", 1, delay=7200) for _ in range(4))
    many, few = look(broker, bounds).counts.waiting
    assert (many.pending, many.pending_capped, many.ready_capped) == (26, True, False)
    assert (few.pending, few.pending_capped) == (4, False)
    ReadyMessage.objects.using(database).filter(key="k").update(due_at=F("due_at") - 2 * HOUR_MS)
    many, few = look(broker, bounds).counts.waiting
    assert (many.ready, many.ready_capped, many.pending_capped) == (8, True, False)


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_what_is_not_counted_of_a_large_backlog_is_estimated_from_a_sample(
    broker: DatabaseBackend, database: str
) -> None:
    bounds = Bounds(pending=20, pile=20, due=16, least=5, sample=0)
    now_ms = broker.database.now_ms()
    _insert(broker, "k", 12_000, now_ms - 1)
    assert look(broker, bounds).estimate is None
    broker.database.changed("UPDATE delayq_ready SET token = 1, worker = 'w' WHERE mod(id, 2) = 0")
    _insert(broker, "l", 12_000, now_ms + statistics.AHEAD_MS - 1)
    _insert(broker, "l", 12_000, now_ms + 2 * statistics.AHEAD_MS)
    # How many pages there are depends on what the tests before have left, and with few of them chance decides.
    ((pages,),) = broker.database.rows(f"SELECT {broker.database.dialect.table_pages}")
    estimate = waiting(broker.database, now_ms, bounds=bounds._replace(sample=pages // 2)).estimate
    assert estimate is not None
    assert estimate.ready == {("default", "k"): pytest.approx(6_000, rel=0.4), ("default", "l"): 0}
    assert estimate.due_soon == {("default", "k"): 0, ("default", "l"): pytest.approx(12_000, rel=0.4)}
    broker.database.changed("DELETE FROM delayq_ready WHERE mod(id, 100) > 0")
    assert look(broker, Bounds()).estimate is None


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_postgresql_plans_no_more_for_many_keys_than_for_one(broker: DatabaseBackend, database: str) -> None:
    plans = []
    for keys in 1, 30:
        send_delay_messages(Send(f"key {i}", 1, delay="1h") for i in range(keys))
        with CaptureQueriesContext(connections[database]) as queries:
            look(broker)
        plans.append(sum(query["sql"].count("SELECT") for query in queries))
    assert plans[0] == plans[1]


def _insert(broker: DatabaseBackend, key: str, count: int, due_ms: int) -> None:
    broker.database.changed(
        'INSERT INTO delayq_ready (alias, message_id, queue, "key", data, due_at, scheduled_at, sent_at, at_most_once,'
        " failures, crashes, error, worker, history) SELECT 'default', %s || n, 'default', %s, '{}', %s, %s, %s, false,"
        " 0, 0, '', '', '[]' FROM generate_series(1, %s) AS n",
        [f"{key} due at {due_ms}, ", key, due_ms, due_ms, due_ms, count],
    )


def test_a_large_set_is_told_by_the_hour_beside_small_ones(broker: DatabaseBackend, database: str) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    send_delay_messages(Send("many", 1, at=hour + timedelta(seconds=i)) for i in range(41))
    send_delay_messages(Send(f"few {i}", 1, at=hour + timedelta(minutes=i)) for i in range(9))
    send_delay_messages(Send("many", 1, at=hour + timedelta(hours=5, seconds=i)) for i in range(100))
    seen = look(broker, Bounds(pending=50, least=2))
    assert seen.pending_by_hour[to_epoch_ms(hour)]["default", "many"] == 41
    assert sum(seen.pending_by_hour[to_epoch_ms(hour)].values()) == 50
    assert seen.known_until_ms == to_epoch_ms(hour + timedelta(hours=5))


def test_of_what_is_due_after_the_hours_few_are_counted_and_all_within_them(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_messages(Send("k", 1, delay=3600 + i) for i in range(7))
    send_delay_messages(Send("k", 1, delay=HOURS * 3600 + i) for i in range(9))
    seen = look(broker, Bounds(later=5, least=2))
    ends_ms = seen.hour_began_ms + HOURS * HOUR_MS
    assert [(one.pending, one.pending_capped) for one in seen.counts.waiting] == [(7 + 5, True)]
    assert seen.pending_by_hour.pop(ends_ms) == {("default", "k"): 5}
    assert sum(hour["default", "k"] for hour in seen.pending_by_hour.values()) == 7
    assert seen.known_until_ms == ends_ms


@pytest.mark.parametrize(
    ("most_of_a_pile", "expected"),
    [(40, [(10, False), (20, True), (20, True)]), (200, [(10, False), (60, False), (90, False)])],
)
def test_what_is_due_at_the_instant_at_which_counting_ends_is_counted_of_each_queue_and_key(
    broker: DatabaseBackend,
    database: str,
    most_of_a_pile: int,
    expected: list[tuple[int, bool]],
) -> None:
    at = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) + timedelta(hours=2)
    for key, number in (("few", 1), ("many", 60), ("most", 90)):
        send_delay_messages(Send(key, 1, at=at) for _ in range(number))
    send_delay_messages(Send("few", 1, at=at - timedelta(minutes=1)) for _ in range(9))
    seen = look(broker, Bounds(pending=50, pile=most_of_a_pile * 3 // 2, least=2))
    assert [(one.pending, one.pending_capped) for one in seen.counts.waiting] == expected
    is_whole = not any(capped for _, capped in expected)
    assert (seen.known_until_ms is None) == is_whole
    (due,) = seen.pending_by_hour.values()
    assert sum(due.values()) == sum(number for number, _ in expected)


def test_more_queues_and_keys_than_are_told_are_told_to_be_there(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST_PAIRS", 2)
    for key in ("a", "b"):
        send(database, key, key=key, delay="1h")
    assert not look(broker).more_sets
    send(database, "c", key="c", delay="1h")
    seen = look(broker)
    assert seen.more_sets
    assert [one.key for one in seen.counts.waiting] == ["a", "b"]


def test_hours_are_known_as_far_as_was_counted(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send("k", 1, id=str(i), delay=3600 + i) for i in range(9))
    assert look(broker, Bounds(pending=5, least=2)).known_until_ms == sorted(ms for ms in _due_ms(database).values())[5]


def test_more_queues_and_keys_are_counted_than_a_database_takes_in_one_statement(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_messages(Send(f"key {i}", 1, delay="1h") for i in range(statistics.MOST_PAIRS))
    seen = look(broker, Bounds(pending=1, least=1))
    assert [one.pending for one in seen.counts.waiting] == [1] * statistics.MOST_PAIRS


def test_the_number_of_statements_does_not_grow_with_the_number_of_keys(broker: DatabaseBackend, database: str) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connections[database]) as captured:
            look(broker)
        return len(captured)

    send(database, "a")
    before = statements()
    send_delay_messages(Send(f"key {i}", 1) for i in range(30))
    assert statements() == before


@pytest.mark.parametrize("names", [("%s", "100%"), ("'; --", '"x"'), ("ü", "{i}")])
def test_a_queue_and_a_key_are_data(broker: DatabaseBackend, database: str, names: tuple[str, str]) -> None:
    queue, key = names
    send(database, "a", key=key, queue=queue)
    (seen,) = look(broker).counts.waiting
    assert seen == SetCount(queue, key, 0, 1, seen.next_due_ms)


def _due_ms(database: str) -> dict[str, int]:
    return {row.message_id: to_epoch_ms(row.due_at) for row in ReadyMessage.objects.using(database)}
