"""How far the messages of a tag have come, and when they will have ended."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from django_delayq import Send, cancel_delay_messages, send_delay_messages
from django_delayq.conf import get_alias
from django_delayq.models import FinishMessage
from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs.campaign import Campaign, campaign
from tests.spark.ended import START, fail, finish
from tests.spark.support import CARRIED, STORED

FAR = START + timedelta(days=36_500)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_campaign_is_counted_by_what_has_become_of_it(spark: SparkSession) -> None:
    send_delay_messages([Send("note", at=FAR, id=id, tag="t") for id in ("x", "y")], using=STORED)
    cancel_delay_messages("x", using=STORED)
    finish(STORED, [10_001, 10_003], tag="t")
    fail(STORED, [10_005], tag="t")
    finish(STORED, [10_007])
    seen = campaign(spark, STORED, "t")
    assert (seen.total, seen.waiting, seen.overdue, seen.finished, seen.failed, seen.cancelled) == (5, 1, 0, 2, 1, 1)
    assert seen.lines()[0].startswith("4 of 5 have ended (80.0 %), the last is due 2125-")
    assert FinishMessage.objects.using(get_alias(STORED).database).count() == 4
    with pytest.raises(SparkError, match="has no store"):
        campaign(spark, CARRIED, "t")


def test_the_pace_of_a_campaign_is_that_of_what_ran_in_the_last_minutes(spark: SparkSession) -> None:
    now = datetime.now(UTC)
    finish(STORED, [1, 3], tag="t", ended_at=now - timedelta(minutes=1))
    finish(STORED, [5], tag="t", ended_at=now - timedelta(minutes=1), outcome="cancelled")
    finish(STORED, [7], tag="t", ended_at=now - HOUR)
    finish(STORED, [9], ended_at=now)
    fail(STORED, [11], tag="t", ended_at=now - timedelta(minutes=1))
    seen = campaign(spark, STORED, "t")
    assert (seen.finished, seen.cancelled, seen.failed, seen.ended_lately) == (3, 1, 1, 3)
    assert abs(seen.at - now) < HOUR


def come(*, overdue: int, ended_lately: int, last_due_at: datetime | None) -> Campaign:
    return Campaign(NOON, 10, overdue, 5, 0, 0, ended_lately, last_due_at)


@pytest.mark.parametrize(
    ("seen", "ends_at", "told"),
    [
        (come(overdue=0, ended_lately=5, last_due_at=None), None, "none is left"),
        (come(overdue=0, ended_lately=0, last_due_at=NOON + HOUR), NOON + HOUR, "last is due 2026-01-02 13:00:00 UTC"),
        (come(overdue=10, ended_lately=5, last_due_at=NOON - HOUR), NOON + HOUR / 3, "end is 2026-01-02 12:20:00 UTC"),
        (come(overdue=10, ended_lately=5, last_due_at=NOON + HOUR), NOON + HOUR, "end is 2026-01-02 13:00:00 UTC"),
        (come(overdue=10, ended_lately=0, last_due_at=NOON - HOUR), None, "are workers running?"),
    ],
)  # fmt: skip
def test_a_campaign_ends_when_the_last_is_due_and_what_was_left_behind_has_run(
    seen: Campaign, ends_at: datetime | None, told: str
) -> None:
    assert seen.ends_at == ends_at
    assert seen.lines()[0].endswith(told)
