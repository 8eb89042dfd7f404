"""The status counts schedules, and the explanation of a message names the schedule it is an occurrence of."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from pytest_django import Settings

from django_delayq import (
    Cron,
    Every,
    Window,
    delay_execute,
    get_delay_schedule,
    pause_delay_schedules,
    schedule_delay_message,
    send_delay_message,
    sync_delay_schedules,
    unschedule_delay_messages,
)
from django_delayq.core.occurrences import occurrence_id
from django_delayq.models import Schedule
from django_delayq.monitor import explain, status
from django_delayq.store import DatabaseBackend, statistics
from django_delayq.store.statistics import ScheduleCounts
from tests.commands.support import delayq, delayq_json

DAILY = Cron("0 9 * * *", zone="Europe/Rome")


def put_of(name: str) -> str:
    """Return the id of the occurrence that was put last."""
    info = get_delay_schedule(name)
    assert info is not None
    return info.message_id


def words_of(id: str) -> str:
    explanation = explain(id)
    assert explanation is not None
    return explanation.schedule_words


def test_the_status_counts_schedules_and_what_holds_them_up(broker: DatabaseBackend, database: str) -> None:
    for name in ("a", "b", "c", "d", "e"):
        schedule_delay_message("k", name=name, every=DAILY)
    pause_delay_schedules("a", "b", reason="x")
    rows = Schedule.objects.using(database)
    rows.filter(name="c").update(error="no calendar")
    rows.filter(name__in=["a", "d"]).update(gone_at=datetime.now(UTC))
    assert status().schedules == ScheduleCounts(schedules=5, paused=2, error=1, gone=2)
    assert "schedules: 5, 2 paused, 1 in error, 2 gone from the code\n" in delayq("status")
    assert delayq_json("status")["schedules"] == {"schedules": 5, "paused": 2, "error": 1, "gone": 2}


def test_the_status_says_nothing_of_schedules_where_there_are_none(broker: DatabaseBackend) -> None:
    assert "schedules" not in delayq("status")


def test_schedules_are_counted_in_one_statement_up_to_a_bound(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        schedule_delay_message("k", name=name, every=DAILY)
    monkeypatch.setattr(statistics, "MOST", 2)
    with CaptureQueriesContext(connections[database]) as captured:
        seen = status()
    assert len([query for query in captured if "delayq_schedule" in query["sql"]]) == 1
    assert seen.schedules is not None
    assert seen.schedules.schedules == 2
    assert "schedules" in seen.in_part
    assert "schedules: 2+\n" in delayq("status")


def test_without_a_store_there_is_no_figure_of_schedules(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    assert status().schedules is None
    assert delayq_json("status")["schedules"] is None


def test_an_occurrence_names_its_schedule_and_what_follows(broker: DatabaseBackend) -> None:
    schedule_delay_message("k", name="report", every=DAILY)
    first, second = get_times("report", 2)
    words = words_of(put_of("report"))
    assert words == (
        "It is an occurrence of the schedule 'report': At 09:00 every day in Europe/Rome. "
        f"The next occurrence is {second:%a %Y-%m-%d} 09:00 Europe/Rome."
    )
    assert f"schedule: {words}\n" in delayq("explain", put_of("report"))
    seen = delayq_json("explain", put_of("report"))["schedule"]
    assert (seen["name"], seen["next"]) == ("report", [first.isoformat().replace("+00:00", "Z")])


def test_what_follows_says_when_it_is_due_in_the_window(broker: DatabaseBackend) -> None:
    evening = Window("mon-sun", "20:00", "22:00", zone="Europe/Rome")
    schedule_delay_message("k", name="s", every=DAILY, window=evening)
    _, second = get_times("s", 2)
    assert words_of(put_of("s")).endswith(
        f"The next occurrence is {second:%a %Y-%m-%d} 09:00 Europe/Rome. "
        f"Its message is due at {second:%a %Y-%m-%d} 20:00 Europe/Rome."
    )


def get_times(name: str, count: int) -> list[datetime]:
    """Return the occurrences of a schedule that begin with the one that was put."""
    info = get_delay_schedule(name)
    assert info is not None
    assert info.last_at is not None
    return [info.last_at, *info.next(count - 1)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gone_at": datetime(2031, 1, 1, tzinfo=UTC)}, "The schedule is not in the code any more"),
        ({"error": "no calendar"}, "The next occurrence could not be found: no calendar"),
        ({"rule": "{}"}, "its rule can't be read"),
        ({"look_at": None}, "The schedule is over: there is no occurrence any more."),
    ],
)
def test_an_occurrence_says_what_holds_its_schedule_up(
    broker: DatabaseBackend, database: str, change: dict[str, Any], told: str
) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    Schedule.objects.using(database).update(**change)
    assert told in words_of(put_of("s"))


def test_the_cancelled_message_of_a_paused_schedule_says_that_it_is_paused(broker: DatabaseBackend) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    pause_delay_schedules("s", reason="stocktaking")
    assert "The schedule is paused: stocktaking. Nothing follows until it is resumed." in words_of(put_of("s"))


def test_other_messages_are_of_no_schedule(broker: DatabaseBackend) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    unscheduled = "t@2031-01-01T00:00:00Z"
    send_delay_message("k", id="s")
    send_delay_message("k", id=unscheduled)
    assert (words_of("s"), words_of(unscheduled)) == ("", "")
    assert delayq_json("explain", "s")["schedule"] is None
    assert "schedule:" not in delayq("explain", unscheduled)


def test_an_occurrence_that_was_never_put_says_why(broker: DatabaseBackend) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    first, _, third = get_times("s", 3)
    with pytest.raises(CommandError) as raised:
        delayq("explain", occurrence_id("s", third, DAILY.zone))
    assert f"It was never put. The next occurrence is {first:%a %Y-%m-%d} 09:00" in str(raised.value)
    pause_delay_schedules("s", reason="stocktaking")
    with pytest.raises(CommandError, match=r"It was never put. The schedule is paused: stocktaking."):
        delayq("explain", occurrence_id("s", third, DAILY.zone))
    with pytest.raises(CommandError, match="or it was left out: by a pause, by overlap or by catch_up"):
        delayq("explain", occurrence_id("s", first - timedelta(days=30), DAILY.zone))
    unschedule_delay_messages("s")
    with pytest.raises(CommandError, match="it was pruned or purged, or never sent"):
        delayq("explain", occurrence_id("s", third, DAILY.zone))


@pytest.mark.usefixtures("registry")
def test_a_schedule_that_ends_says_that_it_is_over(broker: DatabaseBackend) -> None:
    delay_execute(key="s", every=Every(hours=1), until=datetime.now(UTC))(lambda message: None)
    sync_delay_schedules()
    with pytest.raises(CommandError, match=r"It was never put. The schedule is over"):
        delayq("explain", "s@2031-01-01T00:00:00Z")


def test_the_words_are_in_the_language_of_the_page(broker: DatabaseBackend) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    with translation.override("zh-hans"):
        assert words_of(put_of("s")).startswith("它是计划 's' 的一次发生")
