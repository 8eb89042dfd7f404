"""Mending a payload: checked against the handler's type, rescued under the same key, the difference kept."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from pytest_django import Settings

from django_delayq import Message, delay_execute, get_delay_message
from django_delayq.admin.message import payload
from django_delayq.brokers.base import SettleAction
from django_delayq.core.history import Ended, read
from django_delayq.models import ErrorMessage, PayloadDifference, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import bury, claim, ids_in, page, pk_of, send, settle, text_of, url

EDITOR = ("view_errormessage", "edit_payload", "view_payload", "rescue_message")


@dataclass
class Order:
    """What the handler wants."""

    number: int
    note: str = ""


def mend(client: Client, address: str, typed: str, **options: Any) -> Any:
    """Open the page, type another payload, and send it."""
    return client.post(address, {"payload": typed, "seen": seen_on(client.get(address))}, **options)


def seen_on(response: Any) -> str:
    """Return what the page sends along to tell which payload it has shown."""
    found = re.search(r'name="seen" value="(\w+)"', page(response))
    assert found
    return found[1]


@pytest.fixture
def closed(broker: DatabaseBackend, registry: None) -> list[Order]:
    """The orders that the handler of "order.close" has closed."""
    done: list[Order] = []

    @delay_execute(key="order.close")
    def close_order(message: Message[Order]) -> None:
        done.append(message.data)

    return done


@pytest.fixture
def failed(closed: list[Order], broker: DatabaseBackend, database: str) -> str:
    """The address at which the payload of a failed message, a number that is wrong, is changed."""
    bury(broker, "order:42:close", data=Order(41))
    return url("errormessage", pk_of(database, "order:42:close", ErrorMessage), "payload")


def test_a_mended_message_runs_with_its_new_payload(
    failed: str, closed: list[Order], superuser: Client, database: str
) -> None:
    assert '"number": 41' in text_of(superuser.get(failed))
    response = mend(superuser, failed, '{"number": 42}', follow=True)
    assert "The payload was changed, and the message was rescued." in text_of(response)
    assert ids_in(database, ErrorMessage) == set()
    run_due()
    assert closed == [Order(42)]


def test_it_keeps_its_primary_key_and_all_that_it_was_sent_with(
    closed: list[Order], broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    kept = ("pk", "message_id", "queue", "tag", "trace_id", "max_attempts", "timeout_ms", "at_most_once", "sent_at")
    options: dict[str, Any] = {"tag": ("order:42", "customer:3"), "trace_id": "t", "max_attempts": 2, "timeout": "9s"}
    bury(broker, "a", data=Order(41), at_most_once=True, expires="1h", **options)
    ErrorMessage.objects.using(database).update(sent_at=datetime(2026, 1, 1, tzinfo=UTC))
    before = ErrorMessage.objects.using(database).get()
    mend(superuser, url("errormessage", before.pk, "payload"), '{"number": 42}')
    after = ReadyMessage.objects.using(database).get()
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    info = get_delay_message("a")
    assert info is not None
    assert info.tags == ("order:42", "customer:3")
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
        ("[1", """The data is no JSON: Input data was truncated. You typed '[1'; write it like {"id": 17},"""),
        ("{}", "missing required field `number`"),
    ],
)
def test_what_the_handler_would_refuse_changes_nothing(
    failed: str, superuser: Client, database: str, typed: str, why: str
) -> None:
    response = mend(superuser, failed, typed)
    assert why in text_of(response)
    assert ids_in(database, ErrorMessage) == {"order:42:close"}
    assert ids_in(database, ReadyMessage) == set()
    assert not LogEntry.objects.exists()


def test_a_payload_that_is_too_large_changes_nothing(
    failed: str, superuser: Client, database: str, settings: Settings, stored_delayq: dict[str, Any]
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"max_data": 40}}}
    response = mend(superuser, failed, f'{{"number": 42, "note": "{"x" * 50}"}}')
    assert "max_data" in text_of(response)
    assert ids_in(database, ErrorMessage) == {"order:42:close"}


def test_a_message_whose_id_waits_again_is_left(failed: str, superuser: Client, database: str) -> None:
    send("order:42:close", Order(7), delay="1h")
    response = mend(superuser, failed, '{"number": 42}')
    assert "its id waits again: nothing was changed" in text_of(response)
    assert ReadyMessage.objects.using(database).get().data == '{"number":7,"note":""}'


def test_an_older_failure_of_the_same_id_is_left_and_so_is_the_later_one(
    failed: str, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "order:42:close", data=Order(7))
    response = mend(superuser, failed, '{"number": 42}')
    assert "failed again later" in text_of(response)
    assert ErrorMessage.objects.using(database).count() == 2
    assert ids_in(database, ReadyMessage) == set()


def test_the_difference_is_kept_for_those_who_may_see_payloads(
    failed: str, superuser: Client, staff: Callable[..., Client]
) -> None:
    response = mend(superuser, failed, '{"number": 42, "note": ""}')
    address = response["Location"]
    shown = text_of(superuser.get(address, follow=True))
    assert re.search(
        r"Payload changed and rescued: #\w{16} @@ -1,3 \+1,3 @@ \{ - \"number\": 41, \+ \"number\": 42,", shown
    )
    hidden = text_of(staff("view_readymessage", "view_errormessage").get(address, follow=True))
    assert "Payload changed and rescued" in hidden
    assert '"number"' not in hidden
    assert "root" in hidden


def test_the_difference_goes_with_the_message_and_the_log_keeps_a_hash(
    failed: str, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    mend(superuser, failed, '{"number": 4222, "note": ""}')
    kept = PayloadDifference.objects.using(database)
    assert [(each.message_id, each.who, "4222" in each.difference) for each in kept] == [
        ("order:42:close", "root", True)
    ]
    settle(broker, claim(broker), SettleAction.BURY, error="ValueError: no", failed=True)
    assert broker.queue.purge_failed(["order:42:close"]) == [True]
    assert not kept.all().exists()
    assert "4222" not in "".join(LogEntry.objects.values_list("change_message", flat=True))


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
    broker: DatabaseBackend,
    database: str,
) -> None:
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"mask": "tests.admin.masks.without_card"}}}
    assert superuser.get(failed).status_code == 200  # the hook leaves this one as it is
    page_of_message = failed.replace("/payload/", "/change/")
    assert failed in page(superuser.get(page_of_message))
    ErrorMessage.objects.using(database).update(data='{"card": "4111"}')
    assert superuser.get(failed).status_code == 403
    assert failed not in page(superuser.get(page_of_message))


def test_what_another_has_changed_meanwhile_is_shown_and_not_overwritten(
    failed: str, broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client], database: str
) -> None:
    seen = seen_on(superuser.get(failed))
    mend(staff(*EDITOR), failed, '{"number": 7}')
    settle(broker, claim(broker), SettleAction.BURY)
    mine = {"payload": '{"number": 42}', "seen": seen}
    response = superuser.post(failed, mine)
    assert "The payload was changed since you opened this page" in text_of(response)
    assert '{"number": 42}</textarea>' in unescape(page(response))
    assert "The payload as it is now" in text_of(response)
    assert '"number": 7' in text_of(response)
    assert ErrorMessage.objects.using(database).get().data == '{"number":7}'
    superuser.post(failed, mine | {"seen": seen_on(response)})
    assert ReadyMessage.objects.using(database).get().data == '{"number":42}'


def test_what_was_typed_for_a_message_that_has_moved_on_is_kept(
    failed: str, broker: DatabaseBackend, superuser: Client
) -> None:
    seen = seen_on(superuser.get(failed))
    broker.queue.rescue(["order:42:close"])
    response = superuser.post(failed, {"payload": '{"number": 42}', "seen": seen})
    assert "The message has moved on: nothing was changed." in text_of(response)
    assert '{"number": 42}</textarea>' in unescape(page(response))
    assert 'type="submit"' not in page(response).split('id="content-main"')[1]


def test_a_difference_that_was_kept_before_there_was_a_mask_is_masked(
    closed: list[Order],
    superuser: Client,
    settings: Settings,
    stored_delayq: dict[str, Any],
    broker: DatabaseBackend,
    database: str,
) -> None:
    bury(broker, "a", data={"card": "4111", "n": 1}, key="pay")
    bury(broker, "b", data={"card": "4111"}, key="pay")
    pks = [pk_of(database, id, ErrorMessage) for id in "ab"]
    mend(superuser, url("errormessage", pks[0], "payload"), '{"card": "4222", "n": 2}')
    mend(superuser, url("errormessage", pks[1], "payload"), '{"card": "4222"}')
    first, second = (url("readymessage", pk, "change") for pk in pks)
    assert '- "card": "4111", - "n": 1 + "card": "4222", + "n": 2' in text_of(superuser.get(first))
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": {"mask": "tests.admin.masks.without_card"}}}
    shown = text_of(superuser.get(first))
    assert '"card": "masked for pay", - "n": 1 + "n": 2' in shown
    assert "What was changed is masked." in text_of(superuser.get(second))
    assert not {"4111", "4222"} & set(re.findall(r"\d{4}", shown + text_of(superuser.get(second))))
    entry = LogEntry.objects.get(object_id=str(pks[0]))
    entry.change_message = 'Payload changed and rescued\n@@ -1,2 +1,2 @@\n {\n-  "card": "4111"\n+  "card": "4222"'
    entry.save()  # as it was kept once, without what was around
    shown = text_of(superuser.get(first))
    assert "What was changed is hidden, because payloads are masked." in shown
    assert "4111" not in shown


@pytest.fixture
def most_compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many lines difflib, whose time grows with their square, has compared each time."""
    given: list[int] = []

    def matcher(junk: None, was: list[str], now: list[str]) -> Any:
        given.append(max(len(was), len(now)))
        return SequenceMatcher(junk, was, now)

    monkeypatch.setattr(payload, "SequenceMatcher", matcher)
    return given


def test_of_very_many_lines_that_differ_the_first_are_shown_and_none_is_compared_with_all_the_others(
    closed: list[Order], broker: DatabaseBackend, superuser: Client, database: str, most_compared: list[int]
) -> None:
    before, after = ([{"sku": f"S{i % 150}", "qty": i % 7 + more} for i in range(8_000)] for more in (0, 1))
    bury(broker, "a", data=before, key="restock")
    pk = pk_of(database, "a", ErrorMessage)
    mend(superuser, url("errormessage", pk, "payload"), json.dumps(after))
    shown = text_of(superuser.get(url("readymessage", pk, "change")))
    assert "Each line compared with the one in its place, 8000 differ. The first 20:" in shown
    assert '@@ 4 @@ - "qty": 0 + "qty": 1 @@ 8 @@ - "qty": 1 + "qty": 2 @@ 12 @@' in shown
    assert shown.count("@@ - ") == payload.FIRST_LINES
    assert most_compared == []


def test_few_lines_that_differ_amid_very_many_are_shown_with_what_is_around_them(
    closed: list[Order], broker: DatabaseBackend, superuser: Client, database: str, most_compared: list[int]
) -> None:
    before = list(range(5_000))
    bury(broker, "a", data=before, key="restock")
    after = [*before[:2_000], "new", *before[2_000:2_010], *before[2_012:]]
    pk = pk_of(database, "a", ErrorMessage)
    mend(superuser, url("errormessage", pk, "payload"), json.dumps(after))
    shown = text_of(superuser.get(url("readymessage", pk, "change")))
    assert '@@ -2001,2 +2001,3 @@ 1999, + "new", 2000, @@ -2011,4 +2012,2 @@ 2009, - 2010, - 2011, 2012,' in shown
    assert most_compared == [14]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[\n  1\n]", "[\n  1,\n  1\n]"),
        ("1", "2"),
        ("", "{}"),
        ("a\nb\nb\nc", "a\nb\nc"),
        ("a\n", "a"),
        ("-\n+", "+\n-\n "),
    ],
)
def test_of_a_kept_difference_each_payload_can_be_had_back(before: str, after: str) -> None:
    kept = payload.kept_difference(before, after).split("\n")
    assert "\n".join(line[1:] for line in kept if line[0] in " -") == before
    assert "\n".join(line[1:] for line in kept if line[0] in " +") == after
    assert payload.kept_difference(after, after) == ""


def test_a_payload_whose_difference_can_not_be_told_is_not_changed(
    failed: str, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*lists: Any) -> Any:
        raise SystemExit  # as a web server ends a process that took too long

    monkeypatch.setattr(payload, "_same_at_both_ends", ends)
    with pytest.raises(SystemExit):
        mend(superuser, failed, '{"number": 42}')
    assert ids_in(database, ErrorMessage) == {"order:42:close"}


@pytest.fixture
def waiting(closed: list[Order], broker: DatabaseBackend, database: str) -> str:
    """The address at which the payload of a message that waits is changed."""
    send("order:42:close", Order(41), delay="1h", tag=("order:42", "customer:3"))
    return url("readymessage", pk_of(database, "order:42:close"), "payload")


def test_a_message_that_waits_gets_its_new_payload_and_stays_as_it_is_otherwise(
    waiting: str, closed: list[Order], superuser: Client, database: str
) -> None:
    row = ReadyMessage.objects.using(database)
    before = row.values().get()
    response = mend(superuser, waiting, '{"number": 42}', follow=True)
    assert "The payload was changed." in text_of(response)
    assert row.values().get() == before | {"data": '{"number":42}'}
    assert "Payload changed" in LogEntry.objects.get().change_message
    assert PayloadDifference.objects.using(database).count() == 1
    run_due(until="1h")
    assert closed == [Order(42)]


def test_a_payload_that_no_worker_could_start_changes_nothing(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str
) -> None:
    @delay_execute(key="order.close", max_concurrency=1, concurrency_key="account:{account}")
    def close_order(message: Message[dict[str, int]]) -> None: ...

    close_order.send({"account": 1}, id="a", delay="1h")
    response = mend(superuser, url("readymessage", pk_of(database, "a"), "payload"), "{}")
    assert "names 'account', which this data doesn't have" in text_of(response)
    assert ReadyMessage.objects.using(database).get().data == '{"account":1}'


def test_a_message_that_runs_meanwhile_keeps_its_payload(
    waiting: str, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    opened = superuser.get(waiting)
    ReadyMessage.objects.using(database).update(token=1)
    response = superuser.post(waiting, {"payload": '{"number": 42}', "seen": seen_on(opened)})
    assert "The message runs, or has moved on: nothing was changed." in text_of(response)
    assert '"number":41' in ReadyMessage.objects.using(database).get().data
    assert not LogEntry.objects.exists()


def test_only_a_message_that_does_not_run_offers_to_change_its_payload(
    waiting: str, staff: Callable[..., Client], database: str
) -> None:
    editor = staff("view_readymessage", "edit_payload", "view_payload")
    address = waiting.replace("payload", "change")
    assert waiting in page(editor.get(address))
    assert waiting not in page(staff("view_readymessage", "view_payload").get(address))
    ReadyMessage.objects.using(database).update(token=1)
    assert waiting not in page(editor.get(address))
