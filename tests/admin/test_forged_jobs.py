"""A job in the background does what its operator asked for and still may do, and nothing that somebody else wrote."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_delayq.admin.bulk import actions, changes, jobs
from django_delayq.admin.bulk.changes import KEY
from django_delayq.core.codec import decode_data, dumps
from django_delayq.core.errors import Bury
from django_delayq.core.message import Message
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import ask, confirm, ids_in, searched, send, text_of, url

WAITS = {"a1", "a2", "a3"}


@pytest.fixture
def database(sqlite_database: str) -> str:
    """Use one database, because what is signed doesn't depend on it."""
    return sqlite_database


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """A client of one who may delete what waits."""
    return staff("view_readymessage", "view_payload", "delete_readymessage")


@pytest.fixture
def purge_all(
    broker: DatabaseBackend, registry: None, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Has all three that wait deleted in the background, in pages of two: the address of the job."""
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    monkeypatch.setattr(changes, "PAGE", 2)
    jobs.register("default")
    for id in sorted(WAITS):
        send(id, 1, delay="2h")

    def begin(query: str = "?key=order.close") -> str:
        done = confirm(operator, ReadyMessage, "purge", [0], all_that_match=True, query=query)
        return str(done.redirect_chain[0][0])

    return begin


def its_row(database: str) -> Any:
    """The rows of the job that wait, of which there is one."""
    return ReadyMessage.objects.using(database).filter(key=KEY)


def why_it_failed(database: str) -> str:
    return ErrorMessage.objects.using(database).get(key=KEY).error


@pytest.mark.parametrize(
    "forged",
    [
        {"signature": ""},  # as the version before wrote it
        {"user_id": "2"},
        {"change": {"move": "cancel", "delay_ms": 0, "shift_ms": 0}},
        {"selection": {"alias": "default", "model": "readymessage", "now_ms": 0, "until": 10**9}},
        {"after": 1},
    ],
)
def test_a_job_that_is_not_signed_as_it_is_fails_and_does_nothing(
    purge_all: Callable[..., str], operator: Client, database: str, forged: dict[str, Any]
) -> None:
    address = purge_all()
    row = its_row(database).get()
    its_row(database).update(data=json.dumps(json.loads(row.data) | forged))
    entries = LogEntry.objects.count()
    run_due(errors="keep")
    assert "no valid signature" in why_it_failed(database)
    assert ids_in(database, ReadyMessage) == WAITS
    assert LogEntry.objects.count() == entries
    if "selection" not in forged:
        assert "Ask for it again in the admin." in text_of(operator.get(address))


def test_a_signature_is_of_one_message_only(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    its_row(database).update(message_id=f"{KEY}:x:0")
    run_due(errors="keep")
    assert "no valid signature" in why_it_failed(database)
    assert ids_in(database, ReadyMessage) == WAITS


def test_a_step_that_is_written_again_after_the_end_does_nothing(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    run_due(errors="keep")
    send("later", delay="2h")
    step = FinishMessage.objects.using(database).filter(key=KEY).order_by("pk")[1]
    shared = {field.name: getattr(step, field.name) for field in ReadyMessage._meta.fields if hasattr(step, field.name)}
    ReadyMessage.objects.using(database).create(**shared | {"id": step.pk + 100})
    entries = LogEntry.objects.count()
    run_due(errors="keep")
    assert ids_in(database, ReadyMessage) == {"later"}
    assert LogEntry.objects.count() == entries


def test_a_job_without_a_row_that_is_leased_does_nothing(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    row = its_row(database).get()
    forged = Message(row.message_id, KEY, decode_data(row.data.encode(), jobs.Job), 0, 0, 0, token=1)
    with pytest.raises(Bury, match="no row that is leased here"):
        jobs.move_next_page(forged)
    assert ids_in(database, ReadyMessage) > WAITS


@pytest.mark.parametrize(
    "lost", [{"is_active": False}, {"is_staff": False}, "delete_readymessage", "view_readymessage", None]
)
def test_a_job_ends_before_the_next_page_when_its_operator_may_not_do_it_any_more(
    purge_all: Callable[..., str],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    superuser: Client,
    lost: dict[str, bool] | str | None,
) -> None:
    address = purge_all()

    def move_and_lose(*page: Any) -> changes.Moved:
        who = User.objects.filter(is_superuser=False)
        if lost is None:
            who.get().delete()
        elif isinstance(lost, str):
            permission = who.get().user_permissions.get(codename=lost)
            who.get().user_permissions.remove(permission)
        else:
            who.update(**lost)
        return changes.move(*page)

    monkeypatch.setattr(jobs, "move", move_and_lose)
    run_due(errors="keep")
    assert "may not do it any more" in why_it_failed(database)
    assert ids_in(database, ReadyMessage) == {"a3"}
    shown = text_of(superuser.get(address))
    assert "Moved 2" in shown
    assert "It failed, and what it has not done is left as it was" in shown


def test_a_job_looks_into_payloads_only_for_one_who_may(
    purge_all: Callable[..., str], operator: Client, database: str
) -> None:
    purge_all(searched(operator, ReadyMessage, "data=1"))
    User.objects.get().user_permissions.through.objects.filter(permission__codename="view_payload").delete()
    run_due(errors="keep")
    assert "may not do it any more" in why_it_failed(database)
    assert ids_in(database, ReadyMessage) == WAITS


def test_nobody_stops_a_job_by_a_message_of_his_own(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    row = its_row(database).get()
    told = {**json.loads(row.data), "over": True}
    kept = {field.name: getattr(row, field.name) for field in ReadyMessage._meta.fields}
    forged = {"id": row.pk + 100, "message_id": row.message_id.replace(":0", ":stop"), "data": json.dumps(told)}
    ReadyMessage.objects.using(database).create(**kept | forged | {"tag": None, "key": "order.close"})
    run_due(errors="keep")
    assert ids_in(database, ReadyMessage) & WAITS == set()


def test_a_message_with_the_tag_of_a_job_is_no_step_of_it(
    purge_all: Callable[..., str], operator: Client, database: str
) -> None:
    address = purge_all()
    send("foreign", key="sms.send", delay="1d")
    ReadyMessage.objects.using(database).filter(key="sms.send").update(tag=its_row(database).get().tag)
    assert "It goes on." in text_of(operator.get(address))
    run_due(errors="keep")
    assert ids_in(database, ReadyMessage) == {"foreign"}
    assert "It is done." in text_of(operator.get(address))


def test_what_is_sent_after_a_job_was_asked_for_is_left(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    send("later", delay="2h")
    run_due(errors="keep")
    assert ids_in(database, ReadyMessage) == {"later"}


def test_the_question_itself_begins_nothing(purge_all: Callable[..., str], operator: Client, database: str) -> None:
    ask(operator, ReadyMessage, "purge", [0], all_that_match=True)
    assert not its_row(database).exists()


@pytest.mark.parametrize("action", [None, "stop", "continue"])
def test_a_job_of_an_alias_that_is_gone_breaks_no_page(
    purge_all: Callable[..., str], superuser: Client, database: str, action: str | None
) -> None:
    address = purge_all()
    row = its_row(database).get()
    forged = json.loads(row.data)
    forged["selection"]["alias"] = "gone"
    its_row(database).update(data=json.dumps(forged))
    answer = superuser.get(address) if action is None else superuser.post(address, {action: "1"})
    assert answer.status_code == 404
    of_another = (f"job:gone:{forged['name']}", "gone:1")
    pages = [url("readymessage"), *(url("readymessage", id, "change") for id in (row.pk, *of_another))]
    for page in pages:
        assert superuser.get(page, follow=True).status_code in (200, 404), page
    run_due(errors="keep")
    assert "no valid signature" in why_it_failed(database)


def test_a_signed_job_of_an_alias_that_is_gone_fails_at_once(purge_all: Callable[..., str], database: str) -> None:
    purge_all()
    row = its_row(database).get()
    job = decode_data(row.data.encode(), jobs.Job)
    renamed = jobs._signed(replace(job, selection=replace(job.selection, alias="gone")), row.message_id)
    its_row(database).update(data=dumps(renamed).decode())
    run_due(errors="keep")
    assert "no row that is leased here" in why_it_failed(database)
    assert ids_in(database, ReadyMessage) == WAITS
