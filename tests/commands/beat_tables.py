"""The tables of django-celery-beat 2.9.0, as its migration 0019 leaves them.

The package itself is no requirement: it brings Celery, and allows no Django 6.1.
"""

from typing import Any

from django.apps.registry import Apps
from django.db import connections, models

_apps = Apps()


class Table(models.Model):
    id = models.AutoField(primary_key=True)

    class Meta:
        abstract = True
        apps = _apps
        app_label = "django_celery_beat"


class IntervalSchedule(Table):
    every = models.IntegerField()
    period = models.CharField(max_length=24)


class CrontabSchedule(Table):
    minute = models.CharField(max_length=240, default="*")
    hour = models.CharField(max_length=96, default="*")
    day_of_week = models.CharField(max_length=64, default="*")
    day_of_month = models.CharField(max_length=124, default="*")
    month_of_year = models.CharField(max_length=64, default="*")
    timezone = models.CharField(max_length=63, default="UTC")


class SolarSchedule(Table):
    event = models.CharField(max_length=24)
    latitude = models.DecimalField(max_digits=9, decimal_places=6)
    longitude = models.DecimalField(max_digits=9, decimal_places=6)


class ClockedSchedule(Table):
    clocked_time = models.DateTimeField()


class PeriodicTask(Table):
    name = models.CharField(max_length=200, unique=True)
    task = models.CharField(max_length=200)
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    queue = models.CharField(max_length=200, null=True)
    exchange = models.CharField(max_length=200, null=True)
    routing_key = models.CharField(max_length=200, null=True)
    expires = models.DateTimeField(null=True)
    enabled = models.BooleanField(default=True)
    last_run_at = models.DateTimeField(null=True)
    total_run_count = models.PositiveIntegerField(default=0)
    date_changed = models.DateTimeField(auto_now=True)
    description = models.TextField(default="")
    crontab = models.ForeignKey(CrontabSchedule, models.CASCADE, null=True)
    interval = models.ForeignKey(IntervalSchedule, models.CASCADE, null=True)
    solar = models.ForeignKey(SolarSchedule, models.CASCADE, null=True)
    one_off = models.BooleanField(default=False)
    start_time = models.DateTimeField(null=True)
    priority = models.PositiveIntegerField(null=True)
    headers = models.TextField(default="{}")
    clocked = models.ForeignKey(ClockedSchedule, models.CASCADE, null=True)
    expire_seconds = models.PositiveIntegerField(null=True)


TABLES: list[type[models.Model]] = [IntervalSchedule, CrontabSchedule, SolarSchedule, ClockedSchedule, PeriodicTask]


def create(database: str) -> None:
    """Create the tables."""
    with connections[database].schema_editor() as editor:
        for table in TABLES:
            editor.create_model(table)


def add(database: str, model: type[models.Model], **columns: Any) -> Any:
    """Write a row, and return it."""
    row = model(**columns)
    row.save(using=database)
    return row
