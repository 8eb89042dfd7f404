"""What the tests of the admin share."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from html import unescape
from typing import Any

import pytest
from django.apps import apps
from django.db import transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq import conf, send_delay_message
from django_delayq.admin.bulk import actions, changes, jobs
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, ClaimRequest, SettleAction
from django_delayq.core.codec import decode_data
from django_delayq.core.message import Message
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage, ReportRow
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import claim_some, settlement
from tests.store.support import clock_of

LISTS: dict[type[MessageRow], str] = {
    ReadyMessage: "readymessage",
    FinishMessage: "finishmessage",
    ErrorMessage: "errormessage",
}


def url(name: str, *parts: object, query: str = "") -> str:
    """An address of the admin: `url("errormessage", pk, "change")`."""
    path = "".join(f"{part}/" for part in (name, *parts))
    return f"/admin/delayq/{path}{query}"


def send(id: str, data: Any = None, *, key: str = "order.close", delay: Any = 0, **options: Any) -> None:
    """A message that waits."""
    send_delay_message(key, data, id=id, delay=delay, **options)


def claim(broker: DatabaseBackend, key: str = "order.close", worker: str = "host:1", queue: str = "default") -> Claimed:
    """Lease the one message of a key that is due."""
    (message,) = claim_some(broker, [ClaimRequest(queue, key, 1)], worker)
    return message


def settle(broker: DatabaseBackend, message: Claimed, verb: SettleAction, **ending: Any) -> None:
    """End its lease."""
    assert broker.queue.apply([settlement(message, verb, **ending)]) == [True]


def bury(
    broker: DatabaseBackend,
    *ids: str,
    data: Any = None,
    key: str = "order.close",
    error: str = "ValueError: no",
    detail: str = "Traceback: no",
    fingerprint: str = "",
    **options: Any,
) -> None:
    """Messages that were sent, claimed and buried."""
    for id in ids:
        send(id, data, key=key, **options)
        settle(
            broker,
            claim(broker, key),
            SettleAction.BURY,
            error=error,
            detail=detail,
            failed=True,
            fingerprint=fingerprint,
        )


def finish(broker: DatabaseBackend, *ids: str, data: Any = None, key: str = "order.close") -> None:
    """Messages that were sent, claimed and finished."""
    for id in ids:
        send(id, data, key=key)
        settle(broker, claim(broker, key), SettleAction.FINISH)


def report(database: str, **fields: Any) -> None:
    """A row of the report."""
    figures = {"messages": 200, "finished": 197, "failed": 1, "cancelled": 2, "retried": 30, "fingerprint": ""}
    lateness = {"lateness_p50": 20, "lateness_p95": 1500, "lateness_p99": 90_000}
    of_what = {"alias": "default", "queue": "default", "key": "order.close", "hour": datetime(2026, 11, 1, tzinfo=UTC)}
    ReportRow(**{**figures, **lateness, **of_what, **fields}).save(using=database)


def asked(queries: CaptureQueriesContext) -> list[str]:
    """The statements that find something: not those that begin and end a transaction, or limit the time on MariaDB."""
    statements = (query["sql"] for query in queries)
    return [sql for sql in statements if sql not in ("BEGIN", "COMMIT") and "SESSION" not in sql]


def text_of(response: Any) -> str:
    """Return what a page shows, without its tags."""
    html = page(response).split("<main", 1)[-1]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def page(response: Any) -> str:
    """The HTML of a page that is there."""
    assert response.status_code == 200, response
    html: str = response.content.decode()
    return html


def shown_ids(response: Any) -> list[str]:
    """The ids in a list, from its top."""
    return [unescape(id) for id in re.findall(r'class="field-message_id"><a [^>]*>([^<]*)</a>', page(response))]


def searched(client: Client, model: type[MessageRow], text: str, **filters: str) -> str:
    """Send the search box of a list: the query string of the address that it leads to."""
    response = client.post(url(LISTS[model]), {**filters, "q": text})
    assert response.status_code == 302
    return response["Location"].removeprefix(url(LISTS[model]))


def ask(client: Client, model: type[MessageRow], action: str, pks: Iterable[int], **options: Any) -> Any:
    """Choose an action in a list, with these rows ticked: the page that asks for confirmation."""
    return _post(client, model, {"action": action, "index": "0"}, pks, **options)


def confirm(client: Client, model: type[MessageRow], action: str, pks: Iterable[int], **options: Any) -> Any:
    """Confirm an action, and follow to the page that tells what was done."""
    return _post(client, model, {"action": action, "post": "yes"}, pks, follow=True, **options)


def _post(
    client: Client,
    model: type[MessageRow],
    data: dict[str, str],
    pks: Iterable[int],
    *,
    all_that_match: bool = False,
    query: str = "",
    follow: bool = False,
    **fields: Any,
) -> Any:
    posted = {**data, **fields, "_selected_action": [str(pk) for pk in pks]}
    if all_that_match:
        posted["select_across"] = "1"
    return client.post(url(LISTS[model], query=query), posted, follow=follow)


def reschedule_three(monkeypatch: pytest.MonkeyPatch, client: Client, database: str) -> Callable[..., Any]:
    """Send three messages, due in two hours, and ask whether to reschedule all of them, in the background.

    Return a function that answers with a new due time, however often.
    """
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    monkeypatch.setattr(changes, "PAGE", 2)
    jobs.register("default")
    for id in ("a1", "a2", "a3"):
        send(id, delay="2h")
    options: dict[str, Any] = {"all_that_match": True, "query": "?key=order.close"}
    pks = [pk_of(database, "a1")]
    asked = page(ask(client, ReadyMessage, "reschedule", pks, **options))
    (name,) = re.findall(r'name="job" value="(\w{32})"', asked)
    return partial(confirm, client, ReadyMessage, "reschedule", pks, job=name, **options)


def take_a_step(broker: DatabaseBackend, database: str) -> None:
    """Have a worker take the next step of the one job that there is."""
    leased = claim(broker, changes.KEY)
    row = ReadyMessage.objects.using(database).get(message_id=leased.id)
    with transaction.atomic(using=database):
        job = decode_data(row.data.encode(), jobs.Job)
        jobs.move_next_page(Message(row.message_id, row.key, job, 0, 0, 0, token=leased.token))
    settle(broker, leased, SettleAction.FINISH)


def pk_of(database: str, id: str, model: type[MessageRow] = ReadyMessage) -> int:
    """The primary key of the message of this id in a table."""
    pk: int = model._default_manager.using(database).get(message_id=id).pk
    return pk


def ids_in(database: str, model: type[MessageRow]) -> set[str]:
    """The ids in a table."""
    return set(model._default_manager.using(database).values_list("message_id", flat=True))


def content(database: str) -> dict[str, Any]:
    """All that is in the tables, and in the broker."""
    tables = {
        model._meta.db_table: list(model._default_manager.using(database).order_by("pk").values())
        for model in apps.get_app_config("delayq").get_models()
    }
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    return tables | {
        "waiting alarms": clock_of(broker).queue.counts().waiting,
        "pauses": clock_of(broker).presence.pauses(),
    }


def forget_settings() -> None:
    """Have the settings read again, as at the start of a process."""
    conf._cache.clear()


def due_times(database: str) -> dict[str, Any]:
    """Return when waiting messages are due, by id."""
    return dict(ReadyMessage.objects.using(database).values_list("message_id", "due_at"))
