"""Send from Spark with code that a site would write by hand. Spark's processes load it before the site is set up."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime

import django
from pyspark.sql import Row


def send_each(rows: Iterable[Row]) -> None:
    """Send the rows one by one."""
    _enter()
    from django_delayq import send_delay_message

    for row in rows:
        send_delay_message(row.key, row.data.asDict(), at=_aware(row), id=row.id, using="carried")


def send_many(rows: Iterable[Row]) -> None:
    """Send the rows in bulk."""
    _enter()
    from django_delayq import Send, send_delay_messages

    sends = (Send(row.key, row.data.asDict(), at=_aware(row), id=row.id) for row in rows)
    send_delay_messages(sends, using="carried")


def _aware(row: Row) -> datetime:
    return row.due_at.astimezone(UTC)  # type: ignore[no-any-return]


def _enter() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.spark_settings"
    django.setup()
