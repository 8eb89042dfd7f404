"""Mending a payload: checked against the handler's type, run again under the same key, the difference kept."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from pytest_django import Settings

from django_delayq import Message, delay_execute
from django_delayq.history import Ended, read
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import StoredBroker
from django_delayq.testing import run_due
from tests.admin.support import bury, ids_in, page, pk_of, send, text_of, url

EDITOR = ("view_errormessage", "edit_payload", "view_payload", "rescue_message")


@dataclass
class Order:
    """What the handler wants."""

    number: int
    note: str = ""


@pytest.fixture
def closed(broker: StoredBroker, registry: None) -> list[Order]:
    """The orders that the handler of "order.close" has closed."""
    done: list[Order] = []

    @delay_execute(key="order.close")
    def close_order(message: Message[Order]) -> None:
        done.append(message.data)

    return done


@pytest.fixture
def failed(closed: list[Order], broker: StoredBroker, database: str) -> str:
    """The address at which the payload of a failed message, a number that is wrong, is changed."""
    bury(broker, "order:42:close", data=Order(41))
    return url("errormessage", pk_of(database, "order:42:close", ErrorMessage), "payload")


def test_a_mended_message_runs_with_its_new_payload(
    failed: str, closed: list[Order], superuser: Client, database: str
) -> None:
    assert '"number": 41' in text_of(superuser.get(failed))
    response = superuser.post(failed, {"payload": '{"number": 42}'}, follow=True)
    assert "The payload was changed, and the message runs again." in text_of(response)
    assert ids_in(database, ErrorMessage) == set()
    run_due()
    assert closed == [Order(42)]


def test_it_keeps_its_primary_key_and_all_that_it_was_sent_with(
    closed: list[Order], broker: StoredBroker, superuser: Client, database: str
) -> None:
    kept = ("pk", "message_id", "queue", "tag", "trace_id", "max_attempts", "timeout_ms", "at_most_once", "sent_at")
    options: dict[str, Any] = {"tag": "order:42", "trace_id": "t", "max_attempts": 2, "timeout": "9s"}
    bury(broker, "a", data=Order(41), at_most_once=True, expires="1h", **options)
    ErrorMessage.objects.using(database).update(sent_at=datetime(2026, 1, 1, tzinfo=UTC))
    before = ErrorMessage.objects.using(database).get()
    superuser.post(url("errormessage", before.pk, "payload"), {"payload": '{"number": 42}'})
    after = ReadyMessage.objects.using(database).get()
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert after.expires_at is not None
    assert before.expires_at is not None
    assert after.expires_at - after.scheduled_at == before.expires_at - before.scheduled_at
    (failed,) = read(after.history)
    assert (failed.outcome, failed.error, failed.traceback) == (Ended.BURIED, before.error, before.detail)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ('{"number": "many"}', "Expected `int`, got `str` - at `data.number`"),
        ('{"number": 42', "Input data was truncated"),
        ("{}", "missing required field `number`"),
    ],
)
def test_what_the_handler_would_refuse_changes_nothing(
    failed: str, superuser: Client, database: str, typed: str, why: str
) -> None:
    response = superuser.post(failed, {"payload": typed})
    assert why in text_of(response)
    assert ids_in(database, ErrorMessage) == {"order:42:close"}
    assert ids_in(database, ReadyMessage) == set()
    assert not LogEntry.objects.exists()


def test_a_payload_that_is_too_large_changes_nothing(
    failed: str, superuser: Client, database: str, settings: Settings, stored_delayq: dict[str, Any]
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"max_data": 40}}}
    response = superuser.post(failed, {"payload": f'{{"number": 42, "note": "{"x" * 50}"}}'})
    assert "max_data" in text_of(response)
    assert ids_in(database, ErrorMessage) == {"order:42:close"}


def test_a_message_whose_id_waits_again_is_left(failed: str, superuser: Client, database: str) -> None:
    send("order:42:close", Order(7), delay="1h")
    response = superuser.post(failed, {"payload": '{"number": 42}'})
    assert "its id waits again: nothing was changed" in text_of(response)
    assert ReadyMessage.objects.using(database).get().data == '{"number":7,"note":""}'


def test_an_older_failure_of_the_same_id_is_left_and_so_is_the_later_one(
    failed: str, broker: StoredBroker, superuser: Client, database: str
) -> None:
    bury(broker, "order:42:close", data=Order(7))
    response = superuser.post(failed, {"payload": '{"number": 42}'})
    assert "failed again later" in text_of(response)
    assert ErrorMessage.objects.using(database).count() == 2
    assert ids_in(database, ReadyMessage) == set()


def test_the_difference_is_kept_for_those_who_may_see_payloads(
    failed: str, superuser: Client, staff: Callable[..., Client]
) -> None:
    response = superuser.post(failed, {"payload": '{"number": 42, "note": ""}'})
    address = response["Location"]
    shown = text_of(superuser.get(address, follow=True))
    assert 'Payload changed and run again @@ -1,3 +1,3 @@ { - "number": 41, + "number": 42, "note": ""' in shown
    hidden = text_of(staff("view_readymessage", "view_errormessage").get(address, follow=True))
    assert "Payload changed and run again" in hidden
    assert '"number"' not in hidden
    assert "root" in hidden


@pytest.mark.parametrize("missing", EDITOR)
def test_changing_a_payload_needs_each_of_its_permissions(
    failed: str, staff: Callable[..., Client], database: str, missing: str
) -> None:
    client = staff(*set(EDITOR) - {missing})
    assert client.get(failed).status_code == 403
    assert client.post(failed, {"payload": '{"number": 42}'}).status_code == 403
    assert ids_in(database, ErrorMessage) == {"order:42:close"}


def test_the_page_of_a_failed_message_leads_there_who_may(failed: str, staff: Callable[..., Client]) -> None:
    page_of_message = failed.replace("/payload/", "/change/")
    assert failed in page(staff(*EDITOR).get(page_of_message))
    assert failed not in page(staff("view_errormessage").get(page_of_message))


def test_a_masked_payload_can_not_be_changed(
    failed: str,
    superuser: Client,
    settings: Settings,
    stored_delayq: dict[str, Any],
    broker: StoredBroker,
    database: str,
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"mask": "tests.admin.masks.without_card"}}}
    assert superuser.get(failed).status_code == 200  # the hook leaves this one as it is
    page_of_message = failed.replace("/payload/", "/change/")
    assert failed in page(superuser.get(page_of_message))
    ErrorMessage.objects.using(database).update(data='{"card": "4111"}')
    assert superuser.get(failed).status_code == 403
    assert failed not in page(superuser.get(page_of_message))
