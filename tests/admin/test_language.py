"""On a site in Chinese every page speaks Chinese, whatever there is to tell."""

import re
from datetime import date, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import translation
from pytest_django import Settings

from django_delayq import (
    At,
    Cron,
    Every,
    RRule,
    Window,
    cancel_delay_messages,
    reschedule_delay_messages,
    schedule_delay_message,
    undo_delay_action,
)
from django_delayq.admin.bulk import actions, jobs
from django_delayq.admin.schedules.words import FORMS
from django_delayq.api.handlers import delay_execute
from django_delayq.brokers.base import Pause, RunInfo, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable, DelayqError
from django_delayq.core.message import Message
from django_delayq.models import ActionRow, ErrorMessage, FinishMessage, MessageRow, ReadyMessage, Schedule
from django_delayq.store import DatabaseBackend
from django_delayq.support.translatable import text
from django_delayq.testing import run_due
from django_delayq.translation import translated
from tests.admin.support import (
    LISTS,
    ask,
    bury,
    claim,
    confirm,
    finish,
    forget_settings,
    page,
    pk_of,
    send,
    settle,
    text_of,
    url,
)

INDEX = "/admin/delayq/"
PAUSE = url("readymessage", "dashboard", "pause")
KEY, QUEUE, WORKER = "κλειδί", "ουρά", "εργάτης"

# Names, and what the address of a list and a search are made of.
SAME = {"csv", "database", "django", "json", "utc", "broker", "default", "delayq", "id", "ids", "int", "manage", "ms"}
SAME |= {"py", "run", "worker", "move", "key", "queue", "none", "data", "order", "host", "action"}

# What Django's own templates leave in English, what msgspec says, and the name of the site's time zone.
OF_OTHERS = re.compile(
    "^(Add link|Change or view list link|Model name|Search|- Select an option -)$"
    "|Expected `int`, got `object`|Input data was truncated|America/New_York"
)

# What is typed in English and told so: rules and windows, names of zones and exceptions, what libraries say.
AS_TYPED = re.compile(
    "|".join(re.escape(example) for _form, example in FORMS)
    + r"|every day at 9:00$|(mon|sat)[-,a-z]* [\d:-]+|FREQ=\S+|RRULE|cron|Europe/Rome|'[^']*'|name@|zone=|ValueError"
    "|null|Bad day-of-week"
)


class Told(HTMLParser):
    """Collects what people are told on a page: its text, and the attributes that are shown or read out."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in ("script", "style")
        given = dict(attrs)
        shown = ["aria-label", "alt", "placeholder", "title"] + ["value"] * (
            tag == "input" and given.get("type") == "submit"
        )
        self.texts += [value for name in shown if (value := given.get(name))]

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.texts.append(data)


def english(response: Any) -> list[str]:
    """The texts of a page with words that no name has."""
    told = Told()
    told.feed(page(response))
    ours = (OF_OTHERS.sub("", " ".join(each.split())) for each in told.texts)
    return [each for each in ours if set(re.findall("[a-z]{2,}", each.lower())) - SAME]


@pytest.fixture
def database(sqlite_database: str) -> str:
    """Texts don't depend on the database."""
    return sqlite_database


@pytest.fixture
def superuser(superuser: Client, settings: Settings) -> Client:
    """Return a client whose user reads Chinese."""
    settings.LANGUAGE_CODE = "zh-hans"
    User.objects.update(username="ρίζα")
    return superuser


@pytest.fixture
def of_each_kind(broker: DatabaseBackend, registry: None) -> None:
    """Messages of each state, and what the dashboard tells of."""

    @delay_execute(KEY, max_attempts=3)
    def handler(message: Message[int]) -> None: ...

    bury(broker, "1", data=1, key=KEY, error="Σφάλμα", detail="Ίχνος", fingerprint="Σφάλμα", tag="ετικέτα")
    finish(broker, "2", data=2, key=KEY)
    send("3", 3, key=KEY)
    broker.queue.cancel(["3"])
    send("4", 4, key=KEY)
    settle(broker, claim(broker, KEY, WORKER), SettleAction.RETRY, error="Σφάλμα", failed=True, delay_ms=3_600_000)
    send("5", 5, key=KEY, max_attempts=2)
    claim(broker, KEY, WORKER)
    send("6", 6, key=KEY)
    send("7", 7, key=KEY, queue=QUEUE, expires="1h", at_most_once=True)
    now_ms = broker.queue.counts().now_ms
    runs = [RunInfo("5", "default", KEY, now_ms)]
    broker.presence.heartbeat(WorkerInfo(WORKER, [QUEUE], [KEY], 1, now_ms, runs=runs))
    for pause in (Pause(QUEUE, None, "λόγος"), Pause(None, KEY, "λόγος", now_ms + 60_000), Pause(QUEUE, KEY, "λόγος")):
        broker.presence.pause(pause)


def test_the_pages_speak_the_language_of_the_site(
    of_each_kind: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [
        superuser.get(INDEX),
        superuser.get(url("anymessage")),
        superuser.get(url("errormessage", "groups")),
        superuser.get(url("reportrow")),
    ]
    failed = pk_of(database, "1", ErrorMessage)
    editor = url("errormessage", failed, "payload")
    shown += [
        superuser.get(editor),
        superuser.post(editor, {"payload": '"'}),
        superuser.post(editor, {"payload": "{}"}),
    ]
    for model, name in LISTS.items():
        pks = list(model._default_manager.using(database).values_list("pk", flat=True))
        time = "due" if model is ReadyMessage else "ended"
        shown += [superuser.get(url(name)), superuser.get(url(name), {f"{time}_from": "1"})]
        shown += [ask(superuser, model, action, pks) for action in moves_of(model)]
        shown += [superuser.get(url(name, pk, "change")) for pk in pks]
    confirm(superuser, ErrorMessage, "rescue", [failed])
    confirm(superuser, ReadyMessage, "reschedule", [failed], how="shift", length="1")
    shown.append(superuser.get(url("readymessage", failed, "change")))
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    jobs.register("default")
    shown.append(confirm(superuser, ReadyMessage, "cancel", [failed], all_that_match=True, query=f"?key={KEY}"))
    assert [each for response in shown for each in english(response)] == []


def test_an_undo_is_told_in_it(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    jobs.register("default")
    for id in "123":
        send(id, key=KEY, delay="1h")
    cancel_delay_messages("1", "2", action="α", by="β")
    reschedule_delay_messages("3", delay="2h", action="γ")
    by_job, at_once = (
        url("readymessage", "undo", ActionRow.objects.using(database).get(name=name).pk) for name in ("α", "γ")
    )
    shown = [superuser.get(url("actionrow")), superuser.get(by_job), superuser.post(by_job, follow=True)]
    run_due()
    shown += [superuser.get(shown[-1].redirect_chain[0][0]), superuser.post(by_job, follow=True)]
    shown += [superuser.get(at_once), superuser.post(at_once, follow=True), superuser.get(url("actionrow"))]
    assert [each for response in shown for each in english(response)] == []


def test_why_an_action_is_refused_is_told_in_it(broker: DatabaseBackend) -> None:
    cancel_delay_messages("1", action="α")
    undo_delay_action("α")
    cancel_delay_messages("1", action="β")
    for refused in (
        lambda: undo_delay_action("γ"),
        lambda: cancel_delay_messages("1", action="α"),
        lambda: reschedule_delay_messages("1", delay=0, action="β"),
    ):
        with pytest.raises(DelayqError) as raised:
            refused()
        with translation.override("zh-hans"):
            assert not re.search("[a-z]{2,}", translated(raised.value))


def moves_of(model: type[MessageRow]) -> list[str]:
    """Return what may be asked for of a table's rows."""
    return {
        ReadyMessage: ["run_now", "reschedule", "cancel", "purge"],
        ErrorMessage: ["rescue", "purge_failed"],
        FinishMessage: [],
    }[model]


@pytest.mark.parametrize(
    "asked",
    [
        {"reason": "λόγος"},
        {"queue": "α:β", "reason": "λόγος"},
        {"queue": QUEUE, "reason": "λόγος", "length": "αύριο"},
        {"queue": QUEUE, "reason": "λόγος", "length": "0s"},
        {"queue": QUEUE, "reason": "λόγος", "length": "999999999d"},
    ],
)
def test_what_can_not_be_paused_is_said_in_it(
    broker: DatabaseBackend, superuser: Client, asked: dict[str, str]
) -> None:
    response = superuser.post(PAUSE, asked)
    assert "errorlist" in page(response)
    assert english(response) == []


def test_a_broker_that_is_away_is_told_in_it(
    of_each_kind: None, broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*arguments: object) -> None:
        raise BrokerUnavailable(text("%(server)s is away: %(said)s", server="1", said="2"))

    monkeypatch.setattr(broker.broker.presence, "workers", away)
    assert english(superuser.get(INDEX)) == []


def test_pausing_and_resuming_are_told_in_it(broker: DatabaseBackend, superuser: Client) -> None:
    shown = [superuser.post(PAUSE, {"queue": QUEUE, "reason": "λόγος"}, follow=True)]
    resume = url("readymessage", "dashboard", "resume", query=f"?queue={QUEUE}")
    shown += [superuser.get(resume), superuser.post(resume, follow=True), superuser.get(reverse("admin:index"))]
    assert text_of(shown[-1]).count(f"队列 '{QUEUE}'") == 2  # what was done lately, at the admin's index
    assert [each for response in shown for each in english(response)] == []


def test_lists_are_put_together_as_chinese_does_it(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    broker.presence.heartbeat(WorkerInfo(WORKER, [QUEUE, "mail"], ["α", "β"], 0, 0))
    broker.presence.pause(Pause(None, "γ", "λόγος"))
    bury(broker, "1", "2", key="α")
    for id, key in (("1", "α"), ("2", "β"), ("3", "γ")):
        send(id, key=key)
    shown = text_of(superuser.get(INDEX))
    assert f"{QUEUE}、mail" in shown
    assert "β、γ。" in shown
    assert re.search("搁置[^；]*；已暂停：λόγος", shown)
    assert "0、0、2" in page(superuser.get(url("errormessage", "groups")))
    pks = [pk_of(database, id, ErrorMessage) for id in ("1", "2")]
    assert "(1、2)" in text_of(confirm(superuser, ErrorMessage, "rescue", pks))


def test_schedules_are_told_in_it(
    broker: DatabaseBackend, registry: None, superuser: Client, database: str, stored_delayq: dict[str, Any]
) -> None:
    @delay_execute(KEY)
    def handler(message: Message[Any]) -> None: ...

    stored_delayq["CALENDARS"] = {"ημέρες": ["2026-12-25"]}
    forget_settings()
    zone, start = "America/New_York", datetime(2030, 1, 1, 9)
    window = Window("mon-fri", "09:00", "18:00", zone=zone, calendar="ημέρες")
    rules: list[Any] = [
        Every(days=1, time="09:00", zone=zone, calendar="ημέρες"),
        Every(weeks=2, weekdays="mon-fri", time="09:00", zone=zone, since=date(2030, 1, 1)),
        Every(hours=1, minutes=30),
        *(Every(months=2, day=number, time="9:00", zone=zone) for number in (1, 2, 3, 11, -1, -2)),
        Every(months=1, business_day=-1, time="9:00", zone=zone),
        Cron("0 9 * * 1-5", zone=zone),
        RRule("FREQ=DAILY", start=start, zone=zone),
    ]
    for number, every in enumerate(rules):
        schedule_delay_message(KEY, None, name=f"{number}", every=every, window=window, spread="1h")
    send("1", key=KEY, delay=None, at=At(days=3, months=1, business_days=2, time="02:30", zone=zone), window=window)
    send("2", key=KEY, delay=None, at=At(time="00:00", zone=zone), window=window, spread="1h")
    messages = ReadyMessage.objects.using(database).values_list("pk", flat=True)
    shown = [superuser.get(url("readymessage", pk, "change")) for pk in messages]
    by_name = Schedule.objects.using(database)
    by_name.filter(name="1").update(rule='{"days": 1, "time": "9:00", "zone": "Λ"}')
    unread = '{"from_ms":0,"windows":[{"weekdays":"mon","start":"9:00","end":"10:00","zone":"Λ"}]}'
    by_name.filter(name="2").update(window=unread)
    pks = by_name.values_list("pk", flat=True)
    shown += [superuser.get(url("schedule")), superuser.get(url("schedule", "add"))]
    shown += [superuser.get(url("schedule", pk, page)) for pk in pks for page in ("change", "edit", "backfill")]
    typed = {"name": "ν", "key": KEY, "payload": "null", "zone": zone, "catch_up": "last", "overlap": "skip"}
    for rule in ("λ", "every λ at 9", "every day at λ", "every day", "* * * * λ", "FREQ=λ", "every day at 9:00"):
        shown.append(superuser.post(url("schedule", "add"), {**typed, "rule": rule, "window": "λ"}))
        shown.append(superuser.post(url("schedule", "add"), {**typed, "rule": rule}))
    left = {AS_TYPED.sub("", each) for response in shown for each in english(response)}
    assert [each for each in left if set(re.findall("[a-z]{2,}", each.lower())) - SAME] == []
