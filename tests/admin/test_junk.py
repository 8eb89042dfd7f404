"""Whatever an address or a form holds that no browser would send, a view answers; it does not fail."""

from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import get_resolver

from django_delayq.admin.bulk.changes import KEY
from django_delayq.admin.lists.bounded import BoundedAdmin
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, ask, bury, content, finish, send, url

JUNK = ["a%00", "9" * 5_000, "9" * 19, "%C2%B2", "%FF%FE"]
JOB = (
    '{"name": "x", "user_id": "1", "total": 1, "change": {"move": "%s"},'
    ' "selection": {"alias": "default", "model": "readymessage", "now_ms": 0, "until": 1}}'
)


@pytest.fixture
def client(broker: DatabaseBackend, superuser: Client) -> Client:
    """Of a superuser, on a site with a message in each table."""
    superuser.raise_request_exception = False
    send("waits", delay="1h")
    bury(broker, "failed")
    finish(broker, "finished")
    return superuser


def patterns() -> Iterator[tuple[str, int]]:
    """Each address of the app's admin, with a place for each of its parts, and how many those are."""
    _, site = get_resolver().namespace_dict["admin"]
    for name in {name for name in site.reverse_dict if str(name).startswith("delayq_")}:
        for forms, *_ in site.reverse_dict.getlist(name):
            for form, parameters in forms:
                yield form % dict.fromkeys(parameters, "{junk}"), len(parameters)


def failed(client: Client, addresses: Iterator[str]) -> list[str]:
    """The addresses that a GET finds a fault behind."""
    return [address[:200] for address in addresses if client.get(address).status_code >= 500]


def test_no_part_of_an_address_is_a_fault(client: Client) -> None:
    of_pages = [form for form, parts in patterns() if parts]
    assert len(of_pages) >= 13
    junk = [*JUNK, "_00", "-1", "default:", "default:1:2", "default:%00"]
    assert failed(client, (f"/admin/{form.format(junk=each)}" for form in of_pages for each in junk)) == []


def test_no_parameter_of_a_list_is_a_fault(client: Client) -> None:
    lists = [each for each in admin.site._registry.values() if isinstance(each, BoundedAdmin)]
    # A filter is the same wherever it is, so each is asked in one list, and all lists are asked.
    taken_by = {name: each for each in lists for name in (*each.filter_parameters, "q", "p", "o", "all", "unknown")}
    assert len(taken_by) >= 18
    asked = (
        url(str(each.opts.model_name), query=f"?{name}={junk}") for name, each in taken_by.items() for junk in JUNK
    )
    assert failed(client, asked) == []


def test_no_parameter_of_another_page_is_a_fault(client: Client) -> None:
    figures, pause, resume = [url("readymessage", "dashboard", *part) for part in ((), ("pause",), ("resume",))]
    taken_by = [("/admin/delayq/", "alias"), (url("errormessage", "groups"), "alias"), (figures, "alias")]
    taken_by += [(address, name) for address in (pause, resume) for name in ("queue", "key")]
    assert failed(client, (f"{address}?{name}={junk}" for address, name in taken_by for junk in JUNK)) == []


@pytest.mark.parametrize("junk", ["x", "", "\0", "9" * 25, "1.5", "²"])
def test_rows_that_can_not_be_are_refused(client: Client, database: str, junk: str) -> None:
    before = content(database)
    for model in (ReadyMessage, ErrorMessage):
        for action in ("rescue", "cancel", "export_csv"):
            posted = {"action": action, "index": "0", "_selected_action": junk}
            assert client.post(url(LISTS[model]), posted).status_code in (302, 400)
    assert content(database) == before


def test_nothing_is_moved_by_a_search_that_can_not_be(client: Client, database: str) -> None:
    before = content(database)
    for query in ("?q=%00", "?key=%00"):
        moved = ask(client, ErrorMessage, "rescue", [1], all_that_match=True, query=query, post="yes")
        assert moved.status_code in (302, 400)
    assert content(database) == before


@pytest.mark.parametrize("data", ['"no job"', JOB % "x"])
def test_a_message_of_a_job_that_carries_none_is_no_job(client: Client, database: str, data: str) -> None:
    ReadyMessage.objects.using(database).update(key=KEY, tag=f"{KEY}:x", data=data)
    assert client.get(url("readymessage", "job", "x")).status_code == 404


def test_a_message_of_a_site_that_carries_a_job_is_no_job(client: Client, database: str) -> None:
    ReadyMessage.objects.using(database).update(tag=f"{KEY}:x", data=JOB % "purge")
    assert client.get(url("readymessage", "job", "x")).status_code == 404
    ReadyMessage.objects.using(database).update(key=KEY)
    assert client.get(url("readymessage", "job", "x")).status_code == 200
