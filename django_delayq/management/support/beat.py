"""Read the periodic tasks of django-celery-beat, whether it is installed or only its tables are left.

The fields are those of its version 2.9.0. A column that an older version lacks is read as None.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps.registry import Apps
from django.db import connections, models
from django.utils.timezone import is_naive, make_aware

_apps = Apps()
"""The registry of the models below, which are none of the site's: its own django_celery_beat may be installed."""


class _Table(models.Model):
    class Meta:
        abstract = True
        managed = False
        apps = _apps
        app_label = "django_celery_beat"


class IntervalSchedule(_Table):
    """An interval."""

    every = models.IntegerField()
    period = models.CharField(max_length=24)


class CrontabSchedule(_Table):
    """A cron expression, a column for each field."""

    minute = models.CharField(max_length=240)
    hour = models.CharField(max_length=96)
    day_of_month = models.CharField(max_length=124)
    month_of_year = models.CharField(max_length=64)
    day_of_week = models.CharField(max_length=64)
    timezone = models.CharField(max_length=63)


class ClockedSchedule(_Table):
    """A single instant."""

    clocked_time = models.DateTimeField()


class PeriodicTask(_Table):
    """A task, with the primary key of its schedule."""

    name = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    interval_id = models.IntegerField(null=True)
    crontab_id = models.IntegerField(null=True)
    solar_id = models.IntegerField(null=True)
    clocked_id = models.IntegerField(null=True)
    args = models.TextField()
    kwargs = models.TextField()
    queue = models.CharField(max_length=200, null=True)
    priority = models.PositiveIntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.PositiveIntegerField(null=True)
    one_off = models.BooleanField()
    start_time = models.DateTimeField(null=True)
    enabled = models.BooleanField()
    total_run_count = models.PositiveIntegerField()


@dataclass(frozen=True, slots=True)
class BeatTask:
    """A periodic task. Of `interval`, `crontab` and `clocked` one is set, or none if it is `solar` or has no schedule.

    Each is the columns of its row. Datetimes are aware.
    """

    name: str
    task: str
    args: str
    kwargs: str
    queue: str | None
    priority: int | None
    start: datetime | None
    expires: datetime | None
    expire_seconds: int | None
    one_off: bool
    enabled: bool
    has_run: bool
    interval: dict[str, Any] | None
    crontab: dict[str, Any] | None
    clocked: datetime | None
    is_solar: bool


def has_tables(using: str) -> bool:
    """Return whether a database has the tables of django-celery-beat."""
    return PeriodicTask._meta.db_table in connections[using].introspection.table_names()


def read_tasks(using: str) -> Iterator[BeatTask]:
    """Yield the periodic tasks of a database by name."""
    intervals, crontabs, clocked = (
        _by_id(model, using) for model in (IntervalSchedule, CrontabSchedule, ClockedSchedule)
    )
    for row in sorted(_by_id(PeriodicTask, using).values(), key=lambda row: row["name"]):
        at = clocked.get(row["clocked_id"])
        yield BeatTask(
            name=row["name"],
            task=row["task"],
            args=row["args"],
            kwargs=row["kwargs"],
            queue=row["queue"],
            priority=row["priority"],
            start=_aware(row["start_time"]),
            expires=_aware(row["expires"]),
            expire_seconds=row["expire_seconds"],
            one_off=bool(row["one_off"]),
            enabled=bool(row["enabled"]),
            has_run=bool(row["total_run_count"]),
            interval=intervals.get(row["interval_id"]),
            crontab=crontabs.get(row["crontab_id"]),
            clocked=None if at is None else _aware(at["clocked_time"]),
            is_solar=row["solar_id"] is not None,
        )


def _by_id(model: type[models.Model], using: str) -> dict[int | None, dict[str, Any]]:
    """Return the rows of a table by their primary keys."""
    connection, names = connections[using], [field.name for field in model._meta.fields]
    if model._meta.db_table not in connection.introspection.table_names():
        return {}
    with connection.cursor() as cursor:
        columns = {each.name for each in connection.introspection.get_table_description(cursor, model._meta.db_table)}
    rows = model._base_manager.using(using).values(*(name for name in names if name in columns))
    return {row["id"]: dict.fromkeys(names) | row for row in rows}


def _aware(at: datetime | None) -> datetime | None:
    return make_aware(at) if at is not None and is_naive(at) else at
