"""`delayq import-beat` writes the periodic tasks of django-celery-beat as schedules, and refuses what has no match."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from django_delayq import (
    Cron,
    Every,
    RRule,
    delay_execute,
    get_delay_message,
    get_delay_schedule,
    list_delay_schedules,
    pause_delay_schedules,
    resume_delay_schedules,
    sync_delay_schedules,
)
from django_delayq.core.recurrence import Rule
from django_delayq.management.support.crontab import crontab_rule
from django_delayq.models import ReadyMessage, Schedule
from tests.commands import beat_tables
from tests.commands.beat_tables import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from tests.commands.support import delayq

pytestmark = [pytest.mark.alters_tables, pytest.mark.usefixtures("registry")]

LATER = datetime(2099, 1, 1, 12, tzinfo=UTC)


def _set_up(settings: Settings, database: str) -> str:
    """Create the tables beside a store, and handlers of two keys."""
    broker = "django_delayq.brokers.database.DatabaseBroker"
    settings.DELAYQ = {"default": {"BROKER": broker, "DATABASE": database, "STORE": {}}}
    beat_tables.create(database)
    delay_execute(key="order.close", former_keys=["shop.tasks.close"])(lambda message: None)
    delay_execute(key="report")(lambda message: None)
    return database


@pytest.fixture
def beat(settings: Settings, database: str) -> str:
    """Each database, with the tables."""
    return _set_up(settings, database)


@pytest.fixture
def sqlite_beat(settings: Settings, sqlite_database: str) -> str:
    """SQLite alone, with the tables."""
    return _set_up(settings, sqlite_database)


def hourly(database: str, name: str = "t", task: str = "report", **columns: Any) -> Any:
    """A periodic task that runs each hour."""
    interval = beat_tables.add(database, IntervalSchedule, every=1, period="hours")
    return beat_tables.add(database, PeriodicTask, name=name, task=task, interval=interval, **columns)


def imported(database: str, *arguments: str) -> list[str]:
    """Return the lines that the command writes."""
    return delayq("import-beat", "--database", database, *arguments).splitlines()


def refusal(database: str) -> list[str]:
    """Return the lines of a command that refuses everything."""
    out = io.StringIO()
    with pytest.raises(CommandError) as raised:
        call_command("delayq", "import-beat", "--database", database, stdout=out)
    assert raised.value.returncode == 1
    assert list(list_delay_schedules()) == []
    return out.getvalue().splitlines()


def test_each_kind_of_task_becomes_what_it_is(beat: str) -> None:
    crontab = beat_tables.add(
        beat, CrontabSchedule, minute="0", hour="9", day_of_week="mon-fri", timezone="Europe/Rome"
    )
    beat_tables.add(beat, PeriodicTask, name="cron", task="shop.tasks.close", crontab=crontab, args="[7]")
    start, expires = datetime(2098, 1, 1, tzinfo=UTC), datetime(2098, 6, 1, tzinfo=UTC)
    hourly(
        beat,
        "interval",
        kwargs='{"a": 1}',
        start_time=start,
        expires=expires,
        queue="mail",
        priority=7,
    )
    hourly(beat, "off", enabled=False, one_off=True, expire_seconds=90)
    clocked = beat_tables.add(beat, ClockedSchedule, clocked_time=LATER)
    beat_tables.add(beat, PeriodicTask, name="clock", task="report", clocked=clocked, one_off=True, args='["x"]')

    assert imported(beat)[-1] == "wrote 4, left 0, refused 0"
    cron, interval, off = list_delay_schedules()
    assert (cron.name, cron.key, cron.rule, cron.data) == (
        "cron",
        "shop.tasks.close",
        Cron("0 9 * * 1-5", zone="Europe/Rome"),
        7,
    )
    assert (cron.overlap, cron.catch_up, cron.paused_at) == ("allow", "last", None)
    assert (interval.rule, interval.data, interval.start, interval.until, interval.queue) == (
        Every(hours=1),
        {"a": 1},
        start,
        expires,
        "mail",
    )
    row = ReadyMessage.objects.using(beat).get(message_id=interval.message_id)
    assert (row.queue, row.due_at) == ("mail^7", start)
    assert (off.reason, off.count, off.last_at, off.is_over) == ("disabled in django-celery-beat", 1, None, False)
    message = get_delay_message("clock")
    assert message is not None
    assert (message.due_at, message.key, message.data) == (LATER, "report", "x")

    before = list(Schedule.objects.using(beat).values()), list(ReadyMessage.objects.using(beat).values())
    assert imported(beat)[-1] == "wrote 0, left 4, refused 0"
    assert (list(Schedule.objects.using(beat).values()), list(ReadyMessage.objects.using(beat).values())) == before
    assert resume_delay_schedules("off") == 1
    row = ReadyMessage.objects.using(beat).get(key="report", message_id__startswith="off@")
    assert row.expires_at == row.due_at + timedelta(seconds=90)
    assert imported(beat)[-1] == "wrote 0, left 4, refused 0"  # what was resumed here is not paused again


def test_a_dry_run_says_what_it_would_write_and_writes_nothing(sqlite_beat: str) -> None:
    crontab = beat_tables.add(sqlite_beat, CrontabSchedule, minute="30", hour="2", timezone="Europe/Rome")
    beat_tables.add(sqlite_beat, PeriodicTask, name="night", task="report", crontab=crontab)
    hourly(sqlite_beat, "off", enabled=False)
    lines = imported(sqlite_beat, "--dry-run")
    assert lines[0] == "would write night: key 'report', At 02:30 every day in Europe/Rome"
    assert [line.endswith(" 02:30 Europe/Rome") for line in lines[1:4]] == [True] * 3
    assert lines[4:] == [
        "would write off: key 'report', every hour, paused: disabled in django-celery-beat",
        "would write 2, left 0, refused 0",
    ]
    assert list(list_delay_schedules()) == []


def test_a_changed_task_changes_its_schedule_and_not_its_pause(sqlite_beat: str) -> None:
    task = hourly(sqlite_beat)
    imported(sqlite_beat)
    pause_delay_schedules("t", reason="stocktaking")
    task.kwargs = '{"b": 2}'
    task.save(using=sqlite_beat)
    assert imported(sqlite_beat)[0] == "wrote t: key 'report', every hour, paused: stocktaking"
    info = get_delay_schedule("t")
    assert info is not None
    assert (info.data, info.reason) == ({"b": 2}, "stocktaking")


def test_a_task_takes_the_key_that_the_command_line_gives(sqlite_beat: str) -> None:
    hourly(sqlite_beat, "a", task="other.tasks.report")
    hourly(sqlite_beat, "b", task="other.tasks.close")
    maps = ("--map", "other.tasks.report=report", "--map", "other.tasks.close=order.close")
    assert imported(sqlite_beat, *maps)[-1] == "wrote 2, left 0, refused 0"
    assert [info.key for info in list_delay_schedules()] == ["report", "order.close"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"task": "x.y"}, "task 'x.y' has no handler under this key; give --map x.y=KEY."),
        ({"args": "[1, 2]"}, "a message has one value"),
        ({"args": "[1]", "kwargs": '{"a": 1}'}, "a message has one value"),
        ({"kwargs": "[]"}, "are no list and object"),
        ({"args": "{"}, "refused t: args='{' is no JSON: "),
        ({"priority": 255}, "priority=255"),
        ({"expire_seconds": 0}, "expires="),
        ({"name": "n" * 200}, "has 200 characters"),
        (
            {
                "start_time": datetime(2090, 1, 1, 0, 30, tzinfo=UTC),
                "expires": datetime(2090, 1, 1, 0, 45, tzinfo=UTC),
            },
            "is before the first occurrence of every='every hour', which is at 2090-01-01 01:00:00",
        ),
    ],
)
def test_what_has_no_match_is_refused_with_its_reason(sqlite_beat: str, columns: dict[str, Any], told: str) -> None:
    hourly(sqlite_beat, **{"name": "t"} | columns)
    said = refusal(sqlite_beat)
    assert told in said[0]
    assert said[1:] == ["wrote 0, left 0, refused 1"]


def test_microseconds_the_sun_and_no_schedule_are_refused(sqlite_beat: str) -> None:
    interval = beat_tables.add(sqlite_beat, IntervalSchedule, every=5, period="microseconds")
    solar = beat_tables.add(sqlite_beat, SolarSchedule, event="sunset", latitude=1, longitude=1)
    crontab = beat_tables.add(sqlite_beat, CrontabSchedule, hour="25")
    for name, schedule in (
        ("a", {"interval": interval}),
        ("b", {"solar": solar}),
        ("c", {}),
        ("d", {"crontab": crontab}),
    ):
        beat_tables.add(sqlite_beat, PeriodicTask, name=name, task="report", **schedule)
    assert refusal(sqlite_beat) == [
        "refused a: its interval is 5 microseconds; give seconds or longer.",
        "refused b: it has a solar schedule, and no rule follows the sun; give it a crontab.",
        "refused c: it has no schedule.",
        "refused d: hour='25' is no field of a crontab; write numbers from 0 to 23, as in '1,5', '1-5' or '*/5'.",
        "wrote 0, left 0, refused 4",
    ]


def test_what_is_over_or_celerys_own_is_left(sqlite_beat: str) -> None:
    past = timezone.now() - timedelta(days=1)
    clocked = beat_tables.add(sqlite_beat, ClockedSchedule, clocked_time=past)
    later = beat_tables.add(sqlite_beat, ClockedSchedule, clocked_time=LATER)
    beat_tables.add(sqlite_beat, PeriodicTask, name="a", task="report", clocked=clocked, one_off=True)
    beat_tables.add(sqlite_beat, PeriodicTask, name="b", task="report", clocked=later, one_off=True, enabled=False)
    hourly(sqlite_beat, "c", expires=past)
    hourly(sqlite_beat, "d", one_off=True, total_run_count=1)
    hourly(sqlite_beat, "celery.backend_cleanup", task="celery.backend_cleanup")
    lines = imported(sqlite_beat)
    assert [line.split(":")[0] for line in lines[:-1]] == [
        "left a",
        "left b",
        "left c",
        "left celery.backend_cleanup",
        "left d",
    ]
    assert lines[-1] == "wrote 0, left 5, refused 0"
    assert ReadyMessage.objects.using(sqlite_beat).count() == 0


def test_a_schedule_of_the_code_is_not_taken_over(sqlite_beat: str) -> None:
    delay_execute(key="daily", every=Every(hours=24))(lambda message: None)
    sync_delay_schedules()
    hourly(sqlite_beat, "daily")
    with pytest.raises(CommandError, match="1 of 1 refused"):
        delayq("import-beat", "--database", sqlite_beat)
    info = get_delay_schedule("daily")
    assert info is not None
    assert info.rule == Every(hours=24)


def test_a_column_that_an_older_version_lacks_is_no_matter(sqlite_beat: str) -> None:
    hourly(sqlite_beat)
    with connections[sqlite_beat].cursor() as cursor:
        cursor.execute("ALTER TABLE django_celery_beat_periodictask RENAME COLUMN expire_seconds TO unknown")
        cursor.execute("ALTER TABLE django_celery_beat_clockedschedule RENAME TO unknown")
    assert imported(sqlite_beat)[-1] == "wrote 1, left 0, refused 0"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--database", "nowhere"], 2, "--database='nowhere' is not in DATABASES; give one of default"),
        (["--map", "x"], 1, "--map='x' has no '='; write it like shop.tasks.close=order.close"),
        (["--map", "x.y=report"], 1, "no periodic task runs 'x.y'; they run report"),
        (["--map", "report=ordre.close"], 1, "did you mean 'order.close'"),
    ],
)
def test_a_wrong_command_line_is_named_with_its_fix(
    sqlite_beat: str, arguments: list[str], code: int, told: str
) -> None:
    hourly(sqlite_beat)
    with pytest.raises(CommandError) as raised:
        delayq("import-beat", *([] if "nowhere" in arguments else ["--database", sqlite_beat]), *arguments)
    assert told.lower() in str(raised.value).lower()
    assert raised.value.returncode == code
    assert list(list_delay_schedules()) == []


def test_without_the_tables_or_a_store_it_says_so(settings: Settings, sqlite_database: str) -> None:
    broker = "django_delayq.brokers.database.DatabaseBroker"
    settings.DELAYQ = {"default": {"BROKER": broker, "DATABASE": sqlite_database, "STORE": {}}}
    with pytest.raises(CommandError, match="has no tables of django-celery-beat; name the one that has"):
        delayq("import-beat", "--database", sqlite_database)
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="Schedules need a store"):
        delayq("import-beat", "--database", sqlite_database)


def crontab(**columns: str) -> Rule:
    fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return crontab_rule(dict.fromkeys(fields, "*") | {"timezone": "UTC"} | columns)


@pytest.mark.parametrize(
    ("columns", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": "*/15", "hour": "8-18/2"}, "*/15 8-18/2 * * *"),
        ({"minute": "0, 30", "hour": "0"}, "0,30 0 * * *"),
        ({"day_of_week": "monday,Thu"}, "* * * * 1,4"),
        ({"day_of_week": "0-6"}, "* * * * *"),
        ({"day_of_week": "fri-mon"}, "* * * * 5,6,0,1"),
        ({"day_of_week": "7"}, "* * * * 0"),
        ({"hour": "6-6/4"}, "* 6 * * *"),
        ({"hour": "22-3/2"}, "* 22,0,2 * * *"),
        ({"month_of_year": "jan-mar", "day_of_month": "1-31", "day_of_week": "sun"}, "* * * 1-3 0"),
        ({"day_of_month": "*/2", "day_of_week": "mon"}, "* * */2 * 1"),
    ],
)
def test_the_fields_of_a_crontab_are_those_of_a_cron_expression(columns: dict[str, str], expression: str) -> None:
    assert crontab(**columns) == Cron(expression, zone="UTC")


def test_a_day_of_the_month_and_a_weekday_must_both_be_as_celery_has_it() -> None:
    rule = crontab(minute="0", hour="9", day_of_month="1-7", day_of_week="mon", timezone="Europe/Rome")
    assert isinstance(rule, RRule)
    first = rule.after(datetime(2026, 11, 30, tzinfo=UTC))
    assert first == datetime(2026, 12, 7, 8, tzinfo=UTC)
    assert rule.after(first) == datetime(2027, 1, 4, 8, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "a", "60", "-1", "1-", "5/15", "*/0", "1,,2", "*-3", "mon"])
def test_a_wrong_field_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no field of a crontab; write numbers from 0 to 59"):
        crontab(minute=text)
