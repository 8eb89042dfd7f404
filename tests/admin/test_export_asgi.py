"""An export on an ASGI server ends when the client is gone."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.db.models.signals import post_init
from django.test import Client

from django_delayq.admin.lists import export
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import pk_of, send, url

COUNT = 20
CSRF = "c" * 32
NEVER = 3_600


@pytest.fixture
def read() -> Iterator[list[str]]:
    """The ids of the messages that were read from the table since."""
    ids: list[str] = []

    def note(instance: ReadyMessage, **_: Any) -> None:
        ids.append(instance.message_id)

    post_init.connect(note, sender=ReadyMessage)
    yield ids
    post_init.disconnect(note, sender=ReadyMessage)


async def ask_for_all(client: Client, action: str, pk: int) -> None:
    """Export all messages that wait, as an ASGI server has it done, for a client that is gone at the first line."""
    fields = {"action": action, "index": "0", "select_across": "1", "_selected_action": str(pk)}
    cookies = f"sessionid={client.cookies['sessionid'].value}; csrftoken={CSRF}"
    headers = {"content-type": "application/x-www-form-urlencoded", "cookie": cookies, "x-csrftoken": CSRF}
    path = url("readymessage")
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    received = [{"type": "http.request", "body": urlencode(fields).encode()}]
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def tell(message: Mapping[str, Any]) -> None:
        assert message.get("status", 200) == 200
        if message.get("body"):
            gone.set()
            await asyncio.sleep(NEVER)  # until Django ends it

    await ASGIHandler()(scope, receive, tell)


@pytest.fixture
def pk(broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One of many messages that wait."""
    monkeypatch.setattr(export, "CHUNK", 2)
    for number in range(COUNT):
        send(f"a{number}", delay="1h")
    return pk_of(database, "a0")


@pytest.mark.parametrize("action", ["export_csv", "export_jsonl"])
def test_under_asgi_no_more_is_read_for_a_client_that_is_gone(
    superuser: Client, pk: int, read: list[str], action: str
) -> None:
    asyncio.run(ask_for_all(superuser, action, pk))
    assert COUNT < len(read) <= COUNT + 2  # the list reads its page before
