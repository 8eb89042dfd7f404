"""Schedules in a site's tests: their occurrences run as the clock moves, and are refused where it does not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from pytest_django import Settings

from django_delayq import (
    Cron,
    Every,
    Message,
    cancel_delay_messages,
    delay_execute,
    get_delay_schedule,
    pause_delay_schedules,
    schedule_delay_message,
    sync_delay_schedules,
)
from django_delayq.testing import Attempt, run_due, sent_messages
from tests.testing.handlers import seen

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
START = datetime(2030, 1, 1, 6, 30, tzinfo=UTC)
DAILY = Every(days=1, time="09:00", zone="Europe/Rome")
HOURLY = Every(hours=1)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Put the default alias on a store of each kind."""
    kind: str = request.param
    name: str = request.getfixturevalue({"postgresql": "postgres_database"}.get(kind, f"{kind}_database"))
    settings.DELAYQ = {"default": {"STORE": {}, "DATABASE": name}}
    return name


pytestmark = pytest.mark.usefixtures("database", "delayq_memory")


def times(attempts: list[Attempt]) -> list[datetime]:
    return [attempt.at.replace(microsecond=0) for attempt in attempts]


def nine(day: int) -> datetime:
    """Return nine o'clock in Rome on a day of that January."""
    return datetime(2030, 1, day, 8, tzinfo=UTC)


def test_a_daily_schedule_runs_on_each_day_that_passes() -> None:
    with time_machine.travel(START, tick=False):
        schedule_delay_message("testing.note", "a", name="daily", every=DAILY)
        attempts = run_due(until="3d")
        assert times(attempts) == [nine(1), nine(2), nine(3)]
        assert [attempt.id for attempt in attempts] == [
            f"daily@2030-01-0{day}T09:00:00[Europe/Rome]" for day in (1, 2, 3)
        ]
        assert [message.data for message in seen] == ["a", "a", "a"]
        assert [message.due_at for message in sent_messages()] == [nine(4)]
        assert times(run_due(until="1d")) == [nine(4)]


def test_the_clock_need_not_be_moved_by_the_test() -> None:
    schedule_delay_message("testing.note", "a", name="daily", every=Every(hours=24))
    assert [attempt.id for attempt in run_due(until="3d")] == [message.id for message in seen]
    assert len(seen) == 3


@pytest.mark.usefixtures("registry")
def test_the_schedules_of_the_code_run_once_they_are_written() -> None:
    ran = []

    @delay_execute(key="report.daily", every=Cron("0 9 * * *", zone="Europe/Rome"))
    def report(message: Message[None]) -> None:
        ran.append(timezone.now().replace(microsecond=0))

    with time_machine.travel(START, tick=False):
        assert run_due(until="1d") == []
        sync_delay_schedules()
        run_due(until="2d")
    assert ran == [nine(2), nine(3)]


@pytest.mark.usefixtures("registry")
def test_the_code_says_when_its_schedules_begin_and_end() -> None:
    ran: list[tuple[str, datetime]] = []
    bounds: dict[str, Any] = {"counted": {"count": 2}, "bounded": {"start": nine(2), "until": nine(3)}}

    def report(message: Message[None]) -> None:
        assert message.occurrence is not None
        ran.append((message.key, timezone.now().replace(microsecond=0)))

    for key, options in bounds.items():
        delay_execute(key=key, every=DAILY, **options)(report)
    with time_machine.travel(START, tick=False):
        sync_delay_schedules()
        run_due(until="5d")
    assert sorted(ran) == [("bounded", nine(2)), ("bounded", nine(3)), ("counted", nine(1)), ("counted", nine(2))]


@pytest.mark.parametrize("overlap", ["skip", "after", "allow"])
def test_occurrences_come_whatever_their_overlap(overlap: Any) -> None:
    with time_machine.travel(START, tick=False):
        schedule_delay_message("testing.note", "a", name="s", every=HOURLY, overlap=overlap)
        schedule_delay_message("testing.note_async", "a", name="other", every=Every(hours=2))
        attempts = run_due(until="3h")
        assert times(attempts) == [START + timedelta(minutes=30 + 60 * hour) for hour in (0, 1, 1, 2)]


def test_what_follows_on_a_cancelled_occurrence_is_put_as_upkeep_does() -> None:
    with time_machine.travel(START, tick=False):
        schedule_delay_message("testing.note", "a", name="s", every=HOURLY)
        (first,) = sent_messages()
        cancel_delay_messages(first.id)
        assert times(run_due(until="2h")) == [START + timedelta(minutes=90)]


def test_a_schedule_without_a_handler_holds_nothing_up() -> None:
    with time_machine.travel(START, tick=False):
        schedule_delay_message("testing.note", "a", name="s", every=HOURLY)
        schedule_delay_message("testing.chain", 0, name="end", every=HOURLY, count=1)
        pause_delay_schedules("s", reason="x")
        assert [attempt.key for attempt in run_due(until="3h")] == ["testing.chain"]


@pytest.mark.usefixtures("_no_library")
def test_where_messages_get_older_an_occurrence_within_the_span_is_refused() -> None:
    schedule_delay_message("testing.note", "a", name="s", every=HOURLY)
    info = get_delay_schedule("s")
    assert info is not None
    with pytest.raises(ImproperlyConfigured, match=rf"{info.message_id}.*install time-machine"):
        run_due(until="1h")
    assert seen == []


@pytest.mark.usefixtures("_no_library")
def test_where_messages_get_older_a_later_occurrence_is_refused_once_it_is_near() -> None:
    schedule_delay_message("testing.note", "a", name="s", every=HOURLY, start=timezone.now() + 2 * DAY)
    assert run_due(until="1d") == []
    with pytest.raises(ImproperlyConfigured, match="install time-machine"):
        run_due(until="1d2h")
