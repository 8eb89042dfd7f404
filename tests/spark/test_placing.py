"""What a write leaves to the relay is counted, and said when the relay will be late with it."""

from dataclasses import replace

import pytest

from django_delayq import Send, send_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.spark.write.placing import due_by_minute, lateness_ms, placing
from django_delayq.spark.write.summary import Placing, total
from django_delayq.store import DatabaseBackend
from django_delayq.support.timestamps import from_ms
from tests.spark.support import EMBEDDED, STORED

NOW_MS, MINUTE_MS, HOUR_MS = 1_000_000_000_000, 60_000, 3_600_000
FAR_MS = 4_000_000_020_000


@pytest.mark.parametrize(
    ("minutes", "late_s"),
    [
        ([], 0),
        ([(NOW_MS, 60_000)], 0),  # a minute for 60,000 at 1,000 a second
        ([(NOW_MS, 90_000)], 30),
        ([(NOW_MS, 90_000), (NOW_MS + MINUTE_MS, 60_000)], 30),
        ([(NOW_MS + 2 * HOUR_MS, 3_600_000)], 0),  # an hour ahead of it the relay begins
        ([(NOW_MS + 2 * HOUR_MS, 4_600_000)], 940),
        ([(NOW_MS - HOUR_MS, 5_000)], 5),  # what is due already is late by what is before it
    ],
)
def test_the_relay_is_late_by_what_falls_due_faster_than_it_places(minutes: list[tuple[int, int]], late_s: int) -> None:
    assert lateness_ms(minutes, 1000, NOW_MS, HOUR_MS) // 1000 == late_s


def test_the_summary_warns_when_the_relay_will_be_late() -> None:
    assert total([], 1.0, Placing(10, 1000, 59)).warning == ""
    assert "it places 1000 a second" in total([], 1.0, Placing(10, 1000, 940)).warning
    assert "some 940 s late" in total([], 1.0, Placing(10, 1000, 940)).warning


def stored(using: str, count: int) -> DatabaseBackend:
    """So many messages, half of them a minute after the others."""
    at = [from_ms(FAR_MS), from_ms(FAR_MS + MINUTE_MS)]
    send_delay_messages((Send("note", n, at=at[n % 2]) for n in range(count)), using=using)
    broker = get_backend(using)
    assert isinstance(broker, DatabaseBackend)
    return broker


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("using", [STORED, EMBEDDED])
def test_the_pace_is_measured_by_what_is_placed_meanwhile(using: str) -> None:
    broker = stored(using, 2_100)
    assert due_by_minute(broker.queue) == [(FAR_MS, 1_050), (FAR_MS + MINUTE_MS, 1_050)]
    found = placing(broker.queue)
    assert found.unplaced == 100
    assert found.pace is not None
    assert found.pace > 0
    assert due_by_minute(broker.queue) == [(FAR_MS + MINUTE_MS, 100)]
    assert broker.queue.audit().differences == []
    assert placing(broker.queue) == Placing(100)  # too few to tell


@pytest.mark.usefixtures("spark")
def test_without_a_broker_there_is_no_pace_and_the_write_counts_all_the_same() -> None:
    broker = stored(STORED, 2_100)
    away = replace(get_alias(STORED), location="redis://127.0.0.1:1/0")
    assert placing(DatabaseBackend(away, broker.queue.settings, RedisBroker(away)).queue) == Placing(2_100)
