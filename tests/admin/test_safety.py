"""What is in a message is data: no view runs it. Nobody sees or does more than he may, and looking changes nothing."""

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import get_resolver, reverse

from django_delayq.admin.bulk import actions, jobs
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, ask, bury, claim, confirm, content, finish, page, pk_of, send, settle, url

CORPUS = [
    "<x-inject>",
    "</script><x-inject>",
    "</pre></textarea></title><x-inject>",
    "\" onx-inject='1' x=\"",
    "' onx-inject=1 '",
    "--><x-inject><!--",
    "javascript:x-inject()",
    "{{ x-inject }}{% include 'x-inject' %}",
    "&lt;x-inject&gt;",
    "\\u003cx-inject\\u003e",
]


class Finder(HTMLParser):
    """Collects what the corpus would have made of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "x-inject":
            self.found.append(tag)
        for name, value in attrs:
            runs = name == "onx-inject" or (name in ("href", "src", "action") and (value or "").startswith("java"))
            if runs or name == "style" or name.startswith("on"):
                self.found.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script" and data.strip():
            self.found.append(f"inline script: {data}")


def injected(html: str) -> list[str]:
    """Return what of a page runs that should be text. Inline scripts and styles count: a strict policy forbids them."""
    finder = Finder()
    finder.feed(html.split("<body", 1)[1])
    return finder.found


def send_hostile(broker: DatabaseBackend, text: str) -> None:
    """A message in each table, and one that runs, with the text in every field."""
    names: dict[str, Any] = {"tag": text, "trace_id": text, "queue": text.replace(":", " ")}
    for kind in ("waits", "runs", "failed", "finished"):
        key = f"{kind} {text}"
        send(key, {text: text}, key=key, **names)
        if kind != "waits":
            held = claim(broker, key, worker=text, queue=names["queue"])
        if kind == "failed":
            settle(broker, held, SettleAction.RETRY, error=text, detail=text, failed=True)
            held = claim(broker, key, worker=text, queue=names["queue"])
            settle(broker, held, SettleAction.BURY, error=text, detail=text, failed=True, fingerprint=text)
        if kind == "finished":
            settle(broker, held, SettleAction.FINISH)


def test_no_view_takes_what_is_in_a_message_for_its_own(
    broker: DatabaseBackend, superuser: Client, database: str, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in CORPUS:
        send_hostile(broker, text)
    shown = [
        superuser.get(url("readymessage"), {"q": text, "key": text, "queue": text, "alias": text}) for text in CORPUS
    ]
    shown += [superuser.get(url("errormessage"), {"ended_from": text, "fingerprint": text}) for text in CORPUS]
    for model, name in LISTS.items():
        pks = list(model._default_manager.using(database).values_list("pk", flat=True))
        shown.append(superuser.get(url(name)))
        shown += [superuser.get(url(name, pk, "change")) for pk in pks]
        shown += [ask(superuser, model, action, pks) for action in model_actions(model)]
    shown += [superuser.get(url("errormessage", "groups")), superuser.get(reverse("admin:app_list", args=["delayq"]))]
    for pk in ErrorMessage.objects.using(database).values_list("pk", flat=True):
        editor = url("errormessage", pk, "payload")
        shown += [superuser.get(editor), superuser.post(editor, {"payload": f"no JSON {CORPUS[pk % len(CORPUS)]}"})]
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    jobs.register("default")
    for text in CORPUS:
        query = f"?{urlencode({'q': text})}"
        shown.append(confirm(superuser, ErrorMessage, "rescue", [pk], all_that_match=True, query=query))
        assert shown[-1]["Refresh"]  # it is the page of a job
    assert [found for response in shown for found in injected(page(response))] == []


def model_actions(model: type[MessageRow]) -> list[str]:
    """The actions that ask before they do something."""
    return {
        ReadyMessage: ["run_now", "reschedule", "cancel", "purge"],
        ErrorMessage: ["rescue", "purge_failed"],
        FinishMessage: [],
    }[model]


@pytest.fixture
def one_of_each(broker: DatabaseBackend, database: str) -> dict[type[MessageRow], int]:
    """A message in each table: its primary key."""
    send("waits", "secret", delay="1h")
    bury(broker, "failed", data="secret")
    finish(broker, "finished", data="secret")
    return {
        ReadyMessage: pk_of(database, "waits"),
        ErrorMessage: pk_of(database, "failed", ErrorMessage),
        FinishMessage: pk_of(database, "finished", FinishMessage),
    }


def addresses(pks: dict[type[MessageRow], int]) -> Iterator[str]:
    """Every address of the app's admin, as the site itself knows them."""
    yield reverse("admin:app_list", args=["delayq"])
    _, site = get_resolver().namespace_dict["admin"]
    for name in {name for name in site.reverse_dict if str(name).startswith("delayq_")}:
        ((_, parameters),) = [form for forms, *_ in site.reverse_dict.getlist(name) for form in forms][:1]
        pk = next((pk for model, pk in pks.items() if LISTS[model] in name), next(iter(pks.values())))
        yield reverse(f"admin:{name}", args=[pk if parameter == "object_id" else "none" for parameter in parameters])


def attempts_to_act(client: Client, pks: dict[type[MessageRow], int]) -> None:
    """POST to every address, and ask for and confirm every action."""
    for address in addresses(pks):
        client.post(address, {"payload": "1", "post": "yes"})
    for model, pk in pks.items():
        for action in (*model_actions(model), "delete_selected"):
            ask(client, model, action, [pk])
            confirm(client, model, action, [pk], how="shift", length="1h")
            confirm(client, model, action, [pk], all_that_match=True, how="shift", length="1h")


def expected(address: str, *, read_only: bool = False) -> int:
    """Return how a GET is answered."""
    if "/schedule/" in address:  # there is none, so those of one lead to the list
        return {"schedule": 200, "add": 403 if read_only else 200}.get(address.strip("/").rpartition("/")[2], 302)
    acts = {"payload": 200, "pause": 200, "resume": 302, "groups": 200}  # 302: nothing is paused
    answers = {"none": 404, "add": 403, "delete": 403, "storeless": 405} | (
        dict.fromkeys(acts, 403) if read_only else acts
    )
    return answers.get(address.strip("/").rpartition("/")[2], 200)


def test_anonymous_is_sent_to_log_in(one_of_each: dict[type[MessageRow], int], database: str) -> None:
    before = content(database)
    for address in addresses(one_of_each):
        assert Client().get(address)["Location"].startswith("/admin/login/?next=")
    attempts_to_act(Client(), one_of_each)
    assert content(database) == before


def test_staff_without_permission_sees_and_does_nothing(
    one_of_each: dict[type[MessageRow], int], staff: Callable[..., Client], database: str
) -> None:
    client, before = staff(), content(database)
    for address in addresses(one_of_each):
        answers = {"storeless": 405, "delayq": 404}  # Django's own index of an app is not there for them
        assert client.get(address).status_code == answers.get(address.strip("/").rpartition("/")[2], 403), address
    for model, pk in one_of_each.items():
        for action in model_actions(model):
            assert ask(client, model, action, [pk]).status_code == 403
    assert content(database) == before


def test_read_only_staff_sees_and_can_do_nothing(
    one_of_each: dict[type[MessageRow], int], staff: Callable[..., Client], database: str
) -> None:
    client, before = (
        staff(*(f"view_{name}" for name in (*LISTS.values(), "reportrow", "schedule", "actionrow"))),
        content(database),
    )
    for address in addresses(one_of_each):
        response = client.get(address)
        assert response.status_code == expected(address, read_only=True), address
        if response.status_code == 200:
            assert "secret" not in page(response)
    attempts_to_act(client, one_of_each)
    assert content(database) == before
    assert not LogEntry.objects.exists()


def test_no_get_changes_anything(one_of_each: dict[type[MessageRow], int], superuser: Client, database: str) -> None:
    before = content(database)
    for address in addresses(one_of_each):
        assert superuser.get(address).status_code == expected(address), address
    for model, pk in one_of_each.items():
        for action in model_actions(model):
            query: dict[str, Any] = {
                "action": action,
                "index": "0",
                "post": "yes",
                "select_across": "1",
                "_selected_action": pk,
            }
            superuser.get(url(LISTS[model]), query, follow=True)
    assert content(database) == before
    assert not LogEntry.objects.exists()


def test_a_post_without_its_token_is_refused(
    one_of_each: dict[type[MessageRow], int], superuser: Client, database: str
) -> None:
    before = content(database)
    careful = Client(enforce_csrf_checks=True)
    careful.cookies = superuser.cookies
    for model, pk in one_of_each.items():
        for action in model_actions(model):
            assert ask(careful, model, action, [pk]).status_code == 403
    assert content(database) == before
