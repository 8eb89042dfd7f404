"""What is due within the window while clocks, due times and alarms change: in time, and never early."""

import pytest
from django.db.models import F

from django_delayq import reschedule_delay_messages, send_delay_message
from django_delayq.brokers.base import ClaimRequest
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import WINDOW_MS, schedule_window
from django_delayq.support.timestamps import HOUR_MS
from tests.store.skewed import DatabaseClock
from tests.store.support import LEASE_MS, MOMENT_MS, WANT, alarms, claim, clock_of, wait_until_due, window_of

STEP_MS = 10_000


def _waits_ms(broker: DatabaseBackend, id: str) -> list[int]:
    """Return how long the alarm of a message waits, if there is one."""
    pk = ReadyMessage.objects.using(broker.database.using).values_list("pk", flat=True).get(message_id=id)
    found = clock_of(broker).timer.find_alarms("default", "k", [str(pk)])
    return [one.due_ms - one.now_ms for one in found if one.due_ms is not None and one.now_ms is not None]


def _is_claimed(broker: DatabaseBackend) -> bool:
    wait_until_due(broker)
    return bool(broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)


def test_a_clock_that_steps_back_makes_nothing_early_and_what_it_put_off_rings_in_time(
    broker: DatabaseBackend, database: str
) -> None:
    clock = DatabaseClock(database)
    with clock.in_use():
        schedule_window(broker.database, window_of(broker))
        send_delay_message("k", 1, id="rings")
        clock.jump(-STEP_MS)
        assert not _is_claimed(broker)
        (waits_ms,) = _waits_ms(broker, "rings")
        assert STEP_MS / 2 < waits_ms <= STEP_MS + MOMENT_MS
        send_delay_message("k", 1, id="unheard", delay="1h")
        rows = ReadyMessage.objects.using(database).filter(message_id="unheard")
        rows.update(due_at=F("due_at") - HOUR_MS + WINDOW_MS // 2)  # behind where the cursor was
        schedule_window(broker.database, window_of(broker))
        (waits_ms,) = _waits_ms(broker, "unheard")
        assert 0 < waits_ms <= WINDOW_MS / 2 + MOMENT_MS
        cursor_ms = window_of(broker).cursor()
        assert cursor_ms is not None
        assert cursor_ms <= broker.database.now_ms() + WINDOW_MS


def test_a_clock_that_jumps_ahead_leaves_what_became_due_by_it_to_the_tables(
    broker: DatabaseBackend, database: str
) -> None:
    clock = DatabaseClock(database)
    with clock.in_use():
        schedule_window(broker.database, window_of(broker))
        send_delay_message("k", 1, id="skipped", delay="20s")
        send_delay_message("k", 1, id="near", delay="35s")
        clock.jump(30_000)
        assert schedule_window(broker.database, window_of(broker)) == 1
        (waits_ms,) = _waits_ms(broker, "near")
        assert waits_ms <= 5_000 + MOMENT_MS
        broker.queue.backlog |= {("default", "k")}  # as the sweep finds it
        assert [one.id for one in claim(broker)] == ["skipped"]


def test_a_reschedule_within_the_window_to_earlier_and_to_later(broker: DatabaseBackend) -> None:
    schedule_window(broker.database, window_of(broker))
    send_delay_message("k", 1, id="later")
    reschedule_delay_messages("later", delay="9s")
    assert not _is_claimed(broker), "it was told of for now"
    (waits_ms,) = _waits_ms(broker, "later")
    assert 5_000 < waits_ms <= 9_000 + MOMENT_MS
    send_delay_message("k", 1, id="earlier", delay="9s")
    reschedule_delay_messages("earlier", delay="0s")
    assert [one.id for one in claim(broker)] == ["earlier"]


def test_a_reschedule_into_the_window_from_beyond(broker: DatabaseBackend) -> None:
    schedule_window(broker.database, window_of(broker))
    send_delay_message("k", 1, id="in", delay="1h")
    assert alarms(broker) == 0
    reschedule_delay_messages("in", delay="9s")
    (waits_ms,) = _waits_ms(broker, "in")
    assert 5_000 < waits_ms <= 9_000 + MOMENT_MS


def test_a_reschedule_out_of_the_window(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="out")
    reschedule_delay_messages("out", delay="1m")
    assert not _is_claimed(broker), "it was told of for now"
    assert _waits_ms(broker, "out") == []


@pytest.mark.parametrize("count", [1, 5])
def test_what_is_overdue_is_not_passed_over_while_others_of_its_key_ring(broker: DatabaseBackend, count: int) -> None:
    send_delay_message("k", 1, id="overdue", delay="1h")
    ReadyMessage.objects.using(broker.database.using).update(due_at=F("due_at") - HOUR_MS - 5_000)
    broker.queue.backlog |= {("default", "k")}  # as the sweep finds it
    claimed: set[str] = set()
    for n in range(4):
        send_delay_message("k", 1, id=f"rings-{n}")
        while any(wait_ms > 0 for wait_ms in _waits_ms(broker, f"rings-{n}")):  # not for the leases of the others
            broker.queue.wait(MOMENT_MS / 1000)
        wants = [ClaimRequest("default", "k", count)]
        claimed |= {one.id for one in broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w").messages}
    assert "overdue" in claimed
