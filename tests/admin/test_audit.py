"""The audit lines of the admin, and that nothing is deleted of which the log has no entry."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError
from django.test import Client

from django_delayq.admin.bulk import actions, jobs
from django_delayq.admin.dashboard import pausing
from django_delayq.admin.message import edit
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import ask, bury, confirm, ids_in, pk_of, searched, send, url

PAUSE, RESUME = (url("readymessage", "dashboard", part, query="?queue=mail") for part in ("pause", "resume"))


@pytest.fixture
def database(sqlite_database: str) -> str:
    """Use one database, because what is said doesn't depend on it."""
    return sqlite_database


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines since the last look, with the name of a job as `…`."""
    caplog.set_level(logging.INFO, "django_delayq.audit")

    def look() -> list[str]:
        found = [re.sub(r"\b[0-9a-f]{32}\b", "…", each.getMessage()) for each in caplog.records if "audit" in each.name]
        caplog.clear()
        return found

    return look


def test_each_thing_that_an_operator_does_has_a_line(
    broker: DatabaseBackend, superuser: Client, database: str, lines: Callable[[], list[str]]
) -> None:
    who = "who=root from=127.0.0.1 alias=default"
    send("a", delay="1h")
    send("b", delay="1h")
    bury(broker, "c", data={"card": "4111"})
    a, c = pk_of(database, "a"), pk_of(database, "c", ErrorMessage)
    lines()
    confirm(superuser, ReadyMessage, "reschedule", [a], how="shift", length="1h")
    confirm(superuser, ReadyMessage, "cancel", [a, pk_of(database, "b")])
    assert lines() == [f"reschedule {who} moved=1 by=+1h ids=a", f"cancel {who} moved=2 ids=a,b"]
    superuser.post(url("errormessage", c, "payload"), {"payload": '{"card": "4242"}', "seen": seen(superuser, c)})
    superuser.post(PAUSE, {"queue": "mail", "reason": "it is down"})
    superuser.post(RESUME)
    assert lines() == [
        f"change_payload {who} ids=c",
        f'pause {who} queue=mail reason="it is down"',
        f'resume {who} queue=mail reason="it is down"',
    ]
    query = searched(superuser, ReadyMessage, "data.card=4242", key="order.close")
    ask(superuser, ReadyMessage, "export_csv", [c])
    ask(superuser, ReadyMessage, "export_jsonl", [0], all_that_match=True, query=query)
    ticked, every = lines()
    assert ticked == f'export {who} of=readymessage payloads=with errors=with filter="pk={c}" what=begun'
    says = rf'export {who} of=\w+ payloads=with errors=with filter="key=\S+ q=data.card=#\w+" what=begun'
    assert re.fullmatch(says, every)


def test_an_export_has_a_line_at_its_end_with_the_number_of_rows(
    broker: DatabaseBackend, superuser: Client, database: str, lines: Callable[[], list[str]]
) -> None:
    send("a", delay="1h")
    response = ask(superuser, ReadyMessage, "export_jsonl", [pk_of(database, "a"), 0])
    lines()
    assert b'"a"' in b"".join(response.streaming_content)
    (ended,) = lines()
    assert ended.endswith("what=ended rows=1")


def seen(client: Client, pk: int) -> str:
    """The mark in the form that changes a payload."""
    (mark,) = re.findall(r'name="seen" value="(\w+)"', client.get(url("errormessage", pk, "payload")).content.decode())
    return str(mark)


def test_a_job_has_lines_with_its_name_and_none_of_a_step_that_was_rolled_back(
    broker: DatabaseBackend,
    registry: None,
    superuser: Client,
    lines: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    jobs.register("default")
    send("a", 7, delay="1h")
    query = searched(superuser, ReadyMessage, "data=7")
    confirm(superuser, ReadyMessage, "purge", [0], all_that_match=True, query=query)
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "_send", fail)
        run_due(errors="keep")
    began, *failed = lines()
    assert began.startswith("purge who=root from=127.0.0.1 alias=default job=… what=begun filter=")
    assert "data=7" not in began
    assert failed == []
    run_due(until="1m")
    page, done = lines()
    who = 'who=root from="a job in the background" alias=default job=…'
    assert page == f'purge {who} what="a page" moved=1 so_far=1 ids=a'
    assert done == f"purge {who} what=done moved=1 left=0"


def fail(*args: object) -> Any:
    raise ValueError(args)


def test_nothing_is_deleted_of_which_no_entry_could_be_written(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    superuser.raise_request_exception = False
    bury(broker, "a")
    monkeypatch.setattr(LogEntry.objects, "bulk_create", no_entry)
    monkeypatch.setattr("django.contrib.admin.models.LogEntryManager.bulk_create", no_entry, raising=False)
    assert confirm(superuser, ErrorMessage, "purge_failed", [pk_of(database, "a", ErrorMessage)]).status_code == 500
    assert ids_in(database, ErrorMessage) == {"a"}


def no_entry(*args: object, **options: object) -> Any:
    raise DatabaseError("no")


def test_rows_of_a_store_are_not_moved_by_what_is_for_an_alias_without_one(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a")
    moved = {"move": "rescue", "id": "a", "sure": "yes"}
    assert superuser.post(url("readymessage", "dashboard", "storeless"), moved).status_code == 400
    assert ids_in(database, ErrorMessage) == {"a"}


def test_no_job_is_begun_of_which_no_entry_could_be_written(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    superuser.raise_request_exception = False
    bury(broker, "a")
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    monkeypatch.setattr(jobs, "log_selection", no_entry)
    pk = pk_of(database, "a", ErrorMessage)
    assert confirm(superuser, ErrorMessage, "purge_failed", [pk], all_that_match=True).status_code == 500
    assert not ReadyMessage.objects.using(database).exists()


def test_no_payload_is_changed_of_which_no_entry_could_be_written(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    superuser.raise_request_exception = False
    bury(broker, "a", data=1)
    pk = pk_of(database, "a", ErrorMessage)
    typed = {"payload": "2", "seen": seen(superuser, pk)}
    monkeypatch.setattr(edit, "log_rows", no_entry)
    assert superuser.post(url("errormessage", pk, "payload"), typed).status_code == 500
    assert ErrorMessage.objects.using(database).get().data == "1"


def test_nothing_is_paused_of_which_no_entry_could_be_written(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    superuser.raise_request_exception = False
    monkeypatch.setattr(pausing, "log_text", no_entry)
    assert superuser.post(PAUSE, {"queue": "mail", "reason": "x"}).status_code == 500
    assert broker.presence.pauses() == []
