"""Each permission alone: one to view opens its list, its messages and the dashboard, and so does one to change, as
Django has it; one to act opens nothing."""

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client

from django_delayq.admin.lists.admins import ReadyMessageAdmin
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, bury, confirm, content, finish, ids_in, pk_of, report, send, text_of, url

INDEX = "/admin/delayq/"
FIGURES, PAUSE, STORELESS = (url("readymessage", "dashboard", *part) for part in ((), ("pause",), ("storeless",)))
REPORT, SCHEDULES, ACTIONS = url("reportrow"), url("schedule"), url("actionrow")
IDS: dict[type[MessageRow], str] = {ReadyMessage: "waits", FinishMessage: "finished", ErrorMessage: "failed"}
TO_SEE = [
    f"{may}_{name}" for name in (*LISTS.values(), "reportrow", "schedule", "actionrow") for may in ("view", "change")
]


@pytest.fixture
def database(sqlite_database: str) -> str:
    """Permissions don't depend on the database."""
    return sqlite_database


@pytest.fixture
def pages(broker: DatabaseBackend, database: str) -> dict[str, list[str]]:
    """The addresses that each view permission opens."""
    send("waits", delay="1h")
    finish(broker, "finished")
    bury(broker, "failed")
    report(database)
    opened = {
        f"view_{name}": [url(name), url(name, pk_of(database, IDS[model], model), "change")]
        for model, name in LISTS.items()
    }
    return opened | {"view_reportrow": [REPORT], "view_schedule": [SCHEDULES], "view_actionrow": [ACTIONS]}


def test_a_permission_to_see_opens_its_own_pages_and_the_dashboard(
    pages: dict[str, list[str]], staff: Callable[..., Client]
) -> None:
    for permission in TO_SEE:
        client = staff(permission)
        opened = {INDEX, FIGURES, *pages[permission.replace("change", "view")]}
        for address in {INDEX, FIGURES, PAUSE, *(each for of_one in pages.values() for each in of_one)}:
            assert client.get(address).status_code == (200 if address in opened else 403), (permission, address)


def test_a_permission_to_act_alone_opens_nothing_and_changes_nothing(
    pages: dict[str, list[str]], staff: Callable[..., Client], database: str
) -> None:
    ours = Permission.objects.filter(content_type__app_label="delayq").exclude(codename__in=TO_SEE)
    before = content(database)
    for permission in sorted({each.codename for each in ours}):
        client = staff(permission)
        assert client.get(INDEX).status_code == 404, permission  # as Django has it for an app of which one sees nothing
        for address in (FIGURES, PAUSE, *(of_one[0] for of_one in pages.values())):
            assert client.get(address).status_code == 403, (permission, address)
        asked = {"move": "rescue", "id": ["waits", "failed"], "sure": "yes"}
        assert client.post(STORELESS, asked).status_code == 403, permission
        assert client.post(PAUSE, {"queue": "mail", "reason": "x"}).status_code == 403, permission
    assert content(database) == before
    assert not LogEntry.objects.exists()


def test_who_may_see_any_list_and_pause_comes_back_to_the_dashboard(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    report(database)
    for permission in TO_SEE:
        paused = staff(permission, "pause_queue").post(PAUSE, {"queue": "mail", "reason": "x"}, follow=True)
        assert (paused.redirect_chain, paused.status_code) == ([(INDEX, 302)], 200)
        assert "Paused queue 'mail'" in text_of(paused)


def test_an_action_refuses_by_itself_where_a_site_offers_it_to_all(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadyMessageAdmin, "moves", ())  # as one would do who wants no buttons
    send("waits", delay="1h")
    refused = confirm(staff("view_readymessage"), ReadyMessage, "purge", [pk_of(database, "waits")])
    assert refused.status_code == 403
    assert ids_in(database, ReadyMessage) == {"waits"}
