"""The actions: confirmed, then done by the methods that everything else uses, and logged."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.test import Client

from django_delayq import get_delay_message
from django_delayq.admin.bulk import actions, changes, jobs
from django_delayq.admin.lists.admins import ErrorMessageAdmin
from django_delayq.admin.log import hashed
from django_delayq.api.send import send_own_message
from django_delayq.brokers import get_backend
from django_delayq.core.codec import decode_data
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage, Tally
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import (
    LISTS,
    ask,
    bury,
    claim,
    confirm,
    due_times,
    finish,
    ids_in,
    page,
    pk_of,
    reschedule_three,
    send,
    text_of,
    url,
)

READY = ("run_now", "reschedule", "cancel", "cancel_running", "purge")
ERROR = ("rescue", "purge_failed")


def logged() -> list[str]:
    """Return what Django's log says was done to which, oldest first."""
    said = [(entry.object_repr, entry.get_change_message()) for entry in LogEntry.objects.order_by("pk")]
    return [f"{text}: {message.splitlines()[0]}" for text, message in said]


def in_utc(moment: Any) -> str:
    """A moment as the log has it."""
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"


def test_selected_failed_messages_run_again_and_the_log_says_so(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a", "b", "c")
    pks = [pk_of(database, id, ErrorMessage) for id in "ab"]
    asked = text_of(ask(superuser, ErrorMessage, "rescue", pks))
    assert "2 messages." in asked
    assert ids_in(database, ErrorMessage) == {"a", "b", "c"}
    done = text_of(confirm(superuser, ErrorMessage, "rescue", pks))
    assert "Rescued: 2 messages." in done
    assert ids_in(database, ErrorMessage) == {"c"}
    assert ids_in(database, ReadyMessage) == {"a", "b"}
    hash_of_error = hashed("ValueError: no")
    assert logged() == [f"order.close {id}: Rescued: ValueError {hash_of_error}" for id in "ab"]


def test_an_operation_has_the_name_that_the_command_has() -> None:
    operations = {"rescue", "send_again", "cancel", "cancel_running", "reschedule", "run_now", "purge", "purge_failed"}
    assert set(changes.LABELS) == operations
    for name, label in changes.LABELS.items():
        own_name = name.removesuffix("_failed").removesuffix("_running")
        command = import_module(f"django_delayq.management.delayq.{own_name}")
        assert command.__name__.endswith(f".{str(label).lower().partition(',')[0].replace(' ', '_')}")


def test_finished_messages_are_sent_again_at_a_rate_and_the_log_says_so(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    finish(broker, "a", "b", "c", data=7)
    pks = [pk_of(database, id, FinishMessage) for id in "abc"]
    assert "At most" in text_of(ask(superuser, FinishMessage, "send_again", pks))
    assert "is no rate" in text_of(confirm(superuser, FinishMessage, "send_again", pks, rate="fast"))
    assert ids_in(database, ReadyMessage) == set()
    done = text_of(confirm(superuser, FinishMessage, "send_again", pks, rate="1/h"))
    assert "Sent again: 3 messages." in done
    assert ids_in(database, FinishMessage) == ids_in(database, ReadyMessage) == {"a", "b", "c"}
    times = sorted(due_times(database).values())
    assert [round((each - times[0]).total_seconds() / 3600) for each in times] == [0, 1, 2]
    assert [line.partition(" due_at")[0] for line in logged()] == [f"order.close {id}: Sent again:" for id in "abc"]
    assert "3 messages were left" in text_of(confirm(superuser, FinishMessage, "send_again", pks))


def test_what_was_sent_again_and_has_ended_again_is_not_sent_a_third_time(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    finish(broker, "a", "a")
    older, _newer = FinishMessage.objects.using(database).order_by("pk").values_list("pk", flat=True)
    assert "1 message was left" in text_of(confirm(superuser, FinishMessage, "send_again", [older]))
    assert ids_in(database, ReadyMessage) == set()


def test_all_that_match_are_sent_again_in_the_background_each_at_its_turn(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    monkeypatch.setattr(changes, "PAGE", 2)
    jobs.register("default")
    finish(broker, *"abcde")
    pks = [pk_of(database, "a", FinishMessage)]
    confirm(superuser, FinishMessage, "send_again", pks, all_that_match=True, rate="1/h", query="?key=order.close")
    run_due()
    times = sorted(due_times(database).values())
    assert [round((each - times[0]).total_seconds() / 3600) for each in times] == [0, 1, 2, 3, 4]


def test_one_is_moved_first_and_its_end_is_shown_before_the_rest(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a", "b", "c")
    pks = [pk_of(database, id, ErrorMessage) for id in "abc"]
    assert "One first" in page(ask(superuser, ErrorMessage, "rescue", pks))
    tried = ask(superuser, ErrorMessage, "rescue", pks, one="yes")
    assert "The first of them is now: a : ready" in text_of(tried)
    assert "2 messages." in text_of(tried)
    assert "Rescue: the rest" in page(tried)
    assert "One first" not in page(tried)
    assert ids_in(database, ReadyMessage) == {"a"}
    assert [line.partition(": ")[0] for line in logged()] == ["order.close a"]
    broker.queue.cancel(["a"])
    again = text_of(ask(superuser, ErrorMessage, "rescue", pks[1:], tried="a", look="yes"))
    assert "The first of them is now: a : cancelled" in again
    assert ids_in(database, ErrorMessage) == {"b", "c"}
    assert "Rescued: 2 messages." in text_of(confirm(superuser, ErrorMessage, "rescue", pks[1:], tried="a"))
    assert ids_in(database, ReadyMessage) == {"b", "c"}


def test_the_one_that_was_moved_first_is_not_shown_to_who_may_not_see_its_list(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    bury(broker, "a", "b")
    send("secret", delay="1h")
    client = staff("view_errormessage", "rescue_message")
    pks = [pk_of(database, id, ErrorMessage) for id in "ab"]
    shown = text_of(ask(client, ErrorMessage, "rescue", pks, tried="secret", look="yes"))
    assert "The first of them is not there any more, or you may not see it." in shown


def test_an_older_failure_of_an_id_does_not_run_the_newer_one(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a", "a")
    older, newer = ErrorMessage.objects.using(database).order_by("pk").values_list("pk", flat=True)
    assert "1 message was left" in text_of(confirm(superuser, ErrorMessage, "rescue", [older]))
    assert set(ErrorMessage.objects.using(database).values_list("pk", flat=True)) == {older, newer}
    confirm(superuser, ErrorMessage, "rescue", [newer])
    assert pk_of(database, "a") == newer


def test_what_waits_again_under_its_id_is_left_and_said(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a")
    send("a", delay="1h")
    done = text_of(confirm(superuser, ErrorMessage, "rescue", [pk_of(database, "a", ErrorMessage)]))
    assert "1 message was left: it runs, has moved on, or its id waits again. (a)" in done
    assert logged() == []


def test_run_now_makes_a_message_due(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="3d")
    confirm(superuser, ReadyMessage, "run_now", [pk_of(database, "a")])
    claim(broker)


def test_cancelled_messages_are_kept_as_such(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1h")
    confirm(superuser, ReadyMessage, "cancel", [pk_of(database, "a")])
    assert FinishMessage.objects.using(database).get().outcome == "cancelled"
    due = FinishMessage.objects.using(database).get().due_at
    assert logged() == [f"order.close a: Cancelled: due_at {in_utc(due)}"]


def test_what_runs_is_neither_cancelled_nor_deleted(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a")
    claim(broker)
    for action in ("cancel", "purge"):
        assert "1 message was left" in text_of(confirm(superuser, ReadyMessage, action, [pk_of(database, "a")]))
    assert ids_in(database, ReadyMessage) == {"a"}


def test_what_runs_is_asked_to_end_in_the_users_name(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a")
    claim(broker)
    send("b", delay="1h")
    pks = [pk_of(database, id) for id in "ab"]
    assert "What runs is asked to end" in text_of(ask(superuser, ReadyMessage, "cancel_running", pks))
    assert "Cancelled, or asked to end: 2 messages." in text_of(confirm(superuser, ReadyMessage, "cancel_running", pks))
    row = ReadyMessage.objects.using(database).get()
    user = LogEntry.objects.first()
    assert user is not None
    assert (row.message_id, row.cancel_by) == ("a", user.user.get_username())
    assert FinishMessage.objects.using(database).get().message_id == "b"
    assert [line.split(": due_at")[0] for line in logged()] == [
        f"order.close {id}: Cancelled, or asked to end" for id in "ab"
    ]


@pytest.mark.parametrize(("model", "action"), [(ReadyMessage, "purge"), (ErrorMessage, "purge_failed")])
def test_deleted_messages_are_counted(
    broker: DatabaseBackend, superuser: Client, database: str, model: type[MessageRow], action: str
) -> None:
    if model is ReadyMessage:
        send("a")
    else:
        bury(broker, "a")
    confirm(superuser, model, action, [pk_of(database, "a", model)])
    assert ids_in(database, model) == set()
    assert Tally.objects.using(database).get(name="purged").count == 1
    assert LogEntry.objects.get().is_deletion()


def test_messages_are_moved_each_by_an_hour_from_its_own_time(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", delay="10m")
    send("b", delay="2h")
    before = due_times(database)
    pks = [pk_of(database, id) for id in "ab"]
    assert "Length of time" in text_of(ask(superuser, ReadyMessage, "reschedule", pks))
    confirm(superuser, ReadyMessage, "reschedule", pks, how="shift", length="1h")
    after = due_times(database)
    assert after == {id: due_at + timedelta(hours=1) for id, due_at in before.items()}
    changed = f"due_at {in_utc(before['a'])} → {in_utc(after['a'])}"
    assert logged()[0] == f"order.close a: Rescheduled: {changed}"


def test_messages_are_moved_to_one_time_from_now(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="3d")
    confirm(superuser, ReadyMessage, "reschedule", [pk_of(database, "a")], how="reschedule", length="1h")
    info = get_delay_message("a")
    assert info is not None
    assert info.due_at - info.sent_at < timedelta(hours=2)


def test_a_length_that_is_none_is_asked_for_again(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="3d")
    before = get_delay_message("a")
    again = confirm(superuser, ReadyMessage, "reschedule", [pk_of(database, "a")], how="shift", length="soon")
    assert "soon is no length of time" in text_of(again)
    assert get_delay_message("a") == before


def test_all_that_match_the_filter_are_moved_and_no_others(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, *(f"a{number}" for number in range(60)), key="order.close")
    bury(broker, "other", key="sms.send")
    one = pk_of(database, "a0", ErrorMessage)
    options: dict[str, Any] = {"all_that_match": True, "query": "?key=order.close"}
    assert "60 messages." in text_of(ask(superuser, ErrorMessage, "rescue", [one], **options))
    assert "Rescued: 60 messages." in text_of(confirm(superuser, ErrorMessage, "rescue", [one], **options))
    assert ids_in(database, ErrorMessage) == {"other"}


@pytest.mark.parametrize("step", [partial(ask, follow=True), confirm], ids=["asked", "confirmed"])
def test_that_nothing_matches_any_more_is_said(
    broker: DatabaseBackend, superuser: Client, database: str, step: Callable[..., Any]
) -> None:
    bury(broker, "a")
    one = pk_of(database, "a", ErrorMessage)
    said = text_of(step(superuser, ErrorMessage, "rescue", [one], all_that_match=True, query="?key=nobody"))
    assert "No message matches any more, so nothing was done." in said
    assert ids_in(database, ErrorMessage) == {"a"}


def test_a_confirmation_tells_no_number_where_counting_takes_too_long(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(broker, "a")
    one = pk_of(database, "a", ErrorMessage)
    monkeypatch.setattr(actions, "counted", lambda rows: None)
    shown = text_of(ask(superuser, ErrorMessage, "rescue", [one], all_that_match=True))
    assert "All messages that match the filter: counting them took over 2 s. They are due at once" in shown
    assert "A worker does this in the background" in shown


@pytest.mark.parametrize("written", ["1", "on", "x"])
def test_all_are_meant_where_django_hands_on_all(
    broker: DatabaseBackend,
    registry: None,
    superuser: Client,
    database: str,
    written: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    jobs.register("default")
    bury(broker, "a", "b", "c")
    one = pk_of(database, "a", ErrorMessage)
    shown = text_of(confirm(superuser, ErrorMessage, "rescue", [one], select_across=written))
    assert "In the background" in shown  # and not at once, with what was ticked as the number to reckon with
    assert ids_in(database, ErrorMessage) == {"a", "b", "c"}


@pytest.fixture
def job_of_two_pages(
    broker: DatabaseBackend, registry: None, monkeypatch: pytest.MonkeyPatch, superuser: Client, database: str
) -> Any:
    """A rescue of three failed messages in the background, in pages of two."""
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    monkeypatch.setattr(changes, "PAGE", 2)
    jobs.register("default")
    bury(broker, "a1", "a2", "a3")
    bury(broker, "other", key="sms.send")
    one = pk_of(database, "a1", ErrorMessage)
    return confirm(superuser, ErrorMessage, "rescue", [one], all_that_match=True, query="?key=order.close")


def test_many_are_moved_in_the_background_with_their_progress(
    job_of_two_pages: Any, superuser: Client, database: str
) -> None:
    (address, _), *_ = job_of_two_pages.redirect_chain
    assert "It goes on." in text_of(job_of_two_pages)
    assert "Rescue: key=order.close" in text_of(job_of_two_pages)
    assert job_of_two_pages["Refresh"]
    assert ids_in(database, ErrorMessage) == {"a1", "a2", "a3", "other"}
    run_due()
    over = superuser.get(address)
    assert "It is done." in text_of(over)
    assert "Moved 3" in text_of(over)
    assert "Refresh" not in over
    assert ids_in(database, ErrorMessage) == {"other"}
    assert logged() == ["key=order.close: Rescue: begun, so far 3 moved", "key=order.close: Rescue: 3 messages"]


def test_a_job_that_was_cancelled_is_over(
    job_of_two_pages: Any, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    (address, _), *_ = job_of_two_pages.redirect_chain
    (of_the_job,) = ids_in(database, ReadyMessage)
    broker.queue.cancel([of_the_job])
    cancelled = superuser.get(address)
    assert "It was cancelled, and what it has not done is left as it was." in text_of(cancelled)
    assert "Refresh" not in cancelled
    assert ids_in(database, ErrorMessage) == {"a1", "a2", "a3", "other"}


def test_a_job_whose_message_ran_twice_moves_nothing_twice(job_of_two_pages: Any, database: str) -> None:
    run_due(deliveries=2)
    assert ids_in(database, ErrorMessage) == {"other"}
    assert ids_in(database, ReadyMessage) == {"a1", "a2", "a3"}


@pytest.fixture
def shift_all(
    broker: DatabaseBackend, registry: None, monkeypatch: pytest.MonkeyPatch, superuser: Client, database: str
) -> Callable[[], Any]:
    """Answers one question, however often: whether all of three messages are to be an hour later, in the background."""
    return partial(reschedule_three(monkeypatch, superuser, database), how="shift", length="1h")


def hours_later(database: str) -> list[int]:
    """By how many hours each that waits is later than two hours from now: virtual time moves on by milliseconds."""
    now = get_backend().queue.counts().now_ms
    due = due_times(database)
    return [round(due[id].timestamp() / 3600 - now / 3_600_000) - 2 for id in sorted(due)]


@pytest.mark.parametrize("has_run", [False, True])
def test_an_answer_that_is_sent_twice_starts_one_job(
    shift_all: Callable[[], Any], database: str, has_run: bool
) -> None:
    first = shift_all()
    if has_run:
        run_due()
    again = shift_all()
    assert again.redirect_chain == first.redirect_chain
    assert "This was asked for already" in page(again)
    run_due()
    assert hours_later(database) == [1, 1, 1]
    assert sum("begun" in said for said in logged()) == 1


def test_what_was_asked_about_as_many_is_a_job_though_few_are_left(
    shift_all: Callable[[], Any], broker: DatabaseBackend, database: str
) -> None:
    broker.queue.cancel(["a3"])
    first = shift_all()
    assert shift_all().redirect_chain == first.redirect_chain
    run_due()
    assert hours_later(database) == [1, 1]


def test_a_job_that_is_begun_again_after_its_first_step_moves_nothing(
    shift_all: Callable[[], Any], database: str
) -> None:
    shift_all()
    first = ReadyMessage.objects.using(database).get(key=changes.KEY)
    run_due()
    send_own_message(changes.KEY, decode_data(first.data.encode()), id=first.message_id, tag=first.tag)
    run_due()
    assert hours_later(database) == [1, 1, 1]


def test_a_job_that_is_told_to_stop_during_a_step_ends_before_the_next(
    shift_all: Callable[[], Any], superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (address, _), *_ = shift_all().redirect_chain

    def move_and_stop(*page: Any) -> changes.Moved:
        superuser.post(address)
        return changes.move(*page)

    monkeypatch.setattr(jobs, "move", move_and_stop)
    run_due()
    over = superuser.get(address)
    assert "It was stopped, and what it has not done is left as it was." in text_of(over)
    assert "Moved 2" in text_of(over)
    assert "Refresh" not in over
    assert hours_later(database) == [1, 1, 0]
    assert logged() == [
        f"key=order.close: Reschedule (+1h): {did}"
        for did in ("begun, so far 2 moved", "told to stop", "2 messages, stopped")
    ]


def test_a_job_that_is_told_to_stop_says_so_and_is_told_once(
    shift_all: Callable[[], Any], superuser: Client, database: str
) -> None:
    (address, _), *_ = shift_all().redirect_chain
    told = superuser.post(address, follow=True)
    assert "It was told to stop" in text_of(told)
    assert told["Refresh"]
    assert 'value="Stop"' not in page(told)
    superuser.post(address)
    assert sum("told to stop" in said for said in logged()) == 1
    run_due()
    assert hours_later(database) == [0, 0, 0]


def test_the_log_of_a_job_leads_to_its_page(shift_all: Callable[[], Any], superuser: Client) -> None:
    begun = shift_all()
    superuser.post(begun.redirect_chain[0][0])
    run_due()
    for entry in LogEntry.objects.all():
        assert superuser.get(entry.get_admin_url() or "", follow=True).redirect_chain == begun.redirect_chain


def test_who_may_not_do_what_a_job_does_may_not_stop_it(
    shift_all: Callable[[], Any], staff: Callable[..., Client], database: str
) -> None:
    (address, _), *_ = shift_all().redirect_chain
    others = {"rescue_message", "cancel_message", "delete_readymessage"}
    refused = staff("view_readymessage", *others)
    assert 'value="Stop"' not in page(refused.get(address))
    assert refused.post(address).status_code == 403
    may = staff("view_readymessage", "reschedule_message")
    assert 'value="Stop"' in page(may.get(address))
    may.post(address)
    run_due()
    assert hours_later(database) == [0, 0, 0]


def test_a_job_that_is_over_is_not_stopped(job_of_two_pages: Any, superuser: Client) -> None:
    (address, _), *_ = job_of_two_pages.redirect_chain
    run_due()
    assert "It is done." in text_of(superuser.post(address, follow=True))
    assert not any("told to stop" in said for said in logged())


def test_a_job_has_its_page_under_its_own_list(job_of_two_pages: Any, superuser: Client) -> None:
    (address, _), *_ = job_of_two_pages.redirect_chain
    assert superuser.get(address.replace("errormessage", "readymessage")).status_code == 404


def test_what_fails_after_the_job_began_is_left(
    job_of_two_pages: Any, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "later")
    run_due()
    assert ids_in(database, ErrorMessage) == {"other", "later"}


class TaggedFilter(SimpleListFilter):
    """A filter of a site's own."""

    title = parameter_name = "tagged"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "yes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tag__isnull=False) if self.value() else queryset


def test_a_job_never_takes_more_than_a_filter_of_the_site_shows(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    monkeypatch.setattr(ErrorMessageAdmin, "list_filter", (*ErrorMessageAdmin.list_filter, TaggedFilter))
    bury(broker, "a", tag="t")
    bury(broker, "b")
    pks = [pk_of(database, "a", ErrorMessage)]
    done = confirm(superuser, ErrorMessage, "rescue", pks, all_that_match=True, query="?tagged=yes")
    assert "The filter tagged is the site's own" in text_of(done)
    assert ids_in(database, ErrorMessage) == {"a", "b"}
    assert ids_in(database, ReadyMessage) == set()


def test_there_is_no_page_of_a_job_that_there_is_not(superuser: Client) -> None:
    assert superuser.get(url("errormessage", "job", "none")).status_code == 404


@pytest.mark.parametrize(
    ("model", "action", "permission"),
    [
        (ReadyMessage, "run_now", "reschedule_message"),
        (ReadyMessage, "reschedule", "reschedule_message"),
        (ReadyMessage, "cancel", "cancel_message"),
        (ReadyMessage, "purge", "delete_readymessage"),
        (ErrorMessage, "rescue", "rescue_message"),
        (ErrorMessage, "purge_failed", "delete_errormessage"),
        (FinishMessage, "send_again", "send_again"),
    ],
)
def test_each_action_needs_its_own_permission(
    broker: DatabaseBackend,
    staff: Callable[..., Client],
    database: str,
    model: type[MessageRow],
    action: str,
    permission: str,
) -> None:
    if model is ReadyMessage:
        send("a", delay="1h")
    elif model is FinishMessage:
        finish(broker, "a")
    else:
        bury(broker, "a")
    pk = pk_of(database, "a", model)
    others = {"rescue_message", "cancel_message", "reschedule_message", "delete_readymessage", "delete_errormessage"}
    others |= {"send_again"}
    fields = {"how": "shift", "length": "1h"}
    refused = confirm(staff(f"view_{LISTS[model]}", *others - {permission}), model, action, [pk], **fields)
    assert "No action selected." in text_of(refused)
    assert logged() == []
    confirm(staff(f"view_{LISTS[model]}", permission), model, action, [pk], **fields)
    assert len(logged()) == 1


def test_the_page_of_a_message_offers_what_its_viewer_may_do(
    broker: DatabaseBackend, staff: Callable[..., Client], database: str
) -> None:
    send("a", delay="1h")
    client = staff("view_readymessage", "cancel_message")
    html = client.get(url("readymessage", pk_of(database, "a"), "change")).content.decode()
    assert 'value="cancel"' in html
    assert 'value="reschedule"' not in html


def test_nothing_finished_can_be_moved(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    finish(broker, "a")
    for action in (*READY, *ERROR, "delete_selected"):
        refused = confirm(superuser, FinishMessage, action, [pk_of(database, "a", FinishMessage)])
        assert "No action selected." in text_of(refused)
