"""Every kind of account at every address, action and job of the admin: who is let in, and what they are told of others.

A new address has to be put into `NEEDS`, or the first test fails.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client
from django.urls import get_resolver, reverse

from django_delayq.admin.bulk import actions, jobs
from django_delayq.core.codec import decode_data
from django_delayq.core.message import Message
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, ask, report, searched, shown_ids
from tests.admin.tenants import FOREIGN, ON_SQLITE, OWN, SECRET

VIEWS = tuple(f"view_{name}" for name in (*LISTS.values(), "reportrow", "schedule", "actionrow"))
ACTS = (
    *("rescue_message", "cancel_message", "reschedule_message", "delete_readymessage", "delete_errormessage"),
    *("view_payload", "view_error", "edit_payload", "pause_queue", "send_again"),
    *("add_schedule", "delete_schedule", "pause_schedule", "run_schedule"),  # to change is to view, as Django has it
)
LOGIN, REFUSED, MISSING = "login", 403, 404


@dataclass(frozen=True)
class Account:
    """Who asks: what the user may do, and how the user may be stopped before that."""

    name: str
    may: frozenset[str] = frozenset()
    is_staff: bool = True
    is_active: bool = True
    sees_all: bool = True

    @property
    def enters(self) -> bool:
        """Return whether the admin lets the account in at all."""
        return self.is_staff and self.is_active

    def client(self) -> Client:
        """A client that has logged in, as far as the account can."""
        client = Client()
        client.raise_request_exception = False
        if self.name != "anonymous":
            user = User.objects.create(username=self.name, is_staff=self.is_staff, is_active=self.is_active)
            user.user_permissions.set(Permission.objects.filter(codename__in=self.may))
            client.force_login(user)
        return client


EVERYTHING = frozenset(VIEWS + ACTS)
ACCOUNTS = [
    Account("anonymous", is_staff=False),
    Account("no staff", EVERYTHING, is_staff=False),
    Account("not active", EVERYTHING, is_active=False),
    Account("no rights"),
    Account("views", frozenset(VIEWS)),
    Account("all but payloads", EVERYTHING - {"view_payload"}),
    Account(OWN, EVERYTHING, sees_all=False),
    Account("all", EVERYTHING),
]
SINGLE = [Account(f"only {each}", frozenset({each})) for each in (*VIEWS, *ACTS)]

NOBODY = frozenset({"nobody"})
ANY_VIEW: frozenset[str] = frozenset()
NEEDS: dict[str, frozenset[str]] = {
    **{f"{name}_{page}": frozenset({f"view_{name}"}) for name in LISTS.values() for page in ("change", "history")},
    **{
        f"{name}_{page}": frozenset({f"view_{name}"})
        for name in LISTS.values()
        for page in ("changelist", "job", "undo")
    },
    **{f"{name}_{page}": NOBODY for name in LISTS.values() for page in ("add", "delete")},
    "reportrow_changelist": frozenset({"view_reportrow"}),
    "actionrow_changelist": frozenset({"view_actionrow"}),
    "anymessage_changelist": frozenset({"sees a list"}),
    **{f"schedule_{page}": frozenset({"view_schedule"}) for page in ("changelist", "change", "history", "delete")},
    "schedule_add": frozenset({"view_schedule", "add_schedule", "sees all"}),
    "schedule_edit": frozenset({"view_schedule"}),  # 302: there is none, see test_schedules
    "schedule_backfill": frozenset({"view_schedule"}),
    "errormessage_groups": frozenset({"view_errormessage", "view_error"}),
    "readymessage_payload": frozenset({"view_readymessage", "edit_payload", "view_payload"}),
    "errormessage_payload": frozenset({"view_errormessage", "edit_payload", "view_payload", "rescue_message"}),
    "dashboard": ANY_VIEW,
    "dashboard_pause": frozenset({"pause_queue", "sees all"}),
    "dashboard_resume": frozenset({"pause_queue", "sees all"}),
    "dashboard_storeless": frozenset({"POST"}),
}
"""The permissions that each address needs, besides one to view anything."""

MOVES: dict[tuple[type[MessageRow], str], str] = {
    (ReadyMessage, "run_now"): "reschedule_message",
    (ReadyMessage, "reschedule"): "reschedule_message",
    (ReadyMessage, "cancel"): "cancel_message",
    (ReadyMessage, "purge"): "delete_readymessage",
    (ErrorMessage, "rescue"): "rescue_message",
    (ErrorMessage, "purge_failed"): "delete_errormessage",
    (FinishMessage, "send_again"): "send_again",
}


@pytest.fixture(autouse=True)
def move_job(registry: None) -> None:
    """The handler of the admin's jobs."""
    jobs.register("default")


def ours() -> set[str]:
    """The names of the addresses, without `delayq_`."""
    _, site = get_resolver().namespace_dict["admin"]
    return {name.removeprefix("delayq_") for name in site.reverse_dict if str(name).startswith("delayq_")}


def address(name: str, pks: dict[type[MessageRow], int]) -> str:
    _, site = get_resolver().namespace_dict["admin"]
    ((_form, parameters),) = [form for forms, *_ in site.reverse_dict.getlist(f"delayq_{name}") for form in forms][:1]
    pk = next((pk for model, pk in pks.items() if name.startswith(LISTS[model])), 0)
    return reverse(f"admin:delayq_{name}", args=[pk if each == "object_id" else "none" for each in parameters])


def expected(account: Account, name: str) -> set[Any]:
    """Return how a GET of an address may be answered."""
    if not account.enters:
        return {LOGIN}
    has = account.may | ({"sees all"} if account.sees_all else set())
    has |= {"sees a list"} if account.may & {f"view_{each}" for each in LISTS.values()} else set()
    if not account.may & set(VIEWS):
        return {REFUSED, 405}
    return {200, 302, MISSING, 405} if NEEDS[name] <= has else {REFUSED, 405}


def answer(response: Any) -> Any:
    """The status, or that one has to log in."""
    return LOGIN if response.status_code == 302 and "/login/" in response["Location"] else response.status_code


def test_every_address_says_what_it_needs() -> None:
    assert ours() == set(NEEDS)


@ON_SQLITE
def test_who_is_let_in_where_and_what_is_shown_there(tenants: DatabaseBackend, database: str) -> None:
    foreign = {model: model._default_manager.using(database).get(tag=FOREIGN).pk for model in LISTS}
    report(database)
    for account in (*ACCOUNTS, *SINGLE):
        client = account.client()
        for name in NEEDS:
            if name.endswith("_history") and account.may & set(VIEWS) and account.sees_all:
                continue  # it is the page of the message, which is asked for too
            response = client.get(address(name, foreign))
            where = (account.name, name, response.status_code)
            assert answer(response) in expected(account, name), where
            check_content(account, response.content.decode(), where)
            if account.name in ("no rights", OWN):
                posted = client.post(address(name, foreign))
                assert answer(posted) != 200 or 200 in expected(account, name), where
                check_content(account, posted.content.decode(), where)
        index = client.get(reverse("admin:app_list", args=["delayq"]))
        assert (answer(index) == 200) == (account.enters and bool(account.may & set(VIEWS)))
        check_content(account, index.content.decode(), (account.name, "index"))


def check_content(account: Account, html: str, where: Any) -> None:
    """No payload where the account may see none, and nothing of a foreign row where it sees a part."""
    assert "Traceback (most recent" not in html, where
    if "view_payload" not in account.may or not account.sees_all:
        assert SECRET not in html, where
    sees_rows = account.enters and account.may & set(VIEWS)
    if not (sees_rows and account.sees_all):
        assert FOREIGN not in html, where


def state(database: str) -> dict[str, Any]:
    """Return where each message of the site is, and when it is due."""
    tables = (
        ((f"{model.__name__} {id}", due_at) for id, due_at in rows.values_list("message_id", "due_at"))
        for model in LISTS
        for rows in [model._default_manager.using(database).exclude(key="delayq.move")]
    )
    return dict(chain.from_iterable(tables))


def moved(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The ids of the messages of which something has changed."""
    changed = set(before.items()) ^ set(after.items())
    return {name.partition(" ")[2] for name, _due in changed}


@ON_SQLITE
def test_who_moves_what_at_once_and_by_a_job(
    tenants: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(database)
    ways: list[tuple[int, dict[str, Any]]]
    ways = [(1_000, {}), (1_000, {"all_that_match": True}), (0, {"all_that_match": True})]
    for account in (*ACCOUNTS, *SINGLE):
        client = account.client()
        for (model, action), permission in MOVES.items():
            may = account.enters and {permission, f"view_{LISTS[model]}"} <= account.may
            pks = list(model._default_manager.using(database).values_list("pk", flat=True))
            for at_once, options in ways if may else ways[-1:]:
                monkeypatch.setattr(actions, "AT_ONCE", at_once)
                with transaction.atomic(using=database):
                    ask(client, model, action, pks, post="yes", how="shift", length="1h", **options)
                    for row in ReadyMessage.objects.using(database).filter(key="delayq.move"):
                        run_job(row, database)
                    found = moved(before, state(database))
                    transaction.set_rollback(True, using=database)
                suffix = {ReadyMessage: "waits", FinishMessage: "finished", ErrorMessage: "failed"}[model]
                all_ids = {f"{OWN}-{suffix}", f"{FOREIGN}-{suffix}"}
                allowed = all_ids if account.sees_all else {f"{OWN}-{suffix}"}
                assert found == (allowed if may else set()), (account.name, action, at_once, options)


def run_job(row: Any, database: str) -> None:
    """Run the first step of a job, as the worker that leases its row."""
    ReadyMessage.objects.using(database).filter(pk=row.pk).update(token=7)
    jobs.move_next_page(Message(row.message_id, row.key, decode_data(row.data.encode(), jobs.Job), 0, 0, 0, token=7))


def test_who_exports_what(tenants: DatabaseBackend, database: str) -> None:
    for account in ACCOUNTS:
        client = account.client()
        for model in LISTS:
            pks = list(model._default_manager.using(database).values_list("pk", flat=True))
            for options in ({}, {"all_that_match": True}):
                response = ask(client, model, "export_jsonl", pks, **options)
                is_file = response.get("Content-Type", "").startswith("application/x-ndjson")
                assert is_file == (account.enters and f"view_{LISTS[model]}" in account.may), account.name
                text = b"".join(response.streaming_content).decode() if is_file else response.content.decode()
                assert (FOREIGN in text) == (is_file and account.sees_all), account.name
                assert (SECRET in text) == (is_file and account.sees_all and "view_payload" in account.may)


def test_who_searches_what(tenants: DatabaseBackend) -> None:
    for account in ACCOUNTS:
        client = account.client()
        for model, name in LISTS.items():
            if not (account.enters and f"view_{name}" in account.may):
                continue
            for text, needs in ((f"data.v={SECRET}", "view_payload"), (f"{FOREIGN}-*", f"view_{name}")):
                query = searched(client, model, text)
                found = shown_ids(client.get(reverse(f"admin:delayq_{name}_changelist") + query))
                assert bool(found) == (account.sees_all and needs in account.may), (account.name, model, text)
