"""The dashboard: right figures, for who may see them, whatever names say and whatever is away."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from django.db import connections
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.formats import date_format
from pytest_django import Settings

from django_delayq.admin import formatting
from django_delayq.admin.dashboard import sections
from django_delayq.brokers.base import ExecutorInfo, Pause, RunInfo, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.models import FigureRow, ReadyMessage
from django_delayq.store import DatabaseBackend, statistics
from django_delayq.store.statistics import Bounds
from tests.admin.support import asked, bury, claim, finish, page, send, settle, text_of, url
from tests.figure_rows import write_figures

INDEX = "/admin/delayq/"
FIGURES = url("readymessage", "dashboard")
VIEW = ("view_readymessage", "view_errormessage")
MOST_QUERIES = 10
DAY_MS = 86_400_000


def tiles(response: Any) -> dict[str, str]:
    """The numbers by their names."""
    found = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", page(response), re.DOTALL)
    return {name: re.sub(r"<[^>]*>", "", number).strip() for name, number in found}


@pytest.mark.parametrize("address", [INDEX, FIGURES])
def test_the_tiles_count_what_was_really_sent_and_run(broker: DatabaseBackend, superuser: Client, address: str) -> None:
    bury(broker, "e")
    finish(broker, "f")
    send("retried")
    settle(broker, claim(broker), SettleAction.RETRY, delay_ms=60_000, error="ValueError: no")
    send("running")
    claim(broker)
    send("ready")
    send("pending", delay="1d")
    assert tiles(superuser.get(address)) == {
        "Waiting": "3",
        "Due now": "1",
        "Running": "1",
        "Retried": "1",
        "Failed in the last hour": "1",
    }


def test_a_queue_tells_what_waits_and_why_it_does_not_run(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", queue="mail", delay="1h")
    assert "parked: no live worker asks for it" in text_of(superuser.get(INDEX))
    broker.presence.heartbeat(WorkerInfo("host:1", ["mail"], ["order.close"], 0, 0))
    broker.presence.pause(Pause("mail", None, "the gateway is down"))
    shown = text_of(superuser.get(INDEX))
    assert "parked" not in shown
    assert "mail order.close 1 0" in shown
    assert "paused: the gateway is down" in shown


def test_queues_and_keys_that_need_a_person_come_first(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    working(broker, database, "late", "later", "a pending")
    for key in ("late", "later", "z parked"):
        send(key, key=key)
    for key in ("a pending", "b pending, parked"):
        send(key, key=key, delay="1h")
    for key, minutes in (("late", 10), ("later", 20), ("z parked", 1)):
        rows = ReadyMessage.objects.using(database).filter(key=key)
        rows.update(due_at=F("due_at") - minutes * 60_000)
    (table,) = re.findall(r'id="delayq-queues-table".*?</table>', page(superuser.get(FIGURES)), re.DOTALL)
    keys = re.findall(r'<th scope="row"><a[^>]*>(.*?)</a>', table)
    assert keys == ["z parked", "later", "late", "b pending, parked", "a pending"]


def test_a_worker_tells_what_it_runs_and_for_how_long(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client]
) -> None:
    now_ms = broker.queue.counts().now_ms
    runs = [RunInfo("order:42", "default", "order.close", now_ms - 90_000_000)]
    broker.presence.heartbeat(WorkerInfo("host:1", ["default"], ["order.close"], 3, now_ms - 2 * 90_000_000, runs=runs))
    assert re.search(r"host:1 default 2d2h 3 order\.close for 1d1h order:42", text_of(superuser.get(INDEX)))
    assert "order:42" not in page(staff("view_errormessage").get(INDEX))


def working(broker: DatabaseBackend, database: str, *more_keys: str) -> None:
    """A live worker with one slot, and a message of its key that ran for a second."""
    write_figures(database, broker.database.now_ms(), key="order.close", ran_ms=1_000)
    keys = ["order.close", *more_keys]
    executors = [ExecutorInfo(1, dict.fromkeys(keys, 1))]
    broker.presence.heartbeat(
        WorkerInfo("host:1", ["default"], keys, 0, broker.queue.counts().now_ms, executors=executors)
    )


def test_what_falls_due_is_told_by_the_hour(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    working(broker, database)
    at = datetime.now(UTC).replace(minute=30, second=0) + timedelta(hours=2)
    for i in range(20):
        send(f"pending {i}", delay=None, at=at)
    shown = page(superuser.get(INDEX))
    row = r'<td class="delayq-number">20</td><td class="delayq-number">20s</td>'
    assert re.search(row, shown)
    assert "Times are for the live workers, which run up to 1 messages at once." in shown
    assert "Left out" not in shown
    assert "A number with +" not in shown
    assert shown.count('<svg class="delayq-chart" role="img" aria-label="Messages') == 3
    assert "<span>20</span>" in shown
    assert "<span>1 at most</span>" in shown


def test_failed_attempts_are_drawn_over_time_where_there_are_any(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    working(broker, database)
    label = 'aria-label="Failed attempts in each part of the time"'
    assert label not in page(superuser.get(INDEX))
    write_figures(database, broker.database.now_ms(), SettleAction.RETRY, number=3)
    shown = page(superuser.get(INDEX))
    assert label in shown
    assert "<span>3 at most</span>" in shown
    assert "ago: 3 failed</title>" in shown


@pytest.mark.parametrize("use_tz", [True, False])
def test_hours_are_those_of_the_viewers_clock(
    broker: DatabaseBackend, superuser: Client, database: str, settings: Settings, use_tz: bool
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Kathmandu"  # UTC+05:45
    working(broker, database)
    hour = datetime.now(ZoneInfo("Asia/Kathmandu")).replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    for id, minutes in (("before", -1), ("first", 1), ("last", 59)):
        send(id, delay=None, at=hour + timedelta(minutes=minutes))
    shown = page(superuser.get(INDEX))
    assert f"<title>from {date_format(hour, 'TIME_FORMAT')}: 2 due, 2s to drain</title>" in shown
    assert f"{date_format(hour, 'DATETIME_FORMAT')}</time></th>" in shown
    assert f"<span>{date_format(hour + timedelta(hours=1), 'TIME_FORMAT')}</span>" in shown  # below every third bar


def test_what_takes_the_focus_has_an_id_by_which_an_update_keeps_it(broker: DatabaseBackend, superuser: Client) -> None:
    send("a", queue="mail")
    broker.presence.pause(Pause("mail", None, "the gateway is down"))
    runs = [RunInfo("b", "mail", "order.close", broker.queue.counts().now_ms)]
    broker.presence.heartbeat(WorkerInfo("host:1", ["mail"], ["order.close"], 1, 0, runs=runs))
    taking = re.findall(r"<(?:a|button|summary|details)\b[^>]*>|<[^>]*tabindex[^>]*>", page(superuser.get(FIGURES)))
    assert len(taking) > len(tiles(superuser.get(FIGURES)))
    assert [tag for tag in taking if " id=" not in tag] == []


def test_only_a_number_that_was_counted_in_part_has_a_plus(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "FULL", Bounds(pending=3, least=2))
    working(broker, database)
    at = datetime.now(UTC).replace(minute=30, second=0) + timedelta(hours=2)
    for i in range(9):
        send(f"pending {i}", delay=None, at=at + timedelta(seconds=i))
    send("ready")
    shown = tiles(response := superuser.get(INDEX))
    assert "A number with + was counted in part" in text_of(response)
    assert (shown["Waiting"], shown["Due now"], shown["Running"]) == ("7+", "1", "0")
    assert "order.close 6+ 1 " in text_of(response)
    assert '<td class="delayq-number">6+</td><td class="delayq-number">6s+</td>' in page(response)


def test_errors_that_were_counted_in_part_are_so_told_to_a_screen_reader_too(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST", 2)
    bury(broker, "a", "b", "c")
    shown = superuser.get(INDEX)
    assert tiles(shown)["Failed in the last hour"] == "2+"
    assert "2+ messages failed in the last hour." in text_of(shown)


def test_more_queues_and_keys_than_are_shown_are_told_to_be_there(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MOST_PAIRS", 1)
    send("a", key="a")
    assert "There are more" not in text_of(superuser.get(INDEX))
    send("b", key="b")
    assert "There are more, which are not shown here." in text_of(superuser.get(INDEX))
    assert tiles(superuser.get(INDEX))["Waiting"] == "1+"


def test_a_few_slow_messages_in_a_day_are_no_alarm(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    working(broker, database)
    FigureRow.objects.using(database).update(at=F("at") - 10 * DAY_MS)
    for i in range(3):
        send(f"pending {i}", delay="1h")
    assert "delayq-over" not in page(superuser.get(INDEX))


def test_without_a_live_worker_no_time_to_drain_is_told(broker: DatabaseBackend, superuser: Client) -> None:
    finish(broker, "done")
    send("a", delay="1h")
    shown = page(superuser.get(INDEX))
    assert "No worker is alive, so nothing is drained." in shown
    assert '<td class="delayq-number">1</td><td class="delayq-number">no worker</td>' in shown
    assert 'class="delayq-over"' in shown


def test_what_the_times_leave_out_is_named(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    working(broker, database, "new")
    send("a", key="new", delay="1h")
    send("b", key="nobody asks for it", delay="1h")
    shown = text_of(superuser.get(INDEX))
    assert "Left out, because none has run yet: new, nobody asks for it." in shown
    assert "Left out, because no live worker asks for it: default nobody asks for it." in shown
    for i in range(formatting.NAMED):
        send(f"c {i}", key=f"a new one {i}", delay="1h")
    assert f"a new one {formatting.NAMED - 1}…" in text_of(superuser.get(INDEX))


@pytest.mark.parametrize("address", [INDEX, FIGURES])
def test_the_number_of_queries_does_not_grow_with_what_there_is(
    broker: DatabaseBackend, superuser: Client, database: str, address: str
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connections[database]) as captured:
            superuser.get(address)
        return len(asked(captured))

    send("one", delay="1h")
    broker.presence.pause(Pause(None, "one", "x"))
    queries()  # the first page asks whether there is a report
    before = queries()
    for i in range(20):
        send(str(i), key=f"key {i}", delay="1h")
        broker.presence.pause(Pause(None, f"key {i}", "x"))
        broker.presence.heartbeat(
            WorkerInfo(f"host:{i}", ["default"], ["k"], 1, 0, runs=[RunInfo(str(i), "default", "k", 0)])
        )
    assert queries() == before <= MOST_QUERIES


def test_a_broker_that_is_away_is_told_and_the_rows_are_counted(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise BrokerUnavailable("Redis at host:6379: nobody there.")

    send("a")
    monkeypatch.setattr(broker.broker.presence, "workers", away)
    response = superuser.get(INDEX)
    assert "Redis at host:6379: nobody there." in text_of(response)
    assert tiles(response)["Due now"] == "1"
    (said,) = re.findall(r'<div id="delayq-summary" hidden>([^<]*)</div>', page(response))
    assert "The workers are not known" in said
    assert "0 workers" not in said


@pytest.mark.parametrize("address", [INDEX, FIGURES])
def test_who_is_nobody_is_sent_to_log_in(broker: DatabaseBackend, address: str) -> None:
    response = Client().get(address)
    assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/admin/login/")


def test_staff_without_a_permission_of_ours_see_nothing(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    client = staff()
    assert client.get(INDEX).status_code == 404  # as Django has it for an app of which one may see nothing
    assert client.get(FIGURES).status_code == 403


def test_who_may_only_look_is_offered_nothing_else(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    send("a")
    broker.presence.pause(Pause("mail", None, "x"))
    client = staff(*VIEW)
    assert tiles(client.get(INDEX))["Waiting"] == "1"
    assert "/dashboard/pause/" not in page(client.get(INDEX))
    assert "/dashboard/resume/" not in page(client.get(INDEX))
    assert "/dashboard/pause/" in page(staff(*VIEW, "pause_queue").get(INDEX))


def test_links_lead_to_lists_that_one_may_see(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    shown = page(staff("view_readymessage").get(INDEX))
    assert f'href="{url("readymessage", query="?state=ready")}"' in shown
    assert url("errormessage", query="?ended=1h") not in shown


def test_a_key_leads_to_what_waits_for_it_in_its_queue(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client]
) -> None:
    name = "a&b"
    send("meant", key=name, queue="mail")
    send("of another queue", key=name)
    send("of another key", queue="mail")
    address = url("readymessage", query="?queue=mail&key=a%26b")
    link = f'href="{escape(address)}"'
    assert link in page(superuser.get(INDEX))
    listed = text_of(superuser.get(address))
    assert "meant" in listed
    assert "of another" not in listed
    assert link not in page(staff("view_errormessage").get(INDEX))


def test_the_figures_are_only_read(broker: DatabaseBackend, superuser: Client) -> None:
    assert superuser.post(FIGURES).status_code == 405


NAMES = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "{{ 7 }}", "%s&lt;b&gt;"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text_in_every_part(broker: DatabaseBackend, superuser: Client, name: str) -> None:
    send(name, key=name, queue=name)
    broker.presence.pause(Pause(None, name, name))
    broker.presence.heartbeat(WorkerInfo(name, [name], [name], 1, 0, runs=[RunInfo(name, name, name, 0)]))
    for address in (INDEX, FIGURES, url("readymessage", "dashboard", "resume", query=f"?{urlencode({'key': name})}")):
        response = superuser.get(address)
        assert name in text_of(response) or response.status_code == 302
        assert not re.search(r"<script>|<img|<b>", page(response))


@pytest.mark.parametrize("address", [INDEX, FIGURES, url("readymessage", "dashboard", "pause")])
def test_nothing_needs_more_than_a_policy_of_self(broker: DatabaseBackend, superuser: Client, address: str) -> None:
    send("a", delay="1h")
    finish(broker, "f")
    shown = page(superuser.get(address))
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", shown)


def test_several_aliases_are_shown_one_at_a_time(
    settings: Settings, stored_delayq: dict[str, Any], broker: DatabaseBackend, superuser: Client
) -> None:
    settings.DELAYQ = {"default": stored_delayq, "b&b": stored_delayq}
    send("a")
    assert tiles(superuser.get(INDEX))["Waiting"] == "1"
    other = superuser.get(INDEX, {"alias": "b&b"})
    assert tiles(other)["Waiting"] == "0"
    assert 'href="?alias=b%26b" aria-current="page"' in page(other)
    assert 'data-address="/admin/delayq/errormessage/dashboard/?alias=b%26b"' in page(other)
    assert tiles(superuser.get(INDEX, {"alias": "unknown"}))["Waiting"] == "1"


def test_the_dashboard_and_the_lists_open_on_one_alias_which_their_links_keep(
    settings: Settings, stored_delayq: dict[str, Any], broker: DatabaseBackend, superuser: Client
) -> None:
    settings.DELAYQ = {"plain": {**stored_delayq, "STORE": None}, "default": stored_delayq, "mail": stored_delayq}
    send("of default")
    index = superuser.get(INDEX)
    assert tiles(index)["Waiting"] == "1"
    assert 'href="?alias=default" aria-current="page"' in page(index)
    assert "of default" in text_of(superuser.get(url("readymessage")))
    assert 'errormessage/groups/?alias=default"' in page(superuser.get(url("errormessage")))


def test_a_wrong_alias_leaves_the_pages_of_the_others(
    settings: Settings, stored_delayq: dict[str, Any], broker: DatabaseBackend, superuser: Client
) -> None:
    settings.DELAYQ = {"wrong": {"STOER": {}}, "default": stored_delayq}
    send("of default")
    assert tiles(superuser.get(INDEX))["Waiting"] == "1"
    assert "of default" in text_of(superuser.get(url("readymessage")))


def test_it_works_on_an_admin_site_of_ones_own(broker: DatabaseBackend, superuser: Client, settings: Settings) -> None:
    settings.ROOT_URLCONF = "tests.admin.own_site"
    send("a")
    response = superuser.get("/ops/delayq/")
    assert tiles(response)["Waiting"] == "1"
    assert 'data-address="/ops/delayq/errormessage/dashboard/"' in page(response)
    assert 'href="/ops/delayq/errormessage/?ended=1h"' in page(response)
    pause = "/ops/delayq/errormessage/dashboard/pause/"
    done = superuser.post(pause, {"queue": "mail", "reason": "x"}, follow=True)
    assert done.redirect_chain == [("/ops/delayq/", 302)]
    assert "Paused queue 'mail'" in text_of(done)


@pytest.mark.parametrize("use_tz", [True, False])
def test_moments_are_in_the_viewers_zone(
    broker: DatabaseBackend, superuser: Client, settings: Settings, use_tz: bool
) -> None:
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "Asia/Shanghai"
    send("a", delay=None, at=datetime(2040, 1, 1, 16, 30, tzinfo=UTC))
    shown = page(superuser.get(INDEX))
    title = "2040-01-02 00:30:00.000 UTC+08:00 = 2040-01-01 16:30:00.000 UTC"
    assert f'<time datetime="2040-01-01T16:30:00.000Z" title="{title}">Jan. 2, 2040, 12:30 a.m.</time>' in shown
    assert re.search(r"As of <time [^>]*>[^<]* \d\d:\d\d:\d\d UTC\+08:00</time>", shown)


def test_what_workers_did_is_told_by_queue_and_key_for_a_day_or_a_month(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    now_ms = broker.database.now_ms()
    write_figures(database, now_ms, key="order.close", number=24, late_ms=1, ran_ms=1_500)
    write_figures(database, now_ms, SettleAction.BURY, key="order.close", number=3)
    write_figures(database, now_ms - 3 * DAY_MS, queue="mail", key="letter.send", period="day", number=720)
    day, month = (superuser.get(INDEX, query) for query in ({}, {"back": "30d"}))
    assert "default order.close 24 < 0.01 3 3 1ms 2ms " in text_of(day)
    assert "letter.send" not in text_of(day)
    assert text_of(month).index("mail letter.send 720") < text_of(month).index("default order.close 24")
    assert 'href="?back=30d" aria-current="true"' in page(month)
    assert 'data-address="/admin/delayq/errormessage/dashboard/?back=30d"' in page(month)
    assert re.search(r"<title>4d ago: 720 finished</title>", page(month))


def test_a_key_with_html_in_it_is_text(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    hostile = "<script>alert(1)</script>"
    write_figures(database, broker.database.now_ms(), queue='"><b>', key=hostile)
    for query in ({}, {"back": "30d"}):
        shown = page(superuser.get(INDEX, query))
        assert hostile not in shown
        assert '"><b>' not in shown
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


def test_only_the_busiest_queues_and_keys_are_told_of(
    broker: DatabaseBackend, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "MOST_KEYS", 1)
    write_figures(database, broker.database.now_ms(), key="few")
    assert "There are more" not in text_of(superuser.get(INDEX))
    write_figures(database, broker.database.now_ms(), key="many", number=2)
    shown = text_of(superuser.get(INDEX))
    assert "default many 2" in shown
    assert "default few 1" not in shown
    assert "There are more, which are not shown here." in shown


def test_what_has_no_row_of_its_own_is_told_as_others(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    write_figures(database, broker.database.now_ms(), queue="", key="", number=7)
    assert "all others 7" in text_of(superuser.get(INDEX))


def test_who_may_not_look_at_the_dashboard_sees_no_figures_of_a_month(staff: Any, client: Client) -> None:
    assert staff("pause_queue").get(FIGURES, {"back": "30d"}).status_code == 403
    assert client.get(FIGURES, {"back": "30d"}).status_code == 302
