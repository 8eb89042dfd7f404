"""All that a search in payloads would find are moved, also where the search of the list stopped."""

import re
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_messages
from django_delayq.admin.bulk import jobs
from django_delayq.admin.lists import bounded, search
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import ask, bury, confirm, ids_in, page, pk_of, searched, send, shown_ids, text_of, url


@pytest.mark.parametrize("limit", [(search, "SEARCHED"), (bounded, "FOUND")])
def test_all_that_a_search_in_payloads_would_find_are_moved_though_it_stopped(
    broker: DatabaseBackend,
    registry: None,
    superuser: Client,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    limit: tuple[Any, str],
) -> None:
    for number in range(7):
        bury(broker, f"a{number}", data={"order": number % 2})
    bury(broker, "other", data={"order": 1}, key="sms.send")
    monkeypatch.setattr(*limit, 2)
    monkeypatch.setattr(jobs, "LOOKED", 3)
    jobs.register("default")
    options: dict[str, Any] = {
        "all_that_match": True,
        "query": searched(superuser, ErrorMessage, "data.order=1", key="order.close"),
    }
    one = [pk_of(database, "a5", ErrorMessage)]
    question = text_of(ask(superuser, ErrorMessage, "rescue", one, **options))
    assert "every one of which it looks through" in question
    assert "A worker does this in the background" in question
    job = confirm(superuser, ErrorMessage, "rescue", one, **options)
    (address, _), *_ = job.redirect_chain
    assert "In all, when it began 7" in text_of(job)
    run_due()
    over = text_of(superuser.get(address))
    assert "Moved 3" in over
    assert "Payloads looked through 7" in over
    assert ids_in(database, ErrorMessage) == {"a0", "a2", "a4", "a6", "other"}


def test_who_may_not_look_into_payloads_moves_nothing_by_them(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 1)
    bury(broker, "a", "b", data={"order": 1})
    client = staff("view_errormessage", "rescue_message")
    one = [pk_of(database, "a", ErrorMessage)]
    confirm(
        client, ErrorMessage, "rescue", one, all_that_match=True, query=searched(client, ErrorMessage, "data.order=1")
    )
    assert ids_in(database, ErrorMessage) == {"a", "b"}
    assert ids_in(database, ReadyMessage) == set()


def test_a_search_in_payloads_stops_when_its_time_is_over_and_shows_what_it_has_found(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        send(f"a{number}", "x", delay=f"{number + 1}h")
    seconds = count(100, step=0.35)
    monkeypatch.setattr(search, "monotonic", lambda: next(seconds))
    response = superuser.get(url("readymessage", query=searched(superuser, ReadyMessage, "data=x")))
    assert shown_ids(response) == ["a0", "a1", "a2"]
    assert "the first 3 messages of this list and stopped there" in text_of(response)


def test_a_search_in_payloads_holds_few_of_them_at_a_time(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        send(f"a{number}", "x", delay=f"{number + 1}h")
    monkeypatch.setattr(search, "CHUNK", 2)
    monkeypatch.setattr(search, "SEARCHED", 4)
    rows = ReadyMessage.objects.using(database).order_by("pk")
    with CaptureQueriesContext(connections[database]) as queries:
        assert search.find_on_page(rows, "data=x").looked == 4
    with_payloads = [each["sql"] for each in queries if " IN " in each["sql"] and "LIKE" not in each["sql"]]
    assert len(with_payloads) == 3  # of 2, 2, and the one that tells that there are more
    pks = re.findall(r"\d+", with_payloads[1].split(" IN ")[-1])
    assert set(map(int, pks)) == set(rows.values_list("pk", flat=True)[2:4])


def test_a_search_for_a_rare_value_takes_few_queries(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_delay_messages(Send("k", {"order": number}, id=f"{number}", delay="1h") for number in range(1_000))
    rows = ReadyMessage.objects.using(database).order_by("pk")
    monkeypatch.setattr(search, "QUICK_S", 60.0)
    with CaptureQueriesContext(connections[database]) as queries:
        found = search.find_on_page(rows, "data.order=950")
    assert (len(found.pks), found.looked) == (1, 1_000)
    assert len([each for each in queries if " IN " in each["sql"]]) == 4  # compares 50, 200, 750; reads the one found


def test_a_step_of_a_job_whose_time_is_over_leaves_the_rest_to_the_next(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(broker, "a", "b", "c", "d", data="x")
    bury(broker, "other", data="y")
    monkeypatch.setattr(search, "SEARCHED", 2)
    jobs.register("default")
    options: dict[str, Any] = {"all_that_match": True, "query": searched(superuser, ErrorMessage, "data=x")}
    job = confirm(superuser, ErrorMessage, "rescue", [pk_of(database, "a", ErrorMessage)], **options)
    seconds = count(100, step=2)
    monkeypatch.setattr(search, "monotonic", lambda: next(seconds))
    step = jobs.Selection("default", "errormessage", 0, pk_of(database, "other", ErrorMessage), search="data=x")
    first = step.next_page(None, 0)
    assert first is not None
    assert (first.looked, [row.message_id for row in first.rows]) == (1, ["a"])
    run_due()
    (address, _), *_ = job.redirect_chain
    assert "Moved 4" in text_of(superuser.get(address))
    assert ids_in(database, ErrorMessage) == {"other"}


def test_what_is_searched_for_in_payloads_stands_in_no_address_and_not_in_the_log(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", {"card": "4111"}, delay="1h")
    send("b", {"card": "4222"}, delay="1h")
    query = searched(superuser, ReadyMessage, "data.card=4111", key="order.close")
    response = superuser.get(url("readymessage", query=query))
    assert shown_ids(response) == ["a"]
    links = re.findall(r'(?:href|action)="([^"]*)"', page(response))
    assert not [link for link in links if "4111" in link]
    assert 'value="data.card=4111"' in page(response)  # the box has it, and sends it by POST
    assert re.search(r'<form[^>]*method="post" role="search"', page(response))
    pks = [pk_of(database, "a")]
    list(
        superuser.post(
            url("readymessage", query=query), {"action": "export_csv", "select_across": "1", "_selected_action": pks}
        )
    )
    assert re.fullmatch(r"key=order.close, q=data.card=#\w{16}", LogEntry.objects.get().object_repr)


def test_a_search_in_payloads_that_stands_in_the_address_is_refused(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", {"card": "4111"})
    response = superuser.get(url("readymessage"), {"q": "data.card=4111"})
    assert shown_ids(response) == []
    assert "type a search in payloads into the box" in text_of(response)


def test_a_search_of_another_session_finds_nothing_and_says_so(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client]
) -> None:
    send("a", {"card": "4111"})
    query = searched(superuser, ReadyMessage, "data.card=4111")
    other = staff("view_readymessage", "view_payload").get(url("readymessage", query=query))
    assert shown_ids(other) == []
    assert "this search in payloads is over" in text_of(other)


def test_a_search_for_a_name_stands_in_the_address_that_people_pass_on(
    broker: DatabaseBackend, superuser: Client
) -> None:
    assert searched(superuser, ReadyMessage, " order:* ", key="order.close") == "?key=order.close&q=order%3A%2A"
