"""The list of bulk actions tells who did what and whether it was undone, and leads to the undo."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import cancel_delay_messages, reschedule_delay_messages
from django_delayq.models import ActionRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import confirm, due_times, ids_in, page, pk_of, send, text_of, url
from tests.admin.tenants import FOREIGN, OWN

ACTIONS = url("actionrow")
_LINK = re.compile(r'<a href="(/admin/delayq/readymessage/undo/\d+/)">Undo</a>')


@pytest.fixture
def database(sqlite_database: str) -> str:
    """The list is the same on each database."""
    return sqlite_database


@pytest.fixture
def two_actions(broker: DatabaseBackend) -> None:
    """Cancel two messages, and reschedule another, in the names of two people."""
    for id in "abc":
        send(id, delay="1h")
    cancel_delay_messages("a", "b", action="ticket 7", by="anna")
    reschedule_delay_messages("c", delay="2h", action="later", by="bert")


def cells(response: Any) -> list[list[str]]:
    """Return the cells of each row of the list but the time of the action, from its top, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", page(response), re.DOTALL)
    found = [re.findall(r'<td class="field-(?!when)\w+">(.*?)</td>', row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in row] for row in found if row]


def test_it_tells_who_did_what_newest_first_and_leads_to_the_undo(
    two_actions: None, superuser: Client, database: str
) -> None:
    shown = superuser.get(ACTIONS)
    assert "<h1>Bulk actions</h1>" in page(shown)
    assert cells(shown) == [
        ["bert", "Reschedule", "later", "1", "-", "Undo"],
        ["anna", "Cancel", "ticket 7", "2", "-", "Undo"],
    ]
    _newer, address = _LINK.findall(page(shown))
    superuser.post(address)
    assert ids_in(database, ReadyMessage) == {"a", "b", "c"}
    _newer_row, (*_same, left, undone, link) = cells(superuser.get(ACTIONS))
    assert (left, link) == ("0", "-")
    assert undone.endswith(", root")


def test_what_was_made_due_now_is_told_so_and_undone(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1h")
    before = due_times(database)
    confirm(superuser, ReadyMessage, "run_now", [pk_of(database, "a")])
    shown = superuser.get(ACTIONS)
    assert [row[:2] for row in cells(shown)] == [["root", "Run now"]]
    (address,) = _LINK.findall(page(shown))
    assert "Undo: Run now" in text_of(superuser.get(address))
    assert "Undone: 1 message." in text_of(superuser.post(address, follow=True))
    assert due_times(database) == before
    assert LogEntry.objects.latest("pk").get_change_message().startswith("Run now undone: due_at ")


def test_what_changed_nothing_is_not_to_be_undone(broker: DatabaseBackend, superuser: Client) -> None:
    cancel_delay_messages("nobody", action="x")
    assert cells(superuser.get(ACTIONS)) == [["-", "Cancel", "x", "0", "-", "-"]]


def test_the_undo_is_offered_to_those_who_may(two_actions: None, staff: Callable[..., Client]) -> None:
    for without in (["cancel_message", "reschedule_message"], ["view_readymessage"]):
        assert not _LINK.findall(page(staff("view_actionrow", *without).get(ACTIONS)))
    may_cancel = staff("view_actionrow", "view_readymessage", "cancel_message")
    assert [row[-1] for row in cells(may_cancel.get(ACTIONS))] == ["-", "Undo"]


def test_a_search_finds_the_actions_of_a_person_and_those_of_a_name(two_actions: None, superuser: Client) -> None:
    for text, names in {"ann": ["ticket 7"], "late": ["later"], "nobody": []}.items():
        assert [row[2] for row in cells(superuser.get(ACTIONS, {"q": text}))] == names


def test_who_sees_a_part_of_the_messages_sees_their_own_actions(
    tenants: DatabaseBackend, staff: Callable[..., Client]
) -> None:
    cancel_delay_messages(f"{OWN}-waits", action="own", by=OWN)
    cancel_delay_messages(f"{FOREIGN}-waits", action="foreign", by=FOREIGN)
    client = staff("view_actionrow")
    User.objects.update(username=OWN)
    assert [row[2] for row in cells(client.get(ACTIONS))] == ["own"]


def test_names_are_shown_so_that_nothing_is_hidden(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    cancel_delay_messages("a", action="x")
    ActionRow.objects.using(database).update(name="<b>\u202ey", by="<i>")
    shown = page(superuser.get(ACTIONS))
    assert "&lt;b&gt;\\u202ey" in shown
    assert "&lt;i&gt;" in shown


@pytest.mark.parametrize("part", ["add", "1/change", "1/delete", "1/history"])
def test_there_is_only_the_list(two_actions: None, superuser: Client, part: str) -> None:
    assert superuser.get(f"{ACTIONS}{part}/").status_code == 404


@pytest.mark.urls("tests.admin.few_lists")
def test_a_site_without_the_list_of_the_messages_offers_no_undo(two_actions: None, superuser: Client) -> None:
    assert [row[-1] for row in cells(superuser.get("/few/delayq/actionrow/"))] == ["-", "-"]
