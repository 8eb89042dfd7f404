"""Rescheduling earlier, and to a date and time in the site's zone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from django_delayq.admin.bulk import changes
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import ask, confirm, due_times, pk_of, reschedule_three, send, text_of

ZONE = "Europe/Berlin"


@pytest.fixture(autouse=True)
def berlin(settings: Settings) -> None:
    settings.TIME_ZONE = ZONE


def reschedule(client: Client, database: str, *ids: str, **fields: Any) -> str:
    """Confirm a new due time of these messages."""
    return text_of(confirm(client, ReadyMessage, "reschedule", [pk_of(database, id) for id in ids], **fields))


def test_messages_are_due_earlier_but_not_before_now(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="10m")
    send("b", delay="2h")
    before = due_times(database)
    reschedule(superuser, database, "a", "b", how="earlier", length="1h", at="junk")
    after = due_times(database)
    assert after["b"] == before["b"] - timedelta(hours=1)
    assert before["a"] - timedelta(minutes=11) < after["a"] < before["a"] - timedelta(minutes=9)


def test_messages_are_due_at_a_time_in_the_zone_that_the_form_names(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", delay="3d")
    year = datetime.now(UTC).year + 1
    assert f"In the time zone {ZONE}." in text_of(ask(superuser, ReadyMessage, "reschedule", [pk_of(database, "a")]))
    reschedule(superuser, database, "a", how="at", at=f"{year}-07-01T09:00", length="junk")
    assert due_times(database)["a"] == datetime(year, 7, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("2020-01-01T09:00", "This time is past."),
        ("2400-01-01T09:00", "This time is too far away"),
        ("9999-12-31T23:59", "This time is too far away"),
        ("0001-01-01T00:00", "This time is past."),
        ("", "Enter the date and time"),
        ("soon\x00", "Enter a valid date/time."),
        ("2031-03-30T02:30", "couldn’t be interpreted"),  # skipped in Berlin
        ("2031-10-26T02:30", "couldn’t be interpreted"),  # comes twice
    ],
)
def test_a_time_that_can_not_be_meant_is_refused(
    broker: DatabaseBackend, superuser: Client, database: str, at: str, said: str
) -> None:
    send("a", delay="3d")
    before = due_times(database)
    assert said in reschedule(superuser, database, "a", how="at", at=at)
    assert due_times(database) == before


def test_a_job_makes_all_due_at_a_time(
    broker: DatabaseBackend, registry: None, monkeypatch: pytest.MonkeyPatch, superuser: Client, database: str
) -> None:
    year = datetime.now(UTC).year + 1
    begun = reschedule_three(monkeypatch, superuser, database)(how="at", at=f"{year}-07-01T09:00")
    assert f"Reschedule (= {year}-07-01 07:00:00.000 UTC)" in text_of(begun)
    run_due()
    assert set(due_times(database).values()) == {datetime(year, 7, 1, 7, tzinfo=UTC)}


def test_the_texts_of_a_change_say_the_direction_and_the_time() -> None:
    assert changes.amount_of(changes.Change("shift", shift_ms=-5_400_000)) == "-1h30m"
    assert changes.amount_of(changes.Change("reschedule", at_ms=0)) == "1970-01-01 00:00:00.000 UTC"
    assert changes.label_of(changes.Change("reschedule", at_ms=0)) == "Reschedule (= 1970-01-01 00:00:00.000 UTC)"
