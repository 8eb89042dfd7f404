"""The page of a message tells its history, and shows its payload to those who may see it."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_delayq import (
    At,
    Batch,
    Cron,
    Send,
    Sequence,
    Step,
    Window,
    cancel_delay_messages,
    list_delay_messages,
    schedule_delay_message,
    stop_delay_sequences,
)
from django_delayq.admin.log import log_rows
from django_delayq.api import sequences as api
from django_delayq.brokers.base import CancelRequest, SettleAction
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.transitions import Span, cancel
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.returned import keep
from tests.admin.support import (
    LISTS,
    asked,
    bury,
    claim,
    confirm,
    finish,
    page,
    pk_of,
    searched,
    send,
    settle,
    text_of,
    url,
)


def open_page(client: Client, database: str, id: str, model: type[MessageRow] = ReadyMessage, **options: Any) -> Any:
    """The page of the message of this id in a table."""
    pk = model._default_manager.using(database).get(message_id=id).pk
    return client.get(url(LISTS[model], pk, "change"), **options)


def test_a_waiting_message_says_when_it_is_due_here_and_in_utc(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", {"order": 42}, delay="1h30m", tag="order:42")
    row = ReadyMessage.objects.using(database).get()
    shown = text_of(open_page(superuser, database, "a"))
    assert f"{row.due_at:%Y-%m-%d %H:%M:%S}" in shown
    assert "Due in 1h" in shown
    assert '"order": 42' in shown
    assert "it stays parked until a worker comes" in shown  # no worker runs


def test_a_message_that_a_limit_has_put_off_says_when_it_was_first_due(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", 1)
    assert "First due" not in text_of(open_page(superuser, database, "a"))
    settle(broker, claim(broker, "order.close"), SettleAction.RELEASE, delay_ms=60_000)
    row = ReadyMessage.objects.using(database).get()
    _before, first_due = text_of(open_page(superuser, database, "a")).split("First due")
    assert f"{row.scheduled_at:%Y-%m-%d %H:%M:%S}" in first_due.split("UTC")[1]
    ReadyMessage.objects.using(database).update(due_at=row.scheduled_at + timedelta(milliseconds=1))
    settle(broker, claim(broker, "order.close"), SettleAction.BURY)
    assert "First due" in text_of(open_page(superuser, database, "a", ErrorMessage))


def test_a_member_names_its_batch_in_whatever_state(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    with Batch("done") as batch:
        batch.send_many(Send("k", number) for number in range(3))
    finished, buried, runs = (claim(broker, "k") for _ in range(3))
    settle(broker, finished, SettleAction.FINISH)
    settle(broker, buried, SettleAction.BURY)
    models: dict[str, type[MessageRow]] = {finished.id: FinishMessage, buried.id: ErrorMessage, runs.id: ReadyMessage}
    for id, model in models.items():
        shown = text_of(open_page(superuser, database, id, model))
        assert f"It is a member of the batch '{batch.id}'. Members that have ended: 2 of 3." in shown


def test_a_step_that_a_stop_has_cancelled_names_the_stop(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "by_alias", {})
    dunning = Sequence("dunning", [Step("k", "3d"), Step("k", "7d")])
    dunning.start(id="invoice:17", tag="customer:3")
    stop_delay_sequences(tag="customer:3")
    shown = text_of(open_page(staff("view_finishmessage"), database, "dunning:invoice:17@1", FinishMessage))
    assert "Nothing: it is over. It was step 1 of the sequence 'dunning', started as 'invoice:17'." in shown
    assert "UTC, by the tag 'customer:3', and this message was cancelled." in shown


def test_a_failed_step_is_explained_itself_and_not_what_came_later_under_its_id(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "by_alias", {})
    dunning = Sequence("dunning", [Step("k"), Step("k", "7d")])
    dunning.start(id="invoice:17")
    settle(broker, claim(broker, "k"), SettleAction.BURY)
    shown = text_of(open_page(superuser, database, "dunning:invoice:17@1", ErrorMessage))
    assert "It is step 1 of 2 of the sequence 'dunning', started as 'invoice:17'. Once it was rescued" in shown
    dunning.stop("invoice:17")
    dunning.start(id="invoice:17")
    shown = text_of(open_page(superuser, database, "dunning:invoice:17@1", ErrorMessage))
    assert "Nothing until it is rescued, purged or pruned." in shown
    assert "It is step" not in shown
    shown = text_of(open_page(superuser, database, "dunning:invoice:17@1"))
    assert "It is step 1 of 2 of the sequence 'dunning'" in shown


def test_an_occurrence_names_its_schedule(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    schedule_delay_message("k", name="report.daily", every=Cron("0 9 * * *", zone="Europe/Rome"))
    row = ReadyMessage.objects.using(database).get()
    shown = text_of(open_page(superuser, database, row.message_id))
    assert "of the schedule 'report.daily': At 09:00 every day in Europe/Rome. The next occurrence is" in shown


def test_a_running_message_says_who_holds_it(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a")
    claim(broker, worker="host:7")
    shown = text_of(open_page(superuser, database, "a"))
    assert "running on host:7" in shown
    assert "It ends as its handler does" in shown


def test_a_running_message_says_how_many_sends_were_merged_into_the_one_that_is_kept(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a")
    claim(broker)
    for number in range(3):
        send("a", number, on_conflict="replace", while_running="again")
    shown = text_of(open_page(superuser, database, "a"))
    assert "Merged sends 2" in shown
    (listed,) = list_delay_messages()
    assert listed.merged == 2
    assert listed.again_at is not None


def test_a_failed_message_shows_its_traceback(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    bury(broker, "a", error="ValueError: no card", detail="Traceback (most recent call last):\n  pay()")
    shown = text_of(open_page(superuser, database, "a", ErrorMessage))
    for words in ("ValueError: no card", "Traceback (most recent call last): pay()", "until it is rescued"):
        assert words in shown


def test_the_rule_of_the_due_time_is_shown_in_words(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    window = Window("mon-sun", "00:00", "24:00", zone="Europe/Rome")
    send("a", delay=None, at=At(days=3, time="09:00", zone="Europe/Rome"))
    send("b", delay="1h")
    assert "3 days on" in text_of(open_page(superuser, database, "a"))
    assert "Rule of the due time" not in text_of(open_page(superuser, database, "b"))
    for id, action, model in (("c", SettleAction.FINISH, FinishMessage), ("d", SettleAction.BURY, ErrorMessage)):
        send(id, window=window)
        settle(broker, claim(broker), action)
        assert "in the window from here on in Europe/Rome" in text_of(open_page(superuser, database, id, model))


def test_links_lead_to_what_has_the_same_tag(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", tag=("order:42 & more", "customer:3"))
    shown = page(open_page(superuser, database, "a"))
    for query in "?q=order%3A42+%26+more", "?q=customer%3A3":
        assert url("errormessage", query=query) in shown


def test_the_page_of_a_message_that_moved_leads_to_where_it_is(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a")
    pk = ReadyMessage.objects.using(database).get().pk
    cancel_delay_messages("a")
    assert FinishMessage.objects.using(database).get().pk == pk
    response = superuser.get(url("readymessage", pk, "change"))
    assert response["Location"] == url("finishmessage", pk, "change")


@pytest.mark.parametrize("pk", ["999999", "no number"])
def test_a_page_that_is_not_there_leads_to_the_list(broker: DatabaseBackend, superuser: Client, pk: str) -> None:
    response = superuser.get(url("errormessage", pk, "change"), follow=True)
    assert response.redirect_chain == [(url("errormessage"), 302)]
    assert "There is no message" in text_of(response)


def test_a_broker_that_is_away_takes_nothing_from_the_page_but_who_would_run_it(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise BrokerUnavailable("Redis does not answer.")

    send("a", delay="1h")
    monkeypatch.setattr(broker.broker.presence, "workers", away)
    shown = text_of(open_page(superuser, database, "a"))
    assert "When it is due the first worker with a free slot runs it." in shown


def test_what_was_done_to_a_row_of_another_database_is_not_told_of_this_one(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", delay="1h")
    pk = pk_of(database, "a")
    elsewhere = ReadyMessage(pk=pk, alias="default", key="order.close", message_id="b")
    log_rows(User.objects.get().pk, [elsewhere], "Run now")
    assert "What operators did" not in text_of(open_page(superuser, database, "a"))
    log_rows(User.objects.get().pk, [ReadyMessage.objects.using(database).get(pk=pk)], "Run now")
    assert "What operators did" in text_of(open_page(superuser, database, "a"))


def test_what_was_done_to_a_message_of_another_alias_leads_to_it(
    settings: Settings, stored_delayq: dict[str, Any], superuser: Client, database: str
) -> None:
    settings.DELAYQ = {"default": stored_delayq, "mail": stored_delayq}
    send("a", delay="1h", using="mail")
    log_rows(User.objects.get().pk, [ReadyMessage.objects.using(database).get()], "Run now")
    shown = text_of(superuser.get(LogEntry.objects.get().get_admin_url() or "", follow=True))
    assert "Alias mail" in shown
    assert "What operators did" in shown


def test_payloads_are_shown_to_those_who_may_see_them(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    bury(broker, "a", data={"card": "4111"})
    assert "4111" not in page(open_page(staff("view_errormessage"), database, "a", ErrorMessage))
    assert "4111" in page(open_page(staff("view_errormessage", "view_payload"), database, "a", ErrorMessage))


def test_who_may_not_see_payloads_finds_nothing_in_them(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    send("a", {"card": "4111"})
    response = staff("view_readymessage").get(url("readymessage"), {"q": "data.card=4111"})
    assert "you may not look into payloads" in text_of(response)
    assert ">a</a>" not in page(response)


def test_what_a_task_returned_is_shown_to_who_may_see_payloads(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client], database: str
) -> None:
    finish(broker, "a", "plain", data={"order": 42})
    keep(broker.queue.database, "a", '{"invoice": 4711}')
    shown = text_of(open_page(superuser, database, "a", FinishMessage))
    assert "Returned value" in shown
    assert '"invoice": 4711' in shown
    assert "Returned value" not in text_of(open_page(superuser, database, "plain", FinishMessage))
    assert "4711" not in page(open_page(staff("view_finishmessage"), database, "a", FinishMessage))


@pytest.mark.parametrize(
    ("mask", "shown"), [("without_card", "masked for order.close"), ("failing", "failed: RuntimeError")]
)
def test_a_hook_masks_payloads_for_everybody(
    settings: Settings,
    stored_delayq: dict[str, Any],
    broker: DatabaseBackend,
    superuser: Client,
    database: str,
    mask: str,
    shown: str,
) -> None:
    options = stored_delayq["OPTIONS"] | {"mask": f"tests.admin.masks.{mask}"}
    settings.DELAYQ = {"default": stored_delayq | {"OPTIONS": options}}
    send("a", {"card": "4111", "order": 1})
    response = open_page(superuser, database, "a")
    assert shown in text_of(response)
    assert "4111" not in page(response)
    found = superuser.get(url("readymessage", query=searched(superuser, ReadyMessage, "data.card=4111")))
    assert "or they are masked" in text_of(found)


def test_text_that_would_be_shown_in_another_order_is_escaped(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", "\u202etxt.exe")
    assert '"\\u202etxt.exe"' in text_of(open_page(superuser, database, "a"))


def test_a_finished_message_is_over(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    finish(broker, "a")
    assert "Nothing: it is over." in text_of(open_page(superuser, database, "a", FinishMessage))


@pytest.mark.parametrize(("tag", "most"), [(None, 10), ("t", 11)])
def test_the_page_costs_at_most_ten_queries_and_one_for_tags(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str, tag: str | None, most: int
) -> None:
    send("a", tag=tag)
    client, address = staff("view_readymessage", "view_payload"), url("readymessage", pk_of(database, "a"), "change")
    client.get(address)  # the types of content are looked up once
    with CaptureQueriesContext(connections[database]) as queries:
        assert "It is parked" in text_of(client.get(address))
    assert len(asked(queries)) <= most, asked(queries)


@pytest.mark.parametrize("use_tz", [True, False])
def test_each_moment_has_its_seconds_and_its_zone(
    broker: DatabaseBackend, superuser: Client, database: str, settings: Settings, use_tz: bool
) -> None:
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "America/New_York"
    began = datetime.now(UTC)
    bury(broker, "a", delay=None, at=datetime(2026, 7, 1, 3, 30, 5, tzinfo=UTC))
    pk = pk_of(database, "a", ErrorMessage)
    confirm(superuser, ErrorMessage, "rescue", [pk])
    claim(broker)
    shown = page(superuser.get(url("readymessage", pk, "change")))
    times = re.findall(r'<time datetime="([^"]*)" title="[^"]*">([^<]*)</time>', shown)
    assert len(times) >= 5  # sent, due, held until, an attempt, what an operator did
    zoned = re.compile(r"\w+\.? \d+, \d{4} \d\d:\d\d:\d\d UTC\N{MINUS SIGN}0[45]:00")
    assert [said for _, said in times if not zoned.fullmatch(said)] == []
    apart = abs(datetime.fromisoformat(times[-1][0]) - began)
    assert apart < timedelta(hours=1)  # not hours, as in a wrong zone


def test_a_message_that_runs_says_how_far_it_is_and_who_asked_to_cancel_it(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a")
    held = claim(broker)
    broker.queue.renew([held], 60_000, {(held.id, held.token): "0.4 12 of <30>"})
    cancel_delay_messages("a", running=True, by="anna")
    said = text_of(open_page(superuser, database, "a"))
    assert "40 %, 12 of <30>" in said
    assert "anna" in said
    assert "It is cancelled when its handler stops" in said
    broker.queue.apply([cancel(held, CancelRequest("anna", 1), Span(held.claimed_ms, held.claimed_ms + 5))])
    said = text_of(open_page(superuser, database, "a", FinishMessage))
    assert "cancelled while it ran, by anna" in said
