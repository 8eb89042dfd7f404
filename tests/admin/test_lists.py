"""The lists show what there is, narrow it, and cost the same however much there is."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_delayq import Message, cancel_delay_messages, delay_execute
from django_delayq.admin.lists import bounded, filters, search
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import (
    LISTS,
    asked,
    bury,
    claim,
    confirm,
    finish,
    ids_in,
    page,
    pk_of,
    searched,
    send,
    settle,
    shown_ids,
    text_of,
    url,
)

ALL_LISTS = sorted(LISTS.values())


def test_what_waits_is_listed_nearest_first(broker: DatabaseBackend, superuser: Client) -> None:
    for id, delay in ("later", "2h"), ("soon", "1h"), ("much later", "3d"):
        send(id, delay=delay)
    assert shown_ids(superuser.get(url("readymessage"))) == ["soon", "later", "much later"]


def test_a_row_says_what_waits_for_what(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", key="order.close", max_attempts=4, tag="order:42")
    settle(broker, claim(broker), SettleAction.RETRY, delay_ms=60_000, error="TimeoutError: the bank")
    shown = text_of(superuser.get(url("readymessage")))
    for words in ("order.close", "pending", "tried again in", "2 of 4", "TimeoutError: the bank", "order:42"):
        assert words in shown


@pytest.mark.parametrize("name", ALL_LISTS)
def test_the_share_of_each_message_is_shown_where_a_handler_has_shares(
    broker: DatabaseBackend, superuser: Client, registry: None, name: str
) -> None:
    @delay_execute("order.close")
    def close(message: Message[Any]) -> None: ...

    data = {"shop": "<1>\N{RIGHT-TO-LEFT OVERRIDE}"}
    finish(broker, "finished")
    bury(broker, "buried")
    send("waits")
    assert "column-share" not in superuser.get(url(name)).content.decode()

    @delay_execute("news", share_key="shop:{shop}")
    def handle(message: Message[dict[str, str]]) -> None: ...

    finish(broker, "news finished", data=data, key="news")
    bury(broker, "news buried", data=data, key="news")
    send("news waits", data, key="news")
    shown = superuser.get(url(name)).content.decode()
    assert "column-share" in shown
    assert "shop:&#x27;&lt;1&gt;\\u202e&#x27;" in shown


def test_what_is_due_waits_for_a_worker_which_there_may_not_be(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a")
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 90_000)
    assert "waits for a worker, late by 1m30" in text_of(superuser.get(url("readymessage")))


def test_what_runs_is_listed_with_its_worker(broker: DatabaseBackend, superuser: Client) -> None:
    send("a")
    claim(broker, worker="host:7")
    assert "running on host:7" in text_of(superuser.get(url("readymessage")))


def test_what_was_abandoned_is_not_shown_as_ready_before_it_is_reclaimed(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    for id in ("once", "again"):
        send(id, at_most_once=id == "once")
        claim(broker, worker="host:7")
    ReadyMessage.objects.using(database).update(lease_until=F("due_at"))
    assert shown_ids(superuser.get(url("readymessage", query="?state=ready"))) == []
    response = superuser.get(url("readymessage", query="?state=running"))
    assert shown_ids(response) == ["once", "again"]
    shown = text_of(response)
    assert "abandoned by host:7" in shown
    assert "1 of 1" in shown
    assert "fails soon: its lease ran out, and it must not start twice" in shown
    assert "ready again soon: its lease ran out" in shown
    shown = text_of(superuser.get(url("readymessage", pk_of(database, "once"), "change")))
    for words in ("State abandoned by host:7", "at the next maintenance it fails", "host:7 its lease ran out"):
        assert words in shown


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("state=pending", ["later", "next week"]),
        ("state=ready", ["retried", "now"]),
        ("state=running", ["runs"]),
        ("due=overdue", ["retried", "runs", "now"]),
        ("due=1h", ["later"]),
        ("due=7d", ["later", "next week"]),
        ("failures=any", ["retried"]),
        ("failures=1", ["retried"]),
        ("failures=3", []),
        ("failures=0&state=ready", ["now"]),
        ("key=sms.send", ["next week"]),
        ("key=order.close", ["retried", "now", "later"]),
        ("key=nobody", []),
        ("queue=slow", ["later"]),
    ],
)
def test_filters_narrow_what_waits(broker: DatabaseBackend, superuser: Client, query: str, ids: list[str]) -> None:
    send("retried")
    settle(broker, claim(broker), SettleAction.RETRY)
    send("runs", key="long")
    claim(broker, "long")
    send("now")
    send("later", delay="30m", queue="slow")
    send("next week", delay="6d", key="sms.send")
    assert set(shown_ids(superuser.get(url("readymessage", query=f"?{query}")))) == set(ids)


@pytest.mark.parametrize(
    ("query", "ids"), [("outcome=cancelled", ["b"]), ("outcome=finished", ["a"]), ("ended=1h", ["b", "a"])]
)
def test_filters_narrow_what_ended(broker: DatabaseBackend, superuser: Client, query: str, ids: list[str]) -> None:
    finish(broker, "a")
    send("b")
    cancel_delay_messages("b")
    assert set(shown_ids(superuser.get(url("finishmessage", query=f"?{query}")))) == set(ids)


def test_failed_messages_are_listed_newest_first_with_their_error(broker: DatabaseBackend, superuser: Client) -> None:
    bury(broker, "old", error="KeyError: 'a'")
    bury(broker, "new", error="ValueError: b")
    response = superuser.get(url("errormessage"))
    assert shown_ids(response) == ["new", "old"]
    assert "KeyError: 'a'" in text_of(response)


@pytest.mark.parametrize("found", [1, 1_000], ids=["many", "few"])
@pytest.mark.parametrize("text", ["customer:3", "customer:*"])
def test_search_finds_every_tag_of_a_message(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch, text: str, found: int
) -> None:
    monkeypatch.setattr("django_delayq.admin.lists.bounded.FOUND", found)
    for id in ("a", "b"):
        send(id, tag=("order:42", "customer:3", id))
    send("c", tag=("order:42", "shop"))
    page = superuser.get(url("readymessage"), {"q": text})
    assert {row.message_id for row in page.context["cl"].queryset} == {"a", "b"}
    assert page.context["cl"].paginator.is_many == (found == 1)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("order:1", ["order:1"]),
        ("order:*", ["order:1", "order:2", "order:3"]),
        ("customer:9", ["order:2"]),
        ("customer:*", ["order:2", "other"]),
        ("order", []),
        ("data.order=42", ["order:1"]),
        ('data.lines.0.name=Ünit "1"', ["order:2"]),
        ("data=plain", ["other"]),
        ("data.order=4", []),
        ("data.paid=true", ["order:2"]),
        ('data={"paid":false,  "order":42}', ["order:1"]),
        ('data.lines=[{"name":"Ünit \\"1\\""}]', ["order:2"]),
        ("data=[plain", []),
        ('data."order.id"=7', ["order:3"]),
        ('data."a=\\"b\\"".0.c=8', ["order:3"]),
        ("data.order.id=7", []),
        ('data."order.id=7', []),
        ('data."\\x"=7', []),
    ],
)
def test_search_finds_ids_tags_and_values_in_payloads(
    broker: DatabaseBackend, superuser: Client, text: str, ids: list[str]
) -> None:
    send("order:1", {"order": 42, "paid": False})
    send("order:2", {"order": 43, "paid": True, "lines": [{"name": 'Ünit "1"'}]}, tag="customer:9")
    send("order:3", {"order.id": 7, 'a="b"': [{"c": 8}]})
    send("other", "plain", tag="customer:8")
    assert set(shown_ids(superuser.get(url("readymessage", query=searched(superuser, ReadyMessage, text))))) == set(ids)


@pytest.mark.parametrize(("limit", "shows"), [((search, "SEARCHED"), ["a0", "a1"]), ((bounded, "FOUND"), ["a0", "a1"])])
def test_a_search_in_payloads_says_that_it_stopped_at_a_limit(
    broker: DatabaseBackend,
    superuser: Client,
    monkeypatch: pytest.MonkeyPatch,
    limit: tuple[Any, str],
    shows: list[str],
) -> None:
    for number in range(3):
        send(f"a{number}", "x", delay=f"{number + 1}h")
    stopped = "looked into the payloads of the first 2 messages of this list and stopped there"
    assert stopped not in text_of(superuser.get(url("readymessage", query=searched(superuser, ReadyMessage, "data=x"))))
    monkeypatch.setattr(*limit, 2)
    response = superuser.get(url("readymessage", query=searched(superuser, ReadyMessage, "data=x")))
    assert shown_ids(response) == shows
    assert stopped in text_of(response)
    assert "Select all that match, also where the search did not get to" in text_of(response)
    narrowed = superuser.get(
        url("readymessage", query=searched(superuser, ReadyMessage, "data=x", key="order.close", due="24h"))
    )
    assert stopped in text_of(narrowed)
    other = searched(superuser, ReadyMessage, "data=x", key="other")
    assert stopped not in text_of(superuser.get(url("readymessage", query=other)))


@pytest.mark.parametrize("most", [1, 2, 200])
def test_a_key_is_found_in_every_queue_however_many_there_are(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(filters, "MOST_NAMES", most)
    send("a", queue="one")
    send("b", queue="two")
    send("other", key="sms.send")
    assert set(shown_ids(superuser.get(url("readymessage"), {"key": "order.close"}))) == {"a", "b"}


@pytest.mark.parametrize("name", ALL_LISTS)
def test_a_page_costs_at_most_ten_queries_however_many_rows_there_are(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str, name: str
) -> None:
    for number in range(60):
        send(f"waits {number}", key=f"key {number % 7}")
    bury(broker, *(f"failed {number}" for number in range(60)))
    finish(broker, *(f"finished {number}" for number in range(60)))
    client = staff(f"view_{name}")
    with CaptureQueriesContext(connections[database]) as queries:
        assert len(shown_ids(client.get(url(name)))) == 50
    assert len(queries) <= 10, [query["sql"] for query in queries]


def test_a_search_costs_one_query_more_than_the_list(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    send("order:1")
    client = staff("view_readymessage")
    with CaptureQueriesContext(connections[database]) as queries:
        assert shown_ids(client.get(url("readymessage"), {"q": "order:*"})) == ["order:1"]
    assert len(asked(queries)) <= 11, asked(queries)


@pytest.mark.parametrize("name", ALL_LISTS)
def test_a_list_never_counts_a_whole_table(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(bounded, "COUNTED", 1)
    for number in range(3):
        send(f"waits {number}")
    bury(broker, "f1", "f2", "f3", key="other")
    finish(broker, "d1", "d2", "d3", key="third")
    with CaptureQueriesContext(connections[database]) as queries:
        shown = text_of(superuser.get(url(name)))
    assert "There are more: the pages show the first 1" in shown
    counts = [query["sql"] for query in queries if "COUNT(*)" in query["sql"]]
    assert counts
    assert all("LIMIT 2" in sql for sql in counts)


def test_a_search_that_finds_very_many_counts_few_and_finds_all(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "FOUND", 2)
    bury(broker, "order:1", "other")
    bury(broker, "a", "b", "c", tag="order:2")
    query = "?q=order:*"
    with CaptureQueriesContext(connections[database]) as queries:
        response = superuser.get(url("errormessage", query=query))
    assert shown_ids(response) == ["c", "b"]
    shown = text_of(response)
    assert "There are more: the pages show the first 2" in shown
    assert "All that match are meant, also those that were not counted." in shown
    assert not any("COUNT(*)" in each["sql"] for each in queries)
    confirm(superuser, ErrorMessage, "rescue", [pk_of(database, "b", ErrorMessage)], all_that_match=True, query=query)
    assert ids_in(database, ErrorMessage) == {"other"}


SLOW = {
    "mysql": "SELECT SLEEP(30)",
    "postgresql": "SELECT pg_sleep(30)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) SELECT max(i) FROM n",
}


def test_a_list_that_takes_too_long_says_so_and_leaves_the_connection_as_it_was(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    def slowly(paginator: Any) -> int:
        if not paginator.object_list.query.is_empty():
            with connections[database].cursor() as cursor:
                cursor.execute(SLOW[connections[database].vendor])
        return 0

    monkeypatch.setattr(bounded, "LIMIT_S", 0.05)
    monkeypatch.setattr(bounded.CappedPaginator, "counted", property(slowly))
    assert "Nothing is shown: finding the rows took over" in text_of(superuser.get(url("readymessage")))
    send("a")
    monkeypatch.undo()
    assert shown_ids(superuser.get(url("readymessage"))) == ["a"]


@pytest.mark.parametrize("query", ["data__contains=secret", "alias__in=a", "error__startswith=x"])
def test_an_address_can_only_ask_what_the_filters_ask(broker: DatabaseBackend, superuser: Client, query: str) -> None:
    assert superuser.get(url("readymessage", query=f"?{query}")).status_code == 400


@pytest.mark.parametrize("query", ["state=no", "due=no", "failures=no"])
def test_a_wrong_value_in_an_address_goes_back_to_the_whole_list(
    broker: DatabaseBackend, superuser: Client, query: str
) -> None:
    response = superuser.get(url("readymessage", query=f"?{query}"), follow=True)
    assert response.redirect_chain == [(url("readymessage", query="?e=1"), 302)]


def test_keys_that_wait_are_offered_without_a_handler(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", key="of another service")
    assert "?key=of+another+service" in page(superuser.get(url("readymessage")))


def test_an_alias_without_a_store_has_no_rows_and_is_not_another_one(
    broker: DatabaseBackend, superuser: Client, stored_delayq: dict[str, Any], settings: Settings
) -> None:
    send("a")
    settings.DELAYQ = {"default": stored_delayq, "plain": {**stored_delayq, "STORE": None}}
    response = superuser.get(url("readymessage"), {"alias": "plain"})
    assert shown_ids(response) == []
    assert "There is no store, so no message is kept here" in text_of(response)
    assert shown_ids(superuser.get(url("readymessage"), {"alias": "unknown"})) == ["a"]


def test_each_alias_is_shown_from_its_own_database(
    settings: Settings, stored_delayq: dict[str, Any], broker: DatabaseBackend, superuser: Client
) -> None:
    settings.DELAYQ = {"default": stored_delayq, "mail": stored_delayq}
    send("of default")
    send("of mail", using="mail")
    assert shown_ids(superuser.get(url("readymessage"))) == ["of default"]
    response = superuser.get(url("readymessage"), {"alias": "mail"})
    assert shown_ids(response) == ["of mail"]
    pk = ReadyMessage.objects.using(stored_delayq["DATABASE"]).get(alias="mail").pk
    assert re.search(rf'/{pk}/change/\?([^"]*;)?alias=mail"', page(response))


def test_without_use_tz_the_lists_are_the_same(settings: Settings, broker: DatabaseBackend, superuser: Client) -> None:
    settings.USE_TZ = False
    send("a", delay="1h")
    bury(broker, "b")
    assert shown_ids(superuser.get(url("readymessage"))) == ["a"]
    assert shown_ids(superuser.get(url("errormessage"))) == ["b"]
