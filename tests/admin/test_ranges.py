"""A list narrowed to a range of time that somebody typed."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.utils import timezone
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.admin.bulk.jobs import selection_of
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, confirm, ids_in, page, pk_of, send, shown_ids, text_of, url

NOON = datetime(2037, 6, 1, 16, tzinfo=UTC)  # in New York, where the settings are


@pytest.fixture
def due_in_june(broker: DatabaseBackend) -> None:
    """Three messages, an hour apart around noon of the first of June 2037 in New York."""
    for id, hour in ("eleven", 15), ("noon", 16), ("one", 17):
        send_delay_message("order.close", id=id, at=NOON.replace(hour=hour))


@pytest.mark.usefixtures("due_in_june")
@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("due_from=2037-06-01T12:00&due_until=2037-06-01T13:00", ["noon"]),
        ("due_from=2037-06-01T12:00:00", ["noon", "one"]),
        ("due_until=2037-06-01+12:00&due_from=", ["eleven"]),
        ("due_from=2037-06-01T16:00Z", ["noon", "one"]),
        ("due_from=2037-06-02", []),
        ("due_from=2037-06-01T12:00&key=sms.send", []),
    ],
)
def test_the_first_moment_is_in_the_range_and_the_last_is_not(superuser: Client, query: str, ids: list[str]) -> None:
    assert shown_ids(superuser.get(url("readymessage", query=f"?{query}"))) == ids


def test_what_ended_is_found_by_its_end(broker: DatabaseBackend, superuser: Client) -> None:
    bury(broker, "failed")
    assert shown_ids(superuser.get(url("errormessage", query="?ended_from=2026-01-01"))) == ["failed"]
    assert shown_ids(superuser.get(url("errormessage", query="?ended_until=2026-01-01"))) == []


@pytest.mark.usefixtures("due_in_june")
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("due_from=tomorrow", "'tomorrow' is no date and time; write it like 2026-11-21 08:00."),
        ("due_from=2037-02-30T08:00", "'2037-02-30T08:00' is no date and time"),
        (
            "due_from=2037-06-01T13:00&due_until=2037-06-01T12:00",
            "The range ends before it begins: 2037-06-01T12:00 is not after 2037-06-01T13:00.",
        ),
    ],
)
def test_what_is_no_range_is_said_and_no_action_takes_all_for_it(
    superuser: Client, database: str, query: str, said: str
) -> None:
    response = superuser.get(url("readymessage", query=f"?{query}"))
    assert said in text_of(response)
    assert shown_ids(response) == []
    one = pk_of(database, "noon")
    after = confirm(superuser, ReadyMessage, "purge", [one], all_that_match=True, query=f"?{query}")
    assert text_of(after).count(said) == 1
    assert ids_in(database, ReadyMessage) == {"eleven", "noon", "one"}


def test_the_form_keeps_what_was_typed_and_the_other_filters(broker: DatabaseBackend, superuser: Client) -> None:
    query = "?key=a%26b&q=order%3A*&p=2&due_from=2037-06-01T12:00"
    html = page(superuser.get(url("readymessage", query=query)))
    (form,) = re.findall(r'<form method="get" class="delayq-range">.*?</form>', html, re.DOTALL)
    assert 'name="due_from" value="2037-06-01T12:00"' in form
    assert re.findall(r'type="hidden" name="(.*?)" value="(.*?)"', form) == [("key", "a&amp;b"), ("q", "order:*")]


@pytest.mark.usefixtures("due_in_june")
def test_a_job_takes_the_range_in_the_zone_of_whoever_began_it(superuser: Client) -> None:
    request = RequestFactory().get("/", {"due_from": "2037-06-01T12:00", "due_until": ""})
    selection = selection_of(request, ReadyMessage)
    with timezone.override("Asia/Shanghai"):
        assert {row.message_id for row in selection.rows(None)} == {"noon", "one"}


def test_a_job_on_one_of_several_aliases_finds_its_rows(
    settings: Settings, stored_delayq: dict[str, Any], broker: DatabaseBackend
) -> None:
    settings.DELAYQ = {"default": stored_delayq, "mail": stored_delayq}
    send("of default")
    send("of mail", using="mail")
    selection = selection_of(RequestFactory().get("/", {"alias": "mail"}), ReadyMessage)
    assert [row.message_id for row in selection.rows(None)] == ["of mail"]
