"""The admin shows the queue and the priority of a message, and not the lane in which it waits."""

import json
import re
from typing import Any

import pytest
from django.test import Client

from django_delayq import Message, delay_execute
from django_delayq.admin.bulk import actions, jobs
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import (
    claim,
    confirm,
    page,
    pk_of,
    send,
    settle,
    shown_ids,
    text_of,
    url,
)
from tests.admin.test_edit import seen_on
from tests.admin.test_export import download


@pytest.fixture
def database(sqlite_database: str) -> str:
    """One database: lanes are the same on each."""
    return sqlite_database


@pytest.fixture
def some(broker: DatabaseBackend) -> None:
    """Messages that wait in two queues with several priorities."""
    for priority in (-3, 0, 10):
        send(f"a {priority}", queue="emails", priority=priority, delay="1h")
    send("b 10", queue="texts", priority=10, delay="1h")


def choices(client: Client, title: str) -> list[str]:
    """The choices of a filter beside the list of what waits."""
    shown = page(client.get(url("readymessage")))
    return re.findall(rf"[?&;]{title}=([^&\"]*)", shown)


def test_the_page_of_a_message_tells_its_queue_and_its_priority(some: None, superuser: Client, database: str) -> None:
    for id, words in (("a 10", "Queue emails Priority 10"), ("a 0", "Queue emails Priority 0")):
        shown = text_of(superuser.get(url("readymessage", pk_of(database, id), "change")))
        assert words in shown
        assert "^" not in shown


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("queue=emails", {"a -3", "a 0", "a 10"}),
        ("queue=emails&priority=10", {"a 10"}),
        ("queue=emails&priority=0", {"a 0"}),
        ("priority=10", {"a 10", "b 10"}),
        ("priority=7", set()),
        ("queue=emails^10", {"a 10"}),
        ("queue=emails&key=order.close", {"a -3", "a 0", "a 10"}),
    ],
)
def test_a_queue_is_listed_with_all_its_priorities(some: None, superuser: Client, query: str, ids: set[str]) -> None:
    assert set(shown_ids(superuser.get(url("readymessage", query=f"?{query}")))) == ids


def test_the_filters_offer_queues_and_priorities(some: None, superuser: Client) -> None:
    queues = choices(superuser, "queue")
    assert {"emails", "texts"} <= set(queues)
    assert not [queue for queue in queues if "^" in queue]
    assert choices(superuser, "priority") == ["10", "0", "-3"]


def test_without_priorities_there_is_no_filter_for_them(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", queue="emails")
    assert choices(superuser, "priority") == []


def test_lists_and_dashboard_tell_the_priority_beside_the_queue(some: None, superuser: Client) -> None:
    for shown in (text_of(superuser.get(url("readymessage"))), text_of(superuser.get("/admin/delayq/"))):
        assert "emails, priority 10" in shown
        assert "^" not in shown
    (address,) = re.findall(r'href="([^"]*priority=-3[^"]*)">order.close', page(superuser.get("/admin/delayq/")))
    assert shown_ids(superuser.get(address.replace("&amp;", "&"))) == ["a -3"]


def test_an_action_on_all_of_a_queue_takes_each_priority(
    some: None, registry: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    jobs.register("default")
    pks = [pk_of(database, "a 0")]
    confirm(superuser, ReadyMessage, "cancel", pks, all_that_match=True, query="?queue=emails")
    run_due()  # in the background
    assert {row.message_id for row in ReadyMessage.objects.using(database)} == {"b 10"}


def test_an_export_has_both(some: None, superuser: Client, database: str) -> None:
    (line,) = download(superuser, "export_jsonl", ReadyMessage, [pk_of(database, "a 10")]).splitlines()
    assert (json.loads(line)["queue"], json.loads(line)["priority"]) == ("emails", 10)


def test_an_edited_payload_runs_again_with_its_priority(
    broker: DatabaseBackend, superuser: Client, database: str, registry: None
) -> None:
    @delay_execute(key="order.close")
    def close_order(message: Message[Any]) -> None:
        raise AssertionError

    send("a", priority=5, queue="emails")
    settle(broker, claim(broker, queue="emails^5"), SettleAction.BURY, error="ValueError: no", failed=True)
    address = url("errormessage", pk_of(database, "a", ErrorMessage), "payload")
    superuser.post(address, {"payload": "7", "seen": seen_on(superuser.get(address))})
    (row,) = ReadyMessage.objects.using(database)
    assert (row.message_id, row.data, row.queue) == ("a", "7", "emails^5")
