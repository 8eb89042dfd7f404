"""What a reviewer got through the admin's cracks: a tag, an address, a payload, a poll, a name."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.models import Session
from django.db import connections
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from django_delayq.admin.formatting import visible
from django_delayq.admin.lists import kept_searches, search
from django_delayq.admin.lists.search import asks_for_data
from django_delayq.admin.message.payload import payload_of
from django_delayq.api import send as api_send
from django_delayq.brokers.base import Pause
from django_delayq.core import lanes
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.support.validation import check_name
from tests.admin.support import ask, bury, confirm, finish, page, pk_of, searched, send, shown_ids, text_of, url

INDEX = "/admin/delayq/"
FIGURES = url("readymessage", "dashboard")
DEEP = "[" * 990 + "]" * 990


@pytest.fixture
def database(sqlite_database: str) -> str:
    """None of it depends on the database."""
    return sqlite_database


@pytest.mark.parametrize("may", [(), ("pause_queue",), ("view_finishmessage",)])
def test_the_dashboard_in_a_template_is_for_those_who_may_see_it(
    broker: DatabaseBackend, staff: Callable[..., Client], may: tuple[str, ...]
) -> None:
    staff(*may)
    request = RequestFactory().get("/")
    for user in (AnonymousUser(), User.objects.get()):
        request.user = user
        shown = Template("{% load delayq_dashboard %}{% delayq_dashboard %}").render(Context({"request": request}))
        is_shown = bool(may) and may[0].startswith("view") and not user.is_anonymous
        assert bool(shown.strip()) == is_shown


def test_an_address_does_not_choose_the_order(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1h")
    pks = [pk_of(database, "a")]
    with CaptureQueriesContext(connections[database]) as queries:
        superuser.get(url("readymessage", query="?o=-1.2"))
        ask(superuser, ReadyMessage, "cancel", pks, query="?o=-1.2")
    ordered = [query["sql"].partition("ORDER BY")[2] for query in queries if 'FROM "delayq_ready"' in query["sql"]]
    assert any(ordered)
    assert not [sql for sql in ordered if "message_id" in sql or '"key"' in sql]


@pytest.mark.parametrize("path", ["²", "٣", "9" * 5_000, "0"])
def test_no_index_of_a_search_is_a_fault(broker: DatabaseBackend, superuser: Client, path: str) -> None:
    bury(broker, "a", data=["a"])
    found = superuser.get(url("errormessage", query=searched(superuser, ErrorMessage, f"data.{path}=a")))
    assert shown_ids(found) == (["a"] if path == "0" else [])


def test_a_session_keeps_few_and_short_searches_and_none_of_who_may_not_search(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client]
) -> None:
    bury(broker, "a", data="x")
    for number in range(kept_searches.MOST + 1):
        searched(superuser, ErrorMessage, f"data={number}")
    for text in ("data=", ""):
        long = superuser.post(url("errormessage"), {"q": text + "x" * kept_searches.LONGEST + "x"}, follow=True)
        assert "it is longer than 6000 characters" in text_of(long)
    assert list(superuser.session["delayq_searches"].values()) == [f"data={one}" for one in range(1, 21)]
    other = staff("view_errormessage")
    found = other.get(url("errormessage", query=searched(other, ErrorMessage, "data=x")))
    assert shown_ids(found) == []
    assert "you may not look into payloads" in text_of(found)
    assert "delayq_searches" not in other.session


def test_json_that_is_nested_deep_cuts_neither_an_export_nor_a_page(
    broker: DatabaseBackend, superuser: Client, database: str, stored_delayq: dict[str, Any]
) -> None:
    for id in ("a", "b", "c"):
        bury(broker, id)
    ErrorMessage.objects.using(database).filter(message_id="b").update(data=DEEP)
    pks = list(ErrorMessage.objects.using(database).values_list("pk", flat=True))
    for action in ("export_csv", "export_jsonl"):
        file = b"".join(ask(superuser, ErrorMessage, action, pks).streaming_content).decode()
        assert DEEP in file
        assert len(file.splitlines()) == (4 if action == "export_csv" else 3)
    deep = pk_of(database, "b", ErrorMessage)
    shown = text_of(superuser.get(url("errormessage", deep, "change")))
    assert DEEP in "".join(shown.split())  # some versions of Python can indent it
    for text in ("data=x", f"data={DEEP}", "data.0=1"):
        found = superuser.get(url("errormessage", query=searched(superuser, ErrorMessage, text)))
        assert found.status_code == 200
    editor = url("errormessage", deep, "payload")
    assert superuser.get(editor).status_code == 200
    mark = superuser.get(editor).context["seen"]
    assert "Nothing was changed." in text_of(superuser.post(editor, {"payload": f"[{DEEP}]", "seen": mark}))


def test_no_depth_of_json_is_a_fault(stored_delayq: dict[str, Any]) -> None:
    """How deep a reader and a writer go differs, and depends on where they are called."""
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True)
    for depth in range(850, 1_000):
        data = "[" * depth + "]" * depth
        assert payload_of(ErrorMessage(alias="default", key="k", data=data), request, None).text == data
        assert asks_for_data(f"data={data}")
        assert not search._has(data, [], "x")
        assert search._as_compared(data)


def test_the_poll_of_the_dashboard_keeps_no_session_alive(
    broker: DatabaseBackend, superuser: Client, settings: Settings
) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = True
    superuser.get(INDEX)
    before = Session.objects.get().expire_date
    polled = superuser.get(FIGURES)
    assert polled.status_code == 200
    assert not polled.cookies
    assert Session.objects.get().expire_date == before
    assert superuser.get(INDEX).cookies
    assert Session.objects.get().expire_date > before
    Session.objects.update(expire_date=timezone.now())
    assert superuser.get(FIGURES).status_code == 302


def test_names_that_would_turn_the_page_round_are_shown_escaped(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (api_send, lanes):
        monkeypatch.setattr(module, "check_new_name", check_name)  # an older version took such names
    evil = "\u202egnp.x\u2066"
    names: dict[str, Any] = {"tag": evil, "trace_id": evil, "queue": evil}
    send(f"waits{evil}", key=evil, delay="1h", **names)
    bury(broker, f"failed{evil}", error=evil, detail=f"a\n{evil}", fingerprint=evil, tag=evil)
    finish(broker, f"finished{evil}")
    broker.presence.pause(Pause("mail", None, evil))
    waits, failed = pk_of(database, f"waits{evil}"), pk_of(database, f"failed{evil}", ErrorMessage)
    finished = pk_of(database, f"finished{evil}", FinishMessage)
    for response in (
        superuser.get(url("readymessage")),
        superuser.get(url("readymessage", waits, "change")),
        superuser.get(url("errormessage")),
        superuser.get(url("errormessage", failed, "change")),
        superuser.get(url("errormessage", failed, "payload")),
        superuser.get(url("errormessage", "groups")),
        superuser.get(url("finishmessage")),
        superuser.get(url("finishmessage", finished, "change")),
        superuser.get(INDEX),
        superuser.get(url("readymessage", "dashboard", "resume", query="?queue=mail")),
        ask(superuser, ReadyMessage, "cancel", [waits]),
        superuser.get(url("readymessage", f"none{evil}", "change"), follow=True),
        confirm(superuser, ReadyMessage, "cancel", [waits]) and superuser.get("/admin/"),  # its "Recent actions"
    ):
        assert visible(evil) in page(response)
        assert not set("\u202e\u2066") & set(page(response))
