"""Failures by their kind: how many, since when, and all of a kind rescued."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_delayq.admin.formatting import now_utc
from django_delayq.admin.lists import failure_groups
from django_delayq.admin.lists.failure_groups import HEIGHT, bars
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, confirm, ids_in, page, shown_ids, text_of, url

CARD = "ValueError in shop.delayed.pay"
BANK = "TimeoutError in shop.bank.ask"


@pytest.fixture
def failures(broker: DatabaseBackend) -> None:
    """Three of one kind, one of another, one unknown."""
    bury(broker, "a1", "a2", "a3", fingerprint=CARD)
    bury(broker, "b1", fingerprint=BANK)
    bury(broker, "c1")


def test_each_kind_is_shown_once_with_its_count(failures: None, superuser: Client) -> None:
    response = superuser.get(url("errormessage", "groups"))
    for words in (f"{CARD} 3", f"{BANK} 1", "unknown 1"):
        assert words in text_of(response)
    for button in ("Rescue these 3", "Rescue this 1"):
        assert f'value="{button}"' in page(response)


def test_a_group_knows_its_first_and_last_and_its_hours(failures: None, database: str) -> None:
    now = now_utc()
    rows = ErrorMessage.objects.using(database).filter(fingerprint=CARD).order_by("pk")
    first, second, last = rows
    for row, ago in (
        (first, timedelta(days=3)),
        (second, timedelta(hours=4, minutes=30)),
        (last, timedelta(minutes=1)),
    ):
        rows.filter(pk=row.pk).update(ended_at=now - ago)
    (card,) = (group for group in failure_groups.groups("default", now)[0] if group.fingerprint == CARD)
    assert (card.count, card.is_more) == (3, False)
    assert now - card.first - timedelta(days=3) < timedelta(seconds=1)
    assert now - card.last - timedelta(minutes=1) < timedelta(seconds=1)
    assert [hour for hour, count in enumerate(card.by_hour) if count] == [19, 23]


def test_of_too_many_kinds_those_of_the_last_failures_are_shown_and_it_says_so(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_groups, "MOST", 2)
    monkeypatch.setattr(failure_groups, "LATEST", 2)
    bury(broker, "a", fingerprint="a")
    bury(broker, "z", fingerprint="z")
    assert "There are more" not in text_of(superuser.get(url("errormessage", "groups")))
    bury(broker, "b", "b again", fingerprint="b")
    shown = text_of(superuser.get(url("errormessage", "groups")))
    assert "There are more than these 2 kinds" in shown
    assert ("a 1 " in shown, "b 2 " in shown, "z 1 " in shown) == (True, True, False)
    monkeypatch.setattr(failure_groups, "LATEST", 3)
    shown = text_of(superuser.get(url("errormessage", "groups")))
    assert ("a 1 " in shown, "b 2 " in shown, "z 1 " in shown) == (False, True, True)


@pytest.mark.parametrize("use_tz", [True, False])
def test_first_and_last_are_told_in_the_zone_of_the_viewer(
    failures: None, superuser: Client, database: str, settings: Settings, use_tz: bool
) -> None:
    settings.USE_TZ = use_tz
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    ErrorMessage.objects.using(database).update(ended_at=at)
    assert "Jan. 1, 2026, 10:04 p.m." in text_of(superuser.get(url("errormessage", "groups")))


def test_counts_are_capped(failures: None, superuser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "COUNTED", 2)
    response = superuser.get(url("errormessage", "groups"))
    assert f"{CARD} 2+" in text_of(response)
    assert 'value="Rescue all of these"' in page(response)


def test_all_of_a_kind_run_again(failures: None, superuser: Client, database: str) -> None:
    html = page(superuser.get(url("errormessage", "groups")))
    query = "?fingerprint=ValueError+in+shop.delayed.pay"
    assert query in html
    done = confirm(superuser, ErrorMessage, "rescue", [0], all_that_match=True, query=query)
    assert "Rescued: 3 messages." in text_of(done)
    assert ids_in(database, ReadyMessage) == {"a1", "a2", "a3"}


def test_the_list_is_narrowed_to_a_kind(failures: None, superuser: Client) -> None:
    assert shown_ids(superuser.get(url("errormessage"), {"fingerprint": BANK})) == ["b1"]
    unknown = superuser.get(url("errormessage"), {"fingerprint": ""})
    assert shown_ids(unknown) == ["c1"]
    assert "failed at last error kind of failure due" in text_of(unknown).lower()


def test_the_page_costs_the_same_however_many_kinds_there_are(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    for number in range(12):
        bury(broker, f"a{number}", fingerprint=f"Error{number} in shop")
    superuser.get(url("errormessage", "groups"))  # the first page asks whether there is a report
    with CaptureQueriesContext(connections[database]) as queries:
        page(superuser.get(url("errormessage", "groups")))
    assert len(queries) <= 10, [query["sql"] for query in queries]


def test_without_failures_the_page_says_so(broker: DatabaseBackend, superuser: Client) -> None:
    assert "Nothing has failed." in text_of(superuser.get(url("errormessage", "groups")))


def test_a_single_failure_among_many_can_be_seen() -> None:
    drawn = bars([0, 1, 10_000])
    assert [bar.height for bar in drawn] == [2, HEIGHT]
    assert all(bar.y + bar.height == HEIGHT for bar in drawn)
