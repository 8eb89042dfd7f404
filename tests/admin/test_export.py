"""Exports hold what the list shows, harmless to a spreadsheet, without the payloads that the user may not see."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

from django_delayq.admin.lists import export, search
from django_delayq.models import ErrorMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, ask, asked, bury, finish, pk_of, searched, send, url


def download(client: Client, action: str, model: type[MessageRow], pks: list[int], **options: Any) -> str:
    """The file that an action gives."""
    response = ask(client, model, action, pks, **options)
    assert response["Content-Disposition"].startswith("attachment")
    return b"".join(response.streaming_content).decode()


def records(text: str) -> list[dict[str, str]]:
    """The lines of a CSV file, which Excel takes for UTF-8."""
    assert text.startswith("\ufeffpk,")
    return list(csv.DictReader(io.StringIO(text[1:])))


@pytest.mark.parametrize("model", LISTS)
def test_a_table_as_csv_and_as_json_lines_says_the_same(
    broker: DatabaseBackend, superuser: Client, database: str, model: type[MessageRow]
) -> None:
    send("waits", {"a": 1}, delay="1h", tag="t")
    bury(broker, "failed", data={"a": 1})
    finish(broker, "finished", data={"a": 1})
    row = model._default_manager.using(database).get()
    (as_csv,) = records(download(superuser, "export_csv", model, [row.pk]))
    (as_json,) = map(json.loads, download(superuser, "export_jsonl", model, [row.pk]).splitlines())
    assert as_csv["message_id"] == as_json["message_id"] == row.message_id
    assert as_csv["due_at"] == as_json["due_at"] == row.due_at.isoformat(timespec="milliseconds")
    assert json.loads(as_csv["data"]) == json.loads(as_json["data"]) == {"a": 1}
    assert list(as_csv) == list(as_json)


STARTS = ["=1+1", "+1", "-1", "@SUM(A1)", "＝1", "\t=1", "\r=1", " =1", '"=1', "a;=1", "a\n=1", "a\r\n =1", 'a;"=1']


@pytest.mark.parametrize("start", STARTS)
def test_nothing_in_a_csv_file_is_a_formula(
    broker: DatabaseBackend, superuser: Client, database: str, start: str
) -> None:
    name = start if start.isprintable() else "a"
    names = {"key": name, "tag": name, "trace_id": name}
    bury(broker, name, data=-1, error=start, detail=start, fingerprint=name, **names)
    text = download(superuser, "export_csv", ErrorMessage, [pk_of(database, name, ErrorMessage)])
    (line,) = csv.DictReader(io.StringIO(text, newline=""))
    assert line["error"] == line["detail"] == re.sub("[=+＝@-]", r"'\g<0>", start, count=1)
    assert line["data"] == "'-1"
    lines = text.splitlines(keepends=True)
    cells = [cell for separator in ",;\t" for row in csv.reader(lines, delimiter=separator) for cell in row]
    assert [cell for cell in cells if cell.lstrip().lstrip('"').startswith(tuple("=+-@＝"))] == []


def test_payloads_are_exported_to_those_who_may_see_them(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    send("a", "secret", delay="1h")
    pks = [pk_of(database, "a")]
    for action in ("export_csv", "export_jsonl"):
        assert "secret" not in download(staff("view_readymessage"), action, ReadyMessage, pks)
    shown = download(staff("view_readymessage", "view_payload"), "export_jsonl", ReadyMessage, pks)
    assert json.loads(shown)["data"] == '"secret"'


def test_all_that_match_the_filter_are_exported_a_chunk_at_a_time(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CHUNK", 20)
    for number in range(60):
        send(f"a{number}", delay="1h")
    send("other", delay="1h", key="sms.send")
    options: dict[str, Any] = {"all_that_match": True, "query": "?key=order.close"}
    ticked = [pk_of(database, "a0")]
    with CaptureQueriesContext(connections[database]) as queries:
        text = download(superuser, "export_csv", ReadyMessage, ticked, **options)
    assert {line["message_id"] for line in records(text)} == {f"a{number}" for number in range(60)}
    pages = [sql for sql in asked(queries) if "history" in sql]  # what reads whole rows
    assert len(pages) == 3
    assert all(" IN (" in sql for sql in pages)
    assert len(queries) <= 20


def test_all_that_match_a_search_in_payloads_are_in_the_file_though_the_list_stopped(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 2)
    monkeypatch.setattr(export, "CHUNK", 2)
    for number in range(6):
        send(f"a{number}", {"order": number % 2}, delay=f"{number + 1}h")
    send("other", {"order": 1}, key="sms.send")
    options: dict[str, Any] = {
        "all_that_match": True,
        "query": searched(superuser, ReadyMessage, "data.order=1", key="order.close"),
    }
    text = download(superuser, "export_jsonl", ReadyMessage, [pk_of(database, "a1")], **options)
    assert [json.loads(line)["message_id"] for line in text.splitlines()] == ["a1", "a3", "a5"]


def test_the_log_says_who_took_what_out(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client], database: str
) -> None:
    send("a", delay="1h")
    pk = pk_of(database, "a")
    download(superuser, "export_csv", ReadyMessage, [pk], all_that_match=True, query="?key=order.close")
    download(staff("view_readymessage"), "export_jsonl", ReadyMessage, [pk])
    assert said() == [
        ("key=order.close", "Export as CSV: 1, with payloads, with errors"),
        (f"pk={pk}", "Export as JSON lines: 1, without payloads, without errors"),
    ]


def said() -> list[tuple[str, str]]:
    """Return what the log says was exported, oldest first."""
    return [(entry.object_repr, entry.change_message.splitlines()[0]) for entry in LogEntry.objects.order_by("pk")]


@pytest.mark.parametrize("action", ["export_csv", "export_jsonl"])
def test_under_asgi_a_file_is_streamed_too(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(export, "CHUNK", 2)
    for number in range(7):
        send(f"a{number}", delay=f"{number + 1}h")
    ticked = [pk_of(database, f"a{number}") for number in range(7)]
    client = AsyncClient()
    client.cookies = superuser.cookies
    parts: list[tuple[bytes, int]] = []  # and how many queries it took so far

    async def stream() -> None:
        data = {"action": action, "index": "0", "_selected_action": ticked}
        response = await client.post(url(LISTS[ReadyMessage]), data)

        async def sent(event: Mapping[str, Any]) -> None:
            if body := event.get("body"):
                parts.append((body, len(queries)))

        await ASGIHandler().send_response(response, sent)  # Django warns here of what it has to put in a list

    with CaptureQueriesContext(connections[database]) as queries:
        async_to_sync(stream)()
    assert b"".join(part for part, _ in parts).decode() == download(superuser, action, ReadyMessage, ticked)
    took = [number for _, number in parts]
    assert len(took) == 4
    assert took[0] < took[1] < took[2] < took[3]  # nothing is read before it is sent


def test_what_moves_on_while_a_file_is_written_is_left_out(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CHUNK", 1)
    for number in range(3):
        send(f"a{number}", delay=f"{number + 1}h")
    ticked = [pk_of(database, f"a{number}") for number in range(3)]
    parts = iter(ask(superuser, ReadyMessage, "export_jsonl", ticked).streaming_content)
    first = next(parts)
    ((_, begun),) = said()
    assert begun == "Export as JSON lines: begun, with payloads, with errors"
    broker.queue.cancel(["a1"])
    assert [json.loads(line)["message_id"] for line in [first, *parts]] == ["a0", "a2"]
    ((_, ended),) = said()
    assert ended == "Export as JSON lines: 2, with payloads, with errors"


def test_the_log_counts_what_a_client_took_that_went_away(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", delay="1h")
    send("b", delay="2h")
    response = ask(superuser, ReadyMessage, "export_csv", [pk_of(database, "a"), pk_of(database, "b")])
    parts = iter(response.streaming_content)
    assert b"message_id" in next(parts)
    assert b"a" in next(parts)
    response.close()
    ((_, ended),) = said()
    assert ended == "Export as CSV: 1, with payloads, with errors"
