"""Who sees only a part of the messages, by `OPTIONS["rows_for"]`, sees, moves and counts no others anywhere."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.checks import CheckMessage, Tags, run_checks
from django.db.models import QuerySet
from django.test import Client
from pytest_django import Settings

from django_delayq.admin.bulk import actions, jobs
from django_delayq.admin.lists.admins import ErrorMessageAdmin
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Pause, RunInfo, WorkerInfo
from django_delayq.models import ErrorMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import (
    LISTS,
    ask,
    bury,
    confirm,
    forget_settings,
    ids_in,
    page,
    pk_of,
    searched,
    send,
    shown_ids,
    text_of,
    url,
)
from tests.admin.tenants import FOREIGN, ON_SQLITE, OWN, SECRET, of_own_tenant

INDEX = "/admin/delayq/"
FIGURES = url("readymessage", "dashboard")
ALL = (
    *(f"view_{name}" for name in (*LISTS.values(), "reportrow")),
    *(
        "view_payload",
        "view_error",
        "edit_payload",
        "rescue_message",
        "cancel_message",
        "reschedule_message",
        "pause_queue",
    ),
    *("delete_readymessage", "delete_errormessage"),
)
OTHERS = re.compile(f"{FOREIGN}|{SECRET}")


def for_root(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The hook of an alias that is for superusers."""
    return rows if user.is_superuser else rows.none()


def joined(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    return of_own_tenant(user, rows).select_related("there_is_no_such_field")


def made_anew(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """A hook that forgets which rows it was given."""
    return QuerySet(rows.model, using=rows.db).filter(tag=user.username)


def failing(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """A hook with a fault."""
    raise RuntimeError(user)


UNFIT: dict[str, tuple[Callable[[QuerySet[Any]], Any], str]] = {
    "nothing": (lambda rows: None, "NoneType and no QuerySet"),
    "list": (list, "list and no QuerySet"),
    "model": (lambda rows: User.objects.all(), "a QuerySet of User in place of "),
    "database": (lambda rows: rows.using("elsewhere"), "rows of the database 'elsewhere' in place of "),
    "slice": (lambda rows: rows[:100], "a slice"),
    "union": (lambda rows: rows.filter(tag="anna").union(rows.filter(tag="")), "the result of union()"),
    "values": (lambda rows: rows.values("pk"), "the result of values() or values_list()"),
    "distinct": (lambda rows: rows.distinct("tag"), "the result of distinct() with fields"),
}
"""What a hook may return that can't be filtered, and what is said of it."""


def unfit(user: Any, rows: QuerySet[Any]) -> Any:
    """A hook that returns what it may not, as `unfit.kind` says."""
    return UNFIT[unfit.kind][0](rows)  # type: ignore[attr-defined]


def of_a_profile(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """A hook that can't be asked for an anonymous user."""
    return rows.filter(tag=user.profile.tenant)


@pytest.fixture
def anna(tenants: DatabaseBackend, staff: Callable[..., Client]) -> Client:
    """A client of one who may do everything with her own messages."""
    client = staff(*ALL)
    User.objects.update(username=OWN)
    return client


def pks(database: str, tag: str) -> dict[type[MessageRow], int]:
    """The primary key of this tenant's message in each table."""
    return {model: model._default_manager.using(database).get(tag=tag).pk for model in LISTS}


def test_the_lists_their_filters_and_the_kinds_of_failures_show_no_foreign_row(anna: Client) -> None:
    for model, name in LISTS.items():
        assert len(shown_ids(anna.get(url(name)))) == 1
        for query in ("?q=benjamin-*", searched(anna, model, "data.v=sesame"), "?key=key.benjamin"):
            assert shown_ids(anna.get(url(name, query=query))) == [], (model, query)
        assert not OTHERS.search(page(anna.get(url(name))))
    kinds = page(anna.get(url("errormessage", "groups")))
    assert "Error of anna" in kinds
    assert not OTHERS.search(kinds)


def test_ones_own_stand_in_the_order_of_the_list(anna: Client, broker: DatabaseBackend) -> None:
    for number, tag in enumerate((OWN, FOREIGN, OWN, FOREIGN, OWN), start=1):
        send(f"{tag}-{number}", delay=f"{9 - number}m", tag=tag)
        bury(broker, f"{tag}-failed-{number}", tag=tag)
    assert shown_ids(anna.get(url("readymessage"))) == [*(f"{OWN}-{number}" for number in (5, 3, 1)), f"{OWN}-waits"]
    failed = [*(f"{OWN}-failed-{number}" for number in (5, 3, 1)), f"{OWN}-failed"]
    assert shown_ids(anna.get(url("errormessage"))) == failed


@ON_SQLITE
def test_a_foreign_message_is_answered_like_one_that_there_is_not(anna: Client, database: str) -> None:
    own, foreign = pks(database, "anna"), pks(database, "benjamin")
    for model, name in LISTS.items():
        assert anna.get(url(name, own[model], "change")).status_code == 200
        for table in LISTS:  # its redirect to the table of now is no oracle either
            told = anna.get(url(name, foreign[table], "change"), follow=True)
            assert told.redirect_chain == [(url(name), 302)]
            assert f"There is no message {foreign[table]} any more." in text_of(told)
            assert not OTHERS.search(page(told))
    editor = anna.post(url("errormessage", foreign[ErrorMessage], "payload"), {"payload": "1"})
    assert "The message has moved on" in text_of(editor)
    assert ids_in(database, ErrorMessage) == {"anna-failed", "benjamin-failed"}


@ON_SQLITE
def test_has_view_permission_is_asked_of_the_message(
    anna: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def may_view(self: Any, request: Any, obj: Any = None) -> bool:
        return obj is None or "failed" not in obj.message_id

    monkeypatch.setattr(ErrorMessageAdmin, "has_view_permission", may_view)
    own = pks(database, "anna")[ErrorMessage]
    for page_of_it in ("change", "history", "payload"):
        assert anna.get(url("errormessage", own, page_of_it)).status_code == 403


@pytest.mark.parametrize("all_that_match", [False, True])
def test_an_export_holds_no_foreign_row(anna: Client, database: str, all_that_match: bool) -> None:
    for model in LISTS:
        ticked = list(model._default_manager.using(database).values_list("pk", flat=True))
        for query in ("", searched(anna, model, "data.v=hers")):
            options = {"all_that_match": all_that_match, "query": query}
            file = b"".join(ask(anna, model, "export_csv", ticked, **options).streaming_content).decode()
            assert "anna-" in file
            assert not OTHERS.search(file)
            assert LogEntry.objects.latest("pk").change_message.startswith("Export as CSV: 1, ")


@pytest.mark.parametrize("at_once", [0, 1_000])
def test_all_that_match_are_all_of_ones_own(
    anna: Client, database: str, registry: None, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", at_once)
    jobs.register("default")
    for model, action in ((ErrorMessage, "purge_failed"), (ReadyMessage, "purge")):
        any_row = [
            pk_of(database, model._default_manager.using(database).filter(tag="benjamin").get().message_id, model)
        ]
        confirm(anna, model, action, any_row)
        confirm(anna, model, action, any_row, all_that_match=True)
        foreign = searched(anna, model, "data.v=sesame")
        confirm(anna, model, action, any_row, all_that_match=True, query=foreign)
    run_due()
    assert ids_in(database, ErrorMessage) == {"benjamin-failed"}
    assert ids_in(database, ReadyMessage) == {"benjamin-waits"}


def test_what_failed_under_a_shared_id_is_not_deleted_by_one_who_sees_a_part_of_it(
    anna: Client, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "shared", tag="benjamin")
    bury(broker, "shared", tag="anna")
    newest = ErrorMessage.objects.using(database).get(message_id="shared", tag="anna").pk
    assert "1 message was left" in text_of(confirm(anna, ErrorMessage, "purge_failed", [newest]))
    assert ErrorMessage.objects.using(database).filter(message_id="shared").count() == 2
    confirm(superuser, ErrorMessage, "purge_failed", [newest])
    assert not ErrorMessage.objects.using(database).filter(message_id="shared").exists()


def test_the_dashboard_counts_ones_own_and_tells_nothing_of_others(
    anna: Client, broker: DatabaseBackend, superuser: Client
) -> None:
    run = RunInfo("benjamin-runs", "benjamin", "key.benjamin", 0)
    broker.presence.heartbeat(WorkerInfo("benjamin's host", ["benjamin's"], ["key.benjamin"], 1, 0, runs=[run]))
    broker.presence.pause(Pause("benjamin's", None, "sesame"))
    for address in (INDEX, FIGURES):
        shown = anna.get(address)
        assert not OTHERS.search(page(shown))
        assert "Waiting 1 Due now 0" in text_of(shown)
        assert "Failed in the last hour 1" in text_of(shown)
        assert "You see a part of the messages." in text_of(shown)
        assert "key.benjamin" in page(superuser.get(address))
    report = anna.get(url("reportrow"))
    assert "the report counts the messages of all" in text_of(report)
    assert "benjamin" not in page(report)


@ON_SQLITE
def test_what_concerns_the_messages_of_all_is_for_those_who_see_all(anna: Client, broker: DatabaseBackend) -> None:
    for part in ("pause", "resume"):
        assert anna.get(url("readymessage", "dashboard", part)).status_code == 403
        assert anna.post(url("readymessage", "dashboard", part), {"queue": "a", "reason": "b"}).status_code == 403
    moved = {"move": "purge", "id": ["benjamin-waits"], "sure": "yes"}
    assert anna.post(url("readymessage", "dashboard", "storeless"), moved).status_code == 403
    assert broker.presence.pauses() == []


@ON_SQLITE
def test_an_alias_is_closed_to_those_to_whom_its_hook_leaves_nothing(
    anna: Client, stored_delayq: dict[str, Any], settings: Settings, superuser: Client, database: str
) -> None:
    closed = stored_delayq | {"OPTIONS": stored_delayq["OPTIONS"] | {"rows_for": "tests.admin.test_rows_for.for_root"}}
    settings.DELAYQ = {
        "open": stored_delayq | {"OPTIONS": {"unknown_keys": "allow"}},
        "closed": closed,
        "carried": closed | {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None},
    }
    for alias in ("open", "closed", "carried"):
        send(f"sesame-{alias}", using=alias, key="key.benjamin", queue="benjamin's", delay="1h")
        backend = get_backend(alias)
        backend.presence.heartbeat(WorkerInfo("benjamin's host", ["benjamin's"], ["key.benjamin"], 1, 0))
        backend.presence.pause(Pause("benjamin's", None, "sesame"))
    waits = ReadyMessage._default_manager.using(database).get(alias="closed")
    for alias in ("closed", "carried"):
        query = f"?alias={alias}"
        for address in (INDEX + query, FIGURES + query, *(url(name, query=query) for name in LISTS.values())):
            assert not OTHERS.search(page(anna.get(address))), address
            assert "benjamin" in page(superuser.get(INDEX + query))
        for part in ("pause", "resume"):
            address = url("readymessage", "dashboard", part, query=f"{query}&queue=benjamin%27s")
            assert anna.post(address, {"queue": "benjamin's", "reason": "b"}).status_code == 403
        moved = {"move": "purge", "id": [f"sesame-{alias}"], "sure": "yes"}
        assert anna.post(url("readymessage", "dashboard", "storeless", query=query), moved).status_code == 403
        assert [pause.reason for pause in get_backend(alias).presence.pauses()] == ["sesame"]
        assert get_backend(alias).queue.get(f"sesame-{alias}") is not None
    assert not OTHERS.search(
        page(anna.get(url("readymessage", waits.pk, "change", query="?alias=closed"), follow=True))
    )
    confirm(anna, ReadyMessage, "purge", [waits.pk])
    confirm(anna, ReadyMessage, "purge", [waits.pk], all_that_match=True, query="?alias=closed")
    assert get_backend("closed").queue.get("sesame-closed") is not None
    assert "sesame-open" in page(anna.get(url("readymessage", query="?alias=open")))
    pause = url("readymessage", "dashboard", "pause", query="?alias=open")
    assert anna.post(pause, {"queue": "another", "reason": "b"}).status_code == 302


@ON_SQLITE
def test_somebody_elses_job_is_not_shown(
    anna: Client, superuser: Client, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    jobs.register("default")
    for client, status in ((superuser, 404), (anna, 200)):
        job = confirm(client, ReadyMessage, "cancel", [0], all_that_match=True)
        ((address, _),) = job.redirect_chain
        assert anna.get(address).status_code == anna.post(address, follow=True).status_code == status
        assert superuser.get(address).status_code == 200


def test_a_hook_that_makes_its_query_anew_shows_no_other_aliases(
    anna: Client, stored_delayq: dict[str, Any], database: str
) -> None:
    stored_delayq["OPTIONS"]["rows_for"] = "tests.admin.test_rows_for.made_anew"
    forget_settings()
    assert shown_ids(anna.get(url("readymessage"))) == ["anna-waits"]
    ReadyMessage._default_manager.using(database).filter(tag="anna").update(alias="another")
    assert shown_ids(anna.get(url("readymessage"))) == []


def test_what_a_hook_would_join_breaks_no_page(anna: Client, stored_delayq: dict[str, Any], database: str) -> None:
    stored_delayq["OPTIONS"]["rows_for"] = "tests.admin.test_rows_for.joined"
    forget_settings()
    assert shown_ids(anna.get(url("readymessage"))) == ["anna-waits"]
    assert anna.get(INDEX).status_code == 200


@ON_SQLITE
@pytest.mark.parametrize("hook", ["failing", "no_such"])
def test_a_hook_that_fails_shows_nothing_to_anybody(
    anna: Client, superuser: Client, stored_delayq: dict[str, Any], database: str, hook: str
) -> None:
    stored_delayq["OPTIONS"]["rows_for"] = f"tests.admin.test_rows_for.{hook}"
    forget_settings()
    for client in (anna, superuser):
        for address in (INDEX, FIGURES, *map(url, LISTS.values()), url("errormessage", "groups"), url("reportrow")):
            assert client.get(address).status_code == 403, address


@ON_SQLITE
@pytest.mark.parametrize("kind", UNFIT)
def test_what_a_hook_returns_is_told_if_it_cannot_be_filtered_and_shows_nothing(
    anna: Client,
    stored_delayq: dict[str, Any],
    database: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored_delayq["OPTIONS"]["rows_for"] = "tests.admin.test_rows_for.unfit"
    monkeypatch.setattr(unfit, "kind", kind, raising=False)
    forget_settings()
    own = pks(database, "anna")[ReadyMessage]
    for address in (
        INDEX,
        *map(url, LISTS.values()),
        url("errormessage", "groups"),
        url("readymessage", own, "change"),
    ):
        assert anna.get(address).status_code == 403, address
    told = f"tests.admin.test_rows_for.unfit returned {UNFIT[kind][1]}"
    assert told in caplog.text
    (error,) = checked(database)
    assert error.id == "delayq.E007"
    assert told in error.msg
    assert "Return rows.filter(…)" in error.msg


@ON_SQLITE
@pytest.mark.parametrize("hook", ["of_own_tenant", "of_a_profile", "no_such"])
def test_the_check_tells_nothing_of_a_hook_that_returns_rows_or_needs_a_user_of_the_site(
    stored_delayq: dict[str, Any], database: str, hook: str
) -> None:
    stored_delayq["OPTIONS"]["rows_for"] = f"tests.admin.test_rows_for.{hook}"
    assert checked(database) == []


def checked(database: str) -> list[CheckMessage]:
    """Return what the checks of this database say of the hook."""
    found = run_checks(tags=[Tags.database], databases=[database], include_deployment_checks=True)
    return [message for message in found if message.id == "delayq.E007"]


@ON_SQLITE
def test_a_get_queryset_of_the_sites_own_is_not_repeated_in_the_background_so_it_is_refused(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_queryset(self: Any, request: Any) -> QuerySet[Any]:
        rows: QuerySet[Any] = super(ErrorMessageAdmin, self).get_queryset(request)
        return rows.filter(tag="anna")

    monkeypatch.setattr(ErrorMessageAdmin, "get_queryset", get_queryset, raising=False)
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    bury(broker, "a", tag="anna")
    bury(broker, "b", tag="benjamin")
    done = confirm(superuser, ErrorMessage, "rescue", [0], all_that_match=True)
    assert 'or let OPTIONS["rows_for"] narrow the rows' in text_of(done)
    assert ids_in(database, ErrorMessage) == {"a", "b"}
    assert ids_in(database, ReadyMessage) == set()
