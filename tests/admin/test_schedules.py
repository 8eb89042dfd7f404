"""Schedules in the admin: seen in words, typed, shown before they are saved, paused, run, and logged without data."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from django_delayq import (
    Cron,
    Every,
    Message,
    RRule,
    Window,
    delay_execute,
    get_delay_schedule,
    pause_delay_schedules,
    reschedule_delay_messages,
    schedule_delay_message,
    sync_delay_schedules,
)
from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.changes import KEY
from django_delayq.admin.schedules import actions
from django_delayq.admin.schedules.admin import ScheduleAdmin
from django_delayq.admin.schedules.words import rule_of_words
from django_delayq.brokers.base import SettleAction
from django_delayq.core.occurrences import occurrence_id
from django_delayq.core.recurrence import Rule
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, Schedule
from django_delayq.store import DatabaseBackend
from tests.admin.masks import without_card
from tests.admin.support import claim, forget_settings, ids_in, page, settle, text_of, url
from tests.admin.tenants import OWN

DAILY = Every(days=1, time="09:00", zone="Europe/Rome")
LIST = url("schedule")
ALL = (
    *("view_schedule", "add_schedule", "change_schedule", "delete_schedule", "pause_schedule", "run_schedule"),
    *("view_payload", "edit_payload", "view_error", "view_readymessage"),
)
TYPED = {
    "name": "report:1",
    "key": "report",
    "payload": '{"number": 1}',
    "rule": "every day at 09:00",
    "zone": "Europe/Rome",
    "calendar": "",
    "start": "",
    "until": "",
    "count": "",
    "window": "",
    "spread": "",
    "catch_up": "last",
    "overlap": "skip",
}
HOSTILE = '<x-inject onload="1">&\u202e'


@dataclass
class Report:
    """What the handler of `report` wants."""

    number: int
    card: str = ""


@pytest.fixture
def handlers(broker: DatabaseBackend, registry: None) -> None:
    @delay_execute("report")
    def report(message: Message[Report]) -> None: ...

    @delay_execute("other")
    def other(message: Message[Any]) -> None: ...

    jobs.register("default")


@pytest.fixture
def operator(staff: Callable[..., Client], handlers: None) -> Client:
    """A client of somebody who may do everything with schedules."""
    return staff(*ALL)


def schedule(name: str = "s", **options: Any) -> None:
    schedule_delay_message(**{"key": "report", "data": Report(1), "every": DAILY, "name": name, **options})


def row(database: str, name: str = "s") -> Schedule:
    return Schedule.objects.using(database).get(name=name)


def page_of(database: str, name: str = "s", page: str = "change") -> str:
    return url("schedule", row(database, name).pk, page)


def act(client: Client, database: str, action: str, *names: str, **fields: Any) -> Any:
    """Ask for an action, confirm it, and follow to the list."""
    pks = [str(row(database, name).pk) for name in names]
    asked = {"action": action, "index": "0", "_selected_action": pks}
    assert client.post(LIST, asked).status_code in (200, 302, 403)
    return client.post(LIST, {**asked, "post": "yes", **fields}, follow=True)


def hidden(response: Any, name: str) -> str:
    found = re.search(rf'name="{name}" value="(\w*)"', page(response))
    return found[1] if found else ""


def typed(client: Client, address: str, **fields: str) -> Any:
    """Type a schedule, look at the preview, and save it."""
    fields = {**fields, "before": hidden(client.get(address), "before")}
    preview = client.post(address, fields)
    assert preview.status_code == 200
    shown = hidden(preview, "shown")
    return client.post(address, {**fields, "shown": shown, "save": "1"}, follow=True) if shown else preview


def logged() -> list[tuple[str, str]]:
    return [(entry.object_repr, entry.change_message) for entry in LogEntry.objects.order_by("pk")]


# The list


def test_the_list_says_what_each_schedule_is(operator: Client, database: str) -> None:
    schedule("daily")
    schedule("held", every=Every(hours=1))
    pause_delay_schedules("held", reason="the printer burns")
    schedule("ended", every=Every(hours=1))
    Schedule.objects.using(database).filter(name="ended").update(look_at=None)
    schedule("broken")
    Schedule.objects.using(database).filter(name="broken").update(error="ValueError: card=4111")
    shown = text_of(operator.get(LIST))
    assert "daily report every day at 09:00 in Europe/Rome" in shown
    assert "paused: the printer burns" in shown
    assert "over call" in shown
    assert "its rule fails: ValueError: card=4111" in shown


def test_an_error_is_cut_for_who_may_not_see_errors(
    staff: Callable[..., Client], handlers: None, database: str
) -> None:
    schedule()
    Schedule.objects.using(database).update(error="ValueError: card=4111")
    client = staff("view_schedule")
    for address in (LIST, page_of(database)):
        shown = text_of(client.get(address))
        assert "ValueError" in shown
        assert "4111" not in shown


def test_the_next_occurrence_is_the_one_that_waits_and_the_last_the_one_that_ran(
    superuser: Client, broker: DatabaseBackend, handlers: None, database: str
) -> None:
    schedule("s", key="other", data=None, every=Every(hours=1))
    ran, failed = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2))
    for at, verb in ((failed, SettleAction.BURY), (ran, SettleAction.FINISH)):
        act(superuser, database, "run_schedules", "s")
        message = ReadyMessage.objects.using(database).exclude(message_id=row(database).message_id)
        settle(broker, claim(broker, "other"), verb, **({"failed": True} if verb is SettleAction.BURY else {}))
        assert not message.exists()
        model: Any = ErrorMessage if verb is SettleAction.BURY else FinishMessage
        model.objects.using(database).update(message_id=f"s@{at:%Y-%m-%dT%H:%M:%SZ}")
    last_at = row(database).last_at
    assert last_at is not None
    html = page(superuser.get(LIST))
    next_at, last = (re.search(rf'field-{name}">(.*?)</td>', html) for name in ("next_at", "last_run"))
    assert next_at
    assert last
    assert f'datetime="{last_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}' in next_at[1]
    assert 'datetime="2026-01-01T02:00' in last[1]
    assert last[1].endswith(", failed")


NIGHTLY = Every(days=1, time="20:00", zone="UTC")
OPEN = Window("mon-sun", "09:00", "18:00", zone="UTC")


def test_next_is_when_the_message_that_waits_is_due(operator: Client, database: str) -> None:
    def told() -> str:
        found = re.search(r'field-next_at">.*?datetime="([^"]*)', page(operator.get(LIST)))
        return found[1][:16] if found else ""

    schedule(every=NIGHTLY, window=OPEN)
    by_rule = ReadyMessage.objects.using(database).get().due_at
    assert f"{by_rule:%H:%M}" == "09:00"
    assert told() == f"{by_rule:%Y-%m-%dT%H:%M}"
    reschedule_delay_messages(row(database).message_id, delay="40d")
    assert (
        told() == f"{ReadyMessage.objects.using(database).get().due_at:%Y-%m-%dT%H:%M}" != f"{by_rule:%Y-%m-%dT%H:%M}"
    )
    claimed = ReadyMessage.objects.using(database)
    claimed.update(token=1)  # it runs, so what comes next is told
    assert told() == f"{by_rule:%Y-%m-%dT%H:%M}"
    claimed.all().delete()
    assert told() == f"{by_rule:%Y-%m-%dT%H:%M}"


def test_the_page_begins_with_the_occurrence_that_waits_for_its_window(operator: Client, database: str) -> None:
    now = datetime.now(UTC)
    later = Window("mon-sun", f"{now + timedelta(hours=3):%H:%M}", f"{now + timedelta(hours=5):%H:%M}", zone="UTC")
    schedule(every=Every(hours=1), window=later)
    last_at = now.replace(minute=0, second=0, microsecond=0)
    Schedule.objects.using(database).update(last_at=last_at, message_id=occurrence_id("s", last_at, None))
    first = re.search(r">\w+ ([\d -]+:00:00)</th>", page(operator.get(page_of(database))))
    assert first
    assert first[1] == f"{last_at:%Y-%m-%d %H:00:00}"


def test_a_page_of_the_list_takes_a_few_queries_however_many_rows_it_has(
    superuser: Client, handlers: None, database: str
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connections[database]) as found:
            assert superuser.get(LIST).status_code == 200
        statements = [each["sql"] for each in found if each["sql"] not in ("BEGIN", "COMMIT")]
        return len([sql for sql in statements if "statement_time" not in sql and "SAVEPOINT" not in sql])

    schedule("s0")
    queries()
    few = queries()
    for number in range(1, 30):
        schedule(f"s{number}")
    assert queries() == few <= 10


def test_the_list_is_searched_and_filtered(operator: Client, database: str) -> None:
    schedule("daily:7")
    schedule("weekly:8", key="other", data=None)
    pause_delay_schedules("weekly:8", reason="x")
    for query, names in {
        "q=aily": ["daily:7"],
        "q=othe": ["weekly:8"],
        "state=paused": ["weekly:8"],
        "state=active": ["daily:7"],
        "state=over": [],
        "key=report": ["daily:7"],
        "origin=call": ["daily:7", "weekly:8"],
        "origin=admin": [],
    }.items():
        found = re.findall(r'field-name"><a [^>]*>([^<]*)</a>', page(operator.get(f"{LIST}?{query}")))
        assert found == names, query


# The page of one


def test_the_page_tells_the_next_ten_in_both_zones(operator: Client, database: str, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule(every=Cron("30 9 * * *", zone="America/New_York"), count=5)
    shown = page(operator.get(page_of(database)))
    there = re.findall(r">\w+ (\d{4}-\d\d-\d\d 09:30:00)</th>", shown)
    assert len(there) == 5  # as many as are left
    last_at = row(database).last_at
    assert last_at is not None
    assert there[0].startswith(f"{last_at.astimezone(timezone.get_fixed_timezone(-300)):%Y-%m-%d}")
    assert "America/New_York" in shown
    assert "UTC+09:00" in shown
    assert "1 of 5" in shown


def test_the_page_leads_to_its_messages_and_they_lead_back(superuser: Client, handlers: None, database: str) -> None:
    schedule("s:<b>")
    shown = page(superuser.get(page_of(database, "s:<b>")))
    (message,) = ReadyMessage.objects.using(database).all()
    at = url("readymessage", message.pk, "change")
    assert f'href="{at}"' in shown
    assert "/anymessage/?q=s%3A%3Cb%3E%40%2A" in shown
    assert "of schedule".capitalize() in (back := page(superuser.get(at)))
    assert f'href="{page_of(database, "s:<b>")}">s:&lt;b&gt;</a>' in back


def test_a_message_does_not_name_a_schedule_to_who_may_not_see_schedules(
    staff: Callable[..., Client], handlers: None, database: str
) -> None:
    schedule()
    (message,) = ReadyMessage.objects.using(database).all()
    assert "Of schedule" not in text_of(staff("view_readymessage").get(url("readymessage", message.pk, "change")))


def test_what_somebody_wrote_is_only_text(superuser: Client, handlers: None, database: str) -> None:
    text = HOSTILE.replace("\u202e", "")
    schedule(text, key="other", data={text: text})
    pause_delay_schedules(text, reason=text)
    Schedule.objects.using(database).update(error=HOSTILE, rule='{"expression": "<x-inject>", "zone": "UTC"}')
    name = text
    pages = [superuser.get(LIST), *(superuser.get(page_of(database, name, each)) for each in ("change", "backfill"))]
    editor = page_of(database, name, "edit")
    pages += [superuser.get(editor), superuser.post(editor, dict.fromkeys(TYPED, text))]
    pages += [
        superuser.post(LIST, {"action": "pause_schedules", "index": "0", "_selected_action": row(database, name).pk})
    ]
    pages += [act(superuser, database, "resume_schedules", name)]
    pages += [superuser.get(page_of(database, name))]
    for shown in pages:
        assert "<x-inject" not in page(shown)
        assert "\u202e" not in page(shown)
    assert "&lt;x-inject" in page(pages[0])


# Adding and changing


def test_a_schedule_is_shown_in_words_before_it_is_saved(operator: Client, database: str) -> None:
    address = url("schedule", "add")
    preview = operator.post(address, {**TYPED, "save": "1"})
    assert "every day at 09:00 in Europe/Rome" in text_of(preview)
    assert len(re.findall(r">\w+ \d{4}-\d\d-\d\d 09:00:00</th>", page(preview))) == 10
    assert not Schedule.objects.using(database).exists()
    done = operator.post(address, {**TYPED, "shown": hidden(preview, "shown"), "save": "1"}, follow=True)
    assert "The schedule was saved." in text_of(done)
    info = get_delay_schedule("report:1")
    assert info
    assert (info.key, info.data, info.rule, info.origin) == ("report", Report(1), DAILY, "admin")
    assert ids_in(database, ReadyMessage) == {info.message_id}


def test_what_was_changed_since_the_preview_is_shown_again(operator: Client, database: str) -> None:
    address = url("schedule", "add")
    shown = hidden(operator.post(address, TYPED), "shown")
    again = operator.post(address, {**TYPED, "rule": "every day at 10:00", "shown": shown, "save": "1"})
    assert "every day at 10:00 in Europe/Rome" in text_of(again)
    assert not Schedule.objects.using(database).exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "rule",
            "every blue moon",
            "'every blue moon' is not understood. Write it like one of these: every 15 minutes;",
        ),
        ("rule", "9:00", "is not understood. Write it like"),
        ("rule", "61 * * * *", "'61 * * * *' is no cron expression (Bad minute)."),
        ("rule", "FREQ=DAILY;X=1", "'FREQ=DAILY;X=1' is no RRULE"),
        ("rule", "FREQ=HOURLY", "For hours, write it like: every 2 hours"),
        ("rule", "FREQ=DAILY;DTSTART=20260101T090000", "Leave DTSTART out"),
        ("start", "", "An RRULE counts from the start; fill in the first time."),
        ("rule", "every day", "Write the time of day too: every day at 9:00"),
        ("rule", "every day at 25:00", "'25:00' is no time of day; write it like 9:00 or 18:30."),
        ("rule", "every 2 hours at 9:00", "is not understood"),
        ("rule", "every 0 hours", "is not understood"),
        ("rule", "every 99999999 hours", "A number is too large"),
        ("rule", "every 36601 days at 9:00", "A number is too large"),
        ("rule", "every month on the 32nd at 9:00", "a month has 31 days"),
        ("rule", "every month on day 3 at 9:00", "is not understood"),
        ("zone", "Europe/Roma", "'Europe/Roma' is no time zone; write a name such as Europe/Rome."),
        ("zone", "x/y", "'x/y' is no time zone; write a name such as Europe/Rome."),
        ("payload", "{", "The data is no JSON"),
        ("payload", '{"number": "x"}', "doesn't fit Report"),
        ("start", "soon", "is no date and time"),
        ("start", "0001-01-01T00:00", "is no date and time"),
        ("until", "2026-01-01T00:00+01:00", "is no date and time"),
        ("until", "2026-01-01T00:00", "It is before the start."),
        ("count", "0", "greater than or equal to 1"),
        (
            "catch_up",
            "all",
            "“If the one before still runs” says: what falls due while the one before it runs is left out.",
        ),
        ("key", "unknown", "is not one of the available choices"),
        ("key", KEY, "is not one of the available choices"),  # a forged job would act as another user
        ("name", "delayq.x", "Names that begin with delayq. are for django-delayq itself."),
        ("name", "a\u202eb", "a character that can't be seen"),
        ("calendar", "XX", "is not one of the available choices"),
        ("calendar", "shop", "go on through holidays: choose none."),
        ("window", "09:00-18:00", "'09:00-18:00' is no window; write it like mon-fri 09:00-18:00"),
        ("window", "sat 09:00-12:00; mon-fri 09:00-25:00", "'mon-fri 09:00-25:00' is no window"),
        ("window", ";", "';' is no window; write it like"),
        ("window", "mon 09:00-09:00", "a whole day like sat 00:00-24:00."),
        ("spread", "wide", "'wide' is no length of time"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field(
    stored_delayq: dict[str, Any], operator: Client, database: str, field: str, value: str, said: str
) -> None:
    stored_delayq["CALENDARS"] = {"shop": ["2026-12-25"]}
    forget_settings()
    others = {
        "until": {"start": "2027-01-01T00:00"},
        "rule": {"start": "2027-01-01T00:00"},
        "start": {"rule": "FREQ=DAILY"},
        "calendar": {"rule": "every 2 hours"},
    }
    html = page(operator.post(url("schedule", "add"), {**TYPED, **others.get(field, {}), field: value}))
    rows = re.findall(r'<(?:div|fieldset) class="form-row">(.*?)</(?:div|fieldset)>\s*(?=<|$)', html, re.DOTALL)
    (with_error,) = [each for each in rows if "errorlist" in each]
    assert f'name="{field}"' in with_error
    assert said in text_of_html(with_error)
    (told,) = re.findall(r'<ul class="errorlist".*?</ul>', with_error, re.DOTALL)
    assert not re.search(r"\b[a-z_]+=|\b[A-Z][a-z]\w*\(", text_of_html(told))  # as Python would have it
    assert not Schedule.objects.using(database).exists()


def test_a_payload_that_is_no_json_is_told_so_whatever_the_handler_takes(operator: Client, database: str) -> None:
    @delay_execute("number")
    def number(message: Message[int]) -> None: ...

    shown = text_of(operator.post(url("schedule", "add"), {**TYPED, "key": "number", "payload": "{"}))
    assert """The data is no JSON: Input data was truncated. You typed '{'; write it like {"id": 17},""" in shown
    assert "Expected `int`" not in shown
    assert not Schedule.objects.using(database).exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"until": "2020-01-01T00:00"}, "until"),
        ({"rule": "FREQ=DAILY;COUNT=3", "start": "2020-01-01T09:00"}, "rule"),
    ],
)
def test_a_schedule_of_which_nothing_is_to_come_is_refused_before_it_is_shown(
    operator: Client, database: str, changes: dict[str, str], field: str
) -> None:
    html = page(operator.post(url("schedule", "add"), {**TYPED, **changes}))
    (with_error,) = [each for each in html.split('class="form-row"') if "errorlist" in each]
    assert f'name="{field}"' in with_error
    assert "Nothing is to come by this" in with_error
    assert 'name="shown"' not in html


def test_a_schedule_that_is_over_may_be_changed_in_what_does_not_say_when(operator: Client, database: str) -> None:
    schedule()
    Schedule.objects.using(database).update(until_at=datetime(2020, 1, 1, tzinfo=UTC), look_at=None)
    address = page_of(database, page="edit")
    form = operator.get(address).context["form"]
    fields = {name: str(form[name].value() if form[name].value() is not None else "") for name in form.fields}
    typed(operator, address, **{**fields, "catch_up": "none"})
    assert row(database).catch_up == "none"


def test_a_wrong_zone_is_told_where_a_start_was_typed_too(operator: Client, database: str) -> None:
    asked = {**TYPED, "zone": "Foo/Bar", "rule": "every 15 minutes", "start": "2027-01-01T00:00"}
    assert "is no time zone; write a name such as" in text_of(operator.post(url("schedule", "add"), asked))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0 9 * * 1-5", Cron("0 9 * * 1-5", zone="Europe/Rome")),
        ("FREQ=DAILY", RRule("FREQ=DAILY", start=datetime(2026, 1, 1, 9), zone="Europe/Rome")),
        ("every 15 minutes", Every(minutes=15)),
        ("Every  2 hours", Every(hours=2)),
        ("every day at 18:30", Every(days=1, time="18:30", zone="Europe/Rome")),
        ("every 2 days at 9", Every(days=2, time="9:00", zone="Europe/Rome")),
        ("every weekday at 9:00", Every(weeks=1, weekdays="mon-fri", time="9:00", zone="Europe/Rome")),
        ("every Monday at 9", Every(weeks=1, weekdays="mon", time="9:00", zone="Europe/Rome")),
        ("every tue,sat-sunday at 9:00:30", Every(weeks=1, weekdays="tue,sat-sun", time="9:00:30", zone="Europe/Rome")),
        ("every 2 weeks on mon,thu at 09:00", Every(weeks=2, weekdays="mon,thu", time="09:00", zone="Europe/Rome")),
        ("every month on the last day at 18:00", Every(months=1, day=-1, time="18:00", zone="Europe/Rome")),
        ("every 3 months on the 15th at 18:00", Every(months=3, day=15, time="18:00", zone="Europe/Rome")),
        ("every 2nd to last day of the month at 9:00", Every(months=1, day=-2, time="9:00", zone="Europe/Rome")),
        (
            "every first working day of the month at 9:00",
            Every(months=1, business_day=1, time="9:00", zone="Europe/Rome"),
        ),
        (
            "every month on the last business day at 9:00",
            Every(months=1, business_day=-1, time="9:00", zone="Europe/Rome"),
        ),
    ],
)
def test_a_rule_is_typed_in_words(text: str, rule: Rule) -> None:
    assert rule_of_words(text, "Europe/Rome", datetime(2026, 1, 1, 9), None) == rule


def test_each_example_of_the_help_is_understood(operator: Client) -> None:
    told = operator.get(url("schedule", "add")).context["form"].fields["rule"].help_text
    examples = re.findall(r"every [^;.]+", told)
    documented = re.findall(r"`(every [^`]+)`", (Path(__file__).parents[2] / "docs/how-to/admin.md").read_text())
    assert (len(examples), len(documented)) == (6, 12)
    for example in examples + documented:
        rule_of_words(example, "Europe/Rome", None, None)


def text_of_html(html: str) -> str:
    from html import unescape

    return unescape(re.sub(r"<[^>]*>", " ", html))


def test_a_new_schedule_does_not_take_the_place_of_another(operator: Client, database: str) -> None:
    schedule("report:1", every=Every(hours=1))
    assert "There is a schedule with this name." in text_of(operator.post(url("schedule", "add"), TYPED))


def test_local_times_are_those_of_the_zone(operator: Client, database: str) -> None:
    typed(
        operator,
        url("schedule", "add"),
        **{**TYPED, "rule": "FREQ=WEEKLY", "start": "2030-07-05T18:00", "until": "2030-08-01T00:00"},
    )
    info = get_delay_schedule("report:1")
    assert info
    assert info.rule == RRule("FREQ=WEEKLY", start=datetime(2030, 7, 5, 18), zone="Europe/Rome")
    assert info.start == info.last_at == datetime(2030, 7, 5, 16, tzinfo=UTC)
    assert info.until == datetime(2030, 7, 31, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    "every",
    [
        DAILY,
        Every(minutes=15),
        Every(weeks=2, weekdays="mon,thu", time="09:00", zone="UTC"),
        Every(months=1, day=-1, time="18:00:30", zone="UTC"),
        Every(months=3, business_day=1, time="18:00", zone="UTC", calendar="shop"),
        Cron("0 9 * * 1-5", zone="Asia/Tokyo", calendar="shop"),
        RRule("FREQ=MONTHLY;BYDAY=-1FR", start=datetime(2030, 1, 30, 18), zone="Europe/Rome"),
        Every(hours=1, minutes=30),
        Every(days=2, since=date(2026, 1, 2), time="09:00", zone="Europe/Rome"),
    ],
    ids=str,
)
def test_what_is_saved_as_it_is_shown_changes_nothing(
    stored_delayq: dict[str, Any], operator: Client, database: str, every: Any
) -> None:
    stored_delayq["CALENDARS"] = {"shop": ["2026-12-25"]}
    forget_settings()
    schedule(every=every, tag="t", queue="mail", until=datetime(2035, 1, 1, 0, 0, 0, 1000, tzinfo=UTC))
    before = Schedule.objects.using(database).values().get()
    address = page_of(database, page="edit")
    form = operator.get(address).context["form"]
    fields = {name: str(form[name].value() if form[name].value() is not None else "") for name in form.fields}
    assert "The schedule was saved." in text_of(typed(operator, address, **fields))
    after = Schedule.objects.using(database).values().get()
    if not isinstance(every, RRule):  # whose start is typed in the field of the schedule's start
        assert after == before
    assert after["rule"] == before["rule"]
    assert after["message_id"] == before["message_id"]


@pytest.mark.parametrize(
    "window",
    [
        Window("mon-fri", "09:00", "18:00", zone="Europe/Rome"),
        [Window("mon-fri", "9:00", "18:00", zone="Europe/Rome"), Window("sat", "22:00", "06:00", zone="Europe/Rome")],
        Window("mon-fri", "09:00", "18:00", zone="Asia/Tokyo"),
        Window("mon-fri", "09:00", "18:00", zone="Europe/Rome", calendar=frozenset({date(2030, 1, 1)})),
        None,
    ],
    ids=["window", "windows", "of another zone", "with dates", "spread alone"],
)
def test_a_window_that_is_saved_as_it_is_shown_stays(operator: Client, database: str, window: Any) -> None:
    schedule(window=window, spread="90m")
    before = row(database)
    address = page_of(database, page="edit")
    form = operator.get(address).context["form"]
    fields = {name: str(form[name].value() if form[name].value() is not None else "") for name in form.fields}
    typed(operator, address, **{**fields, "count": "7"})
    assert (row(database).window, row(database).most) == (before.window, 7)


def test_a_window_is_typed_and_the_preview_says_when_each_occurrence_is_due(operator: Client, database: str) -> None:
    address = url("schedule", "add")
    asked = {**TYPED, "rule": "every day at 20:00", "window": "mon-sun 09:00-18:00", "zone": "UTC"}
    preview = operator.post(address, asked)
    found = re.findall(r"(\d{4}-\d\d-\d\d) 20:00:00</th>.*?(\d{4}-\d\d-\d\d) 09:00.*?</tr>", page(preview), re.DOTALL)
    assert len(found) == 10
    assert {date.fromisoformat(due) - date.fromisoformat(at) for at, due in found} == {timedelta(days=1)}
    assert "The schedule was saved." in text_of(typed(operator, address, **asked))
    (message,) = ReadyMessage.objects.using(database)
    assert f"{message.due_at:%H:%M}" == "09:00"
    assert "mon-sun 09:00-18:00 UTC" in text_of(operator.get(page_of(database, "report:1")))


@pytest.mark.parametrize(
    ("calendar", "said"),
    [("shop", "without holidays of shop"), (frozenset({date(2030, 1, 1)}), "without some holidays")],
)
def test_the_page_tells_the_calendar_of_the_window(
    stored_delayq: dict[str, Any], operator: Client, database: str, calendar: Any, said: str
) -> None:
    stored_delayq["CALENDARS"] = {"shop": ["2026-12-25"]}
    forget_settings()
    schedule(window=Window("mon-fri", "09:00", "18:00", zone="Europe/Rome", calendar=calendar), spread="90m")
    told = text_of(operator.get(page_of(database)))
    assert f"mon-fri 09:00-18:00 Europe/Rome {said}; spread over 1h30m" in told


def test_a_window_is_taken_away(operator: Client, database: str) -> None:
    schedule(window=Window("mon-fri", "09:00", "18:00", zone="Europe/Rome"), spread="90m")
    typed(operator, page_of(database, page="edit"), **TYPED)
    assert row(database).window == ""


def test_a_change_keeps_what_the_form_does_not_have(operator: Client, database: str) -> None:
    schedule(tag=("a", "b"), queue="mail", max_attempts=2)
    header = row(database).header
    typed(operator, page_of(database, page="edit"), **{**TYPED, "rule": "every hour", "payload": '{"number": 2}'})
    changed = row(database)
    assert (changed.header, changed.origin) == (header, "call")
    assert get_delay_schedule("s").data == Report(2)  # type: ignore[union-attr]


def test_a_schedule_that_another_has_changed_is_not_saved(operator: Client, database: str) -> None:
    schedule()
    address = page_of(database, page="edit")
    before = hidden(operator.get(address), "before")
    schedule(every=Every(hours=2))
    response = operator.post(address, {**TYPED, "before": before})
    assert "was changed since you opened this page" in text_of(response)
    assert not hidden(response, "shown")


def test_the_log_has_the_change_and_no_data(operator: Client, database: str) -> None:
    typed(operator, url("schedule", "add"), **{**TYPED, "payload": '{"number": 411111}'})
    change = {**TYPED, "payload": '{"number": 422222}', "rule": "every hour"}
    typed(operator, page_of(database, "report:1", "edit"), **change)
    (added, changed) = (message for _name, message in logged())
    assert added.startswith("Schedule added: ")
    assert "rule=every day at 09:00 in Europe/Rome → every hour" in changed
    assert re.search(r"data=#\w+ → #\w+", changed)
    assert "11111" not in added
    assert "22222" not in changed
    assert "Schedule changed" in text_of(operator.get(page_of(database, "report:1")))


# Payloads


def test_data_that_one_may_not_see_are_neither_shown_nor_lost(
    staff: Callable[..., Client], handlers: None, database: str
) -> None:
    schedule(data=Report(411111))
    client = staff("view_schedule", "change_schedule", "edit_payload")
    address = page_of(database, page="edit")
    pages = [
        client.get(page_of(database)),
        client.get(address),
        typed(client, address, **{**TYPED, "rule": "every hour"}),
    ]
    assert not [shown for shown in pages if "411111" in page(shown)]
    info = get_delay_schedule("s")
    assert info
    assert (info.data, info.rule) == (Report(411111), Every(hours=1))


def test_hidden_data_can_not_be_sent_to_another_handler_or_replaced(
    staff: Callable[..., Client], handlers: None, database: str
) -> None:
    schedule(data=Report(411111))
    client = staff("view_schedule", "change_schedule", "view_payload")  # and may not change payloads
    typed(client, page_of(database, page="edit"), **{**TYPED, "key": "other", "payload": "1"})
    info = get_delay_schedule("s")
    assert info
    assert (info.key, info.data) == ("report", Report(411111))


def test_data_that_are_hidden_and_do_not_fit_any_more_are_not_quoted(
    staff: Callable[..., Client], handlers: None, database: str
) -> None:
    schedule()
    Schedule.objects.using(database).update(data='{"number": "411111"}')
    response = typed(staff("change_schedule"), page_of(database, page="edit"), **TYPED)
    assert "does not fit the handler any more" in text_of(response)
    assert "411111" not in page(response)


def test_masked_data_are_shown_masked_and_stay_as_they_are(
    stored_delayq: dict[str, Any], operator: Client, database: str
) -> None:
    stored_delayq["OPTIONS"]["mask"] = f"{without_card.__module__}.{without_card.__name__}"
    forget_settings()
    schedule(data=Report(1, card="4111"))
    address = page_of(database, page="edit")
    pages = [operator.get(page_of(database)), operator.get(address), typed(operator, address, **TYPED)]
    assert "masked for report" in page(pages[0])
    assert not [shown for shown in pages if "4111" in page(shown)]
    assert get_delay_schedule("s").data == Report(1, card="4111")  # type: ignore[union-attr]


# Pausing, running and removing


def test_schedules_are_paused_with_a_reason_and_resumed(operator: Client, database: str) -> None:
    schedule("a")
    schedule("b")
    asked = act(operator, database, "pause_schedules", "a", "b")
    assert "This field is required" in text_of(asked)
    told = text_of(act(operator, database, "pause_schedules", "a", "b", reason="the <printer> burns"))
    assert "Schedule paused: 2 schedules." in told
    assert {each.reason for each in Schedule.objects.using(database).all()} == {"the <printer> burns"}
    assert ids_in(database, ReadyMessage) == set()
    assert "Schedule resumed: 1 schedule." in text_of(act(operator, database, "resume_schedules", "a"))
    assert ids_in(database, ReadyMessage) == {row(database, "a").message_id}
    assert logged() == [
        ("a", "Schedule paused: the <printer> burns"),
        ("b", "Schedule paused: the <printer> burns"),
        ("a", "Schedule resumed"),
    ]
    assert "Schedule paused: the <printer> burns" in text_of(operator.get(page_of(database, "a")))


def test_a_schedule_is_run_now(operator: Client, database: str) -> None:
    schedule()
    assert "Schedule run: 1 schedule." in text_of(act(operator, database, "run_schedules", "s"))
    (id,) = ids_in(database, ReadyMessage) - {row(database).message_id}
    assert logged() == [("s", f"Schedule run: {id}")]


def test_schedules_are_removed(operator: Client, database: str) -> None:
    schedule("a")
    schedule("b")
    assert "Schedule deleted: 1 schedule." in text_of(act(operator, database, "remove_schedules", "a"))
    assert [each.name for each in Schedule.objects.using(database).all()] == ["b"]
    assert ids_in(database, ReadyMessage) == {row(database, "b").message_id}
    assert logged() == [("a", "Schedule deleted")]


def test_what_a_request_acts_on_is_bounded(operator: Client, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    schedule("a")
    schedule("b")
    assert "over 1 schedules" in text_of(act(operator, database, "remove_schedules", "a", "b"))
    assert Schedule.objects.using(database).count() == 2


def test_a_schedule_of_the_code_is_only_paused_and_run(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str
) -> None:
    @delay_execute("nightly", every=DAILY)
    def nightly(message: Message[None]) -> None: ...

    sync_delay_schedules()
    shown = text_of(superuser.get(page_of(database, "nightly")))
    assert "Change the schedule" not in shown
    assert superuser.get(page_of(database, "nightly", "edit")).status_code == 403
    assert superuser.post(page_of(database, "nightly", "edit"), TYPED).status_code == 403
    html = page(superuser.get(page_of(database, "nightly")))
    assert re.findall(r'name="action" value="(\w+)"', html) == ["pause_schedules", "run_schedules"]
    assert "because the code has them: nightly" in text_of(act(superuser, database, "remove_schedules", "nightly"))
    assert row(database, "nightly")
    Schedule.objects.using(database).update(gone_at=timezone.now())
    act(superuser, database, "remove_schedules", "nightly")
    assert not Schedule.objects.using(database).exists()


def test_a_span_is_counted_then_backfilled(operator: Client, database: str) -> None:
    schedule()
    address = page_of(database, page="backfill")
    asked = {"start": "2026-03-01T00:00", "until": "2026-03-03T23:59"}
    counted = operator.post(address, asked)
    assert "3 occurrences." in text_of(counted)
    waits = {row(database).message_id}
    assert ids_in(database, ReadyMessage) == waits
    seen = hidden(counted, "seen")
    operator.post(address, {**asked, "until": "2026-03-04T23:59", "seen": seen})  # it is counted again
    assert ids_in(database, ReadyMessage) == waits
    assert "3 messages are due now." in text_of(operator.post(address, {**asked, "seen": seen}, follow=True))
    expected = {f"s@2026-03-{day:02}T09:00:00[Europe/Rome]" for day in (1, 2, 3)}
    assert ids_in(database, ReadyMessage) == waits | expected
    ((name, message),) = logged()
    assert (name, message[:24]) == ("s", "Schedule backfilled: 3, ")


def test_a_span_is_read_in_the_zone_of_the_schedule(operator: Client, database: str, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule()
    address = page_of(database, page="backfill")
    counted = operator.post(address, {"start": "2026-03-01T09:00", "until": "2026-03-02T08:59"})
    assert "In the time zone Europe/Rome." in text_of(counted)
    assert re.findall(r">\w+ ([\d -]+:00:00)</th>", page(counted)) == ["2026-03-01 09:00:00"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"start": "x", "until": "2026-03-03T00:00"}, "is no date and time"),
        ({"start": "2026-03-03T00:00", "until": "2026-03-02T00:00"}, "It is before the start."),
        ({"start": "2026-03-03T00:00", "until": "2026-03-03T08:00"}, "Nothing occurs in this span."),
        ({"start": "1970-03-03T00:00", "until": "2026-03-02T00:00"}, "over 1,000 occurrences"),
    ],
)
def test_a_span_that_can_not_be_is_told(operator: Client, database: str, asked: dict[str, str], said: str) -> None:
    schedule()
    response = operator.post(page_of(database, page="backfill"), asked)
    assert said in text_of(response)
    assert not hidden(response, "seen")


# Who may do what


def test_each_permission_opens_its_own_part(staff: Callable[..., Client], handlers: None, database: str) -> None:
    schedule()
    needs = {
        "add_schedule": url("schedule", "add"),
        "change_schedule": page_of(database, page="edit"),
        "run_schedule": page_of(database, page="backfill"),
    }
    before = Schedule.objects.using(database).values().get()
    for permission, own in needs.items():
        client = staff("view_schedule", permission)
        for address in needs.values():
            assert client.get(address).status_code == (200 if address == own else 403), (permission, address)
        assert staff(permission).get(LIST).status_code == (200 if permission == "change_schedule" else 403)
    client = staff("view_schedule")
    assert '<form method="post" action' not in page(client.get(page_of(database)))
    for action in ("pause_schedules", "resume_schedules", "run_schedules", "remove_schedules", "delete_selected"):
        act(client, database, action, "s", reason="x")
    assert client.post(page_of(database, page="delete"), {"post": "yes"}).status_code == 200
    assert client.post(page_of(database), TYPED).status_code == 200
    assert Schedule.objects.using(database).values().get() == before
    assert not LogEntry.objects.exists()


def test_an_action_refuses_by_itself_where_a_site_offers_it_to_all(
    staff: Callable[..., Client], handlers: None, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduleAdmin, "moves", ())  # as one would do who wants no buttons
    schedule()
    assert act(staff("view_schedule"), database, "remove_schedules", "s").status_code == 403
    assert row(database)


def test_who_sees_a_part_of_the_messages_sees_no_schedule(
    tenants: DatabaseBackend, registry: None, database: str
) -> None:
    schedule("secret", key="k", data=None)
    client = Client()
    client.force_login(User.objects.create_superuser(OWN))
    assert "you see a part" in text_of(client.get(LIST))
    assert "secret" not in page(client.get(LIST))
    for each in ("change", "edit", "backfill"):
        assert "secret" not in page(client.get(page_of(database, "secret", each), follow=True))
    assert client.get(url("schedule", "add")).status_code == 403
    act(client, database, "remove_schedules", "secret")
    assert row(database, "secret")


def test_without_a_store_nothing_is_offered(
    stored_delayq: dict[str, Any], superuser: Client, handlers: None, database: str
) -> None:
    schedule()
    stored_delayq["STORE"] = None
    forget_settings()
    html = page(superuser.get(LIST))
    assert "There is no store" in html
    assert "pause_schedules" not in html
    assert superuser.get(url("schedule", "add")).status_code == 403


def test_a_schedule_that_is_gone_is_told(operator: Client, database: str) -> None:
    for pk in ("7", "x", "9" * 30, "default:7"):
        assert "any more" in text_of(operator.get(url("schedule", pk, "change"), follow=True))


def test_a_rule_that_fails_is_told_and_not_saved(
    stored_delayq: dict[str, Any], operator: Client, database: str
) -> None:
    stored_delayq["CALENDARS"] = {"shop": f"{__name__}.burnt"}
    forget_settings()
    response = operator.post(url("schedule", "add"), {**TYPED, "calendar": "shop"})
    assert "RuntimeError: it burns" in text_of(response)
    assert 'name="save"' not in page(response)


def burnt(day: date) -> bool:
    """A calendar with a fault."""
    raise RuntimeError("it burns")


def test_the_next_ones_of_a_paused_schedule_begin_now(operator: Client, database: str) -> None:
    schedule(every=Every(days=1, time="09:00", zone="UTC"))
    pause_delay_schedules("s", reason="x")
    assert "next occurrences" in text_of(operator.get(page_of(database)))
    first = re.search(r">\w+ (\d{4}-\d\d-\d\d) 09:00:00</th>", page(operator.get(page_of(database))))
    assert first
    assert datetime.fromisoformat(f"{first[1]}T09:00:00+00:00") - datetime.now(UTC) < timedelta(days=1)
