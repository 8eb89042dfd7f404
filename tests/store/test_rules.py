"""The rule of a due time is kept beside the message: for its retries, for people, and for `delayq resolve`."""

import logging
import zoneinfo
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import (
    At,
    Every,
    Handler,
    Message,
    Retry,
    Send,
    Window,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    reschedule_delay_messages,
    schedule_delay_message,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.base import BATCH, SettleAction
from django_delayq.core.rules import decode, encode, zones
from django_delayq.models import FinishMessage, ReadyMessage, RuleRow
from django_delayq.store import DatabaseBackend, rules
from django_delayq.store.forget import forget
from django_delayq.store.operations import prune_errors, prune_finished, remove
from django_delayq.support.timestamps import to_epoch_ms
from tests.brokers.rig import settlement
from tests.commands.support import delayq, delayq_json
from tests.store.support import claim

DAY_MS = 86_400_000
HOUR = timedelta(hours=1)
HALF_AN_HOUR = 1_800_000
NINE = At(days=3, time="09:00", zone="Europe/Rome")
ALWAYS = Window("mon-sun", "00:00", "24:00", zone="Europe/Rome")


def _closed(zone: str = "UTC", hours: int = 3, **options: Any) -> Window:
    """A window that opens on the hour, in two to three hours, for an hour."""
    opens = (datetime.now(UTC) + timedelta(hours=hours)).astimezone(zoneinfo.ZoneInfo(zone))
    return Window("mon-sun", f"{opens:%H}:00", f"{opens + HOUR:%H}:00", zone=zone, **options)


def _rules(database: str) -> dict[str, RuleRow]:
    """The rows by the id of their message, wherever that is."""
    rows = {row.pk: row for row in RuleRow.objects.using(database)}
    found = {}
    for model in (ReadyMessage, FinishMessage):
        for message in model._default_manager.using(database).filter(pk__in=rows):
            found[message.message_id] = rows[message.pk]
    return found


def _zones(row: RuleRow) -> frozenset[str]:
    return zones(decode(row.rule))


def _due_at(id: str) -> datetime:
    info = get_delay_message(id)
    assert info is not None
    return info.due_at


def _asked(database: str, work: Callable[[], object]) -> list[str]:
    """The statements about rules."""
    with CaptureQueriesContext(connections[database]) as captured:
        work()
    return [each["sql"] for each in captured if "delayq_rule" in each["sql"]]


# What is kept


@pytest.mark.parametrize(
    "when",
    [
        {"at": NINE},
        {"delay": "1h", "window": ALWAYS},
        {"delay": "1h", "window": [ALWAYS, Window("sat", "10:00", "11:00", zone="Asia/Tokyo")], "spread": "30m"},
        {"at": datetime(2100, 1, 1, tzinfo=UTC), "window": Window("mon", "10:00", "11:00", zone="UTC", calendar=[])},
    ],
    ids=["at", "window", "windows", "instant"],
)
def test_a_rule_is_kept_with_the_due_time_that_it_gave(
    broker: DatabaseBackend, database: str, when: dict[str, Any]
) -> None:
    send_delay_message("k", 1, id="a", **when)
    send_delay_messages([Send("k", 1, id="b", **when), Send("k", 1, id="c")])
    kept = _rules(database)
    assert set(kept) == {"a", "b"}
    for id, row in kept.items():
        assert row.alias == "default"
        assert row.due_at == ReadyMessage.objects.using(database).get(message_id=id).due_at
        assert decode(row.rule).due_ms(id) == to_epoch_ms(row.due_at)


def test_who_gives_no_rule_pays_for_none(broker: DatabaseBackend, database: str) -> None:
    def work() -> None:
        send_delay_message("k", 1, id="a", delay="1h")
        send_delay_message("k", 1, id="b", at=datetime(2100, 1, 1, tzinfo=UTC), spread="1h")
        send_delay_message("k", 1, id="a", delay="2h", on_conflict="latest")
        send_delay_messages(Send("k", n) for n in range(3))
        reschedule_delay_messages("a", delay="3h")
        claim(broker)

    assert _asked(database, work) == []


def test_a_rule_that_cannot_be_written_is_not_kept(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", window=_closed(calendar=lambda day: False))
    assert not RuleRow.objects.using(database).exists()


def test_a_send_with_a_rule_is_all_or_nothing(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        send_delay_message("k", 1, at=NINE)
        transaction.set_rollback(True, using=database)
    assert not RuleRow.objects.using(database).exists()

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if "INTO" in sql and "delayq_rule" in sql:
            raise ZeroDivisionError
        return execute(sql, *rest)

    with connections[database].execute_wrapper(fail), pytest.raises(ZeroDivisionError):
        send_delay_message("k", 1, at=NINE)
    assert not ReadyMessage.objects.using(database).exists()


@pytest.mark.parametrize(
    ("on_conflict", "when", "expected"),
    [
        ("keep", {"delay": "1h", "window": ALWAYS}, {"UTC"}),
        ("replace", {"delay": "1h", "window": ALWAYS}, {"Europe/Rome"}),
        ("replace", {"delay": "1h"}, None),
        ("earliest", {"delay": "1h", "window": ALWAYS}, {"Europe/Rome"}),
        ("latest", {"delay": "1h", "window": ALWAYS}, {"UTC"}),
    ],
)
def test_the_rule_is_that_of_the_send_that_gave_the_due_time(
    broker: DatabaseBackend, database: str, on_conflict: Any, when: dict[str, Any], expected: set[str] | None
) -> None:
    send_delay_message("k", 1, id="a", at=At(days=3, time="09:00", zone="UTC"))
    send_delay_message("k", 1, id="a", on_conflict=on_conflict, **when)
    kept = _rules(database)
    assert ({zone for row in kept.values() for zone in _zones(row)} or None) == expected
    assert all(row.due_at == _due_at("a") for row in kept.values())


def test_a_message_that_is_refused_brings_no_rule(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claim(broker)])
    assert send_delay_message("k", 1, id="a", at=NINE, id_scope="all").ended
    assert not RuleRow.objects.using(database).exists()


def test_a_reschedule_by_a_rule_brings_its_own(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    send_delay_message("k", 1, id="b", at=NINE)
    assert reschedule_delay_messages("a", "b", "c", at=At(days=1, time="09:00", zone="Asia/Tokyo")) == 2
    assert {id: _zones(row) for id, row in _rules(database).items()} == {id: {"Asia/Tokyo"} for id in "ab"}
    reschedule_delay_messages("b", delay=0, window=_closed("Asia/Kolkata"))
    assert _zones(_rules(database)["b"]) == {"Asia/Kolkata"}
    assert _rules(database)["b"].due_at == _due_at("b")


def test_a_plain_reschedule_leaves_the_rule_behind(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", at=NINE)
    assert _asked(database, lambda: reschedule_delay_messages("a", delay="1h")) == []
    assert _rules(database)["a"].due_at != _due_at("a")


def test_a_reschedule_by_a_rule_is_all_or_nothing(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    before = _due_at("a")

    def fail(execute: Any, sql: str, *rest: Any) -> Any:
        if "delayq_rule" in sql:
            raise ZeroDivisionError
        return execute(sql, *rest)

    with connections[database].execute_wrapper(fail), pytest.raises(ZeroDivisionError):
        reschedule_delay_messages("a", at=NINE)
    assert _due_at("a") == before


@pytest.mark.parametrize("way", ["purge", "purge failed", "prune", "prune failed", "archive", "forget"])
def test_a_rule_ends_with_its_message(broker: DatabaseBackend, database: str, way: str) -> None:
    for id in ("a", "b"):
        send_delay_message("k", 1, id=id, delay="1h" if way == "purge" else 0, window=ALWAYS)
    if way != "purge":
        ended = SettleAction.BURY if "failed" in way else SettleAction.FINISH
        held = claim(broker)
        broker.queue.apply([settlement(one, ended) for one in held if one.id == "a"])
        broker.queue.apply([settlement(one, SettleAction.RELEASE) for one in held if one.id == "b"])
    assert RuleRow.objects.using(database).count() == 2
    later_ms = broker.database.now_ms() + DAY_MS
    ways: dict[str, Callable[[], object]] = {
        "purge": lambda: broker.queue.purge(["a"]),
        "purge failed": lambda: broker.queue.purge_failed(["a"]),
        "prune": lambda: prune_finished(broker.database, later_ms),
        "prune failed": lambda: prune_errors(broker.database, later_ms),
        "archive": lambda: remove(broker.database, "delayq_finish", [FinishMessage.objects.using(database).get().pk]),
        "forget": lambda: forget(broker.database, ["a"]),
    }
    ways[way]()
    assert set(_rules(database)) == {"b"}
    assert RuleRow.objects.using(database).count() == 1


# Retries and snoozes


def test_a_claim_brings_the_rule_once_there_is_any(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", window=ALWAYS)
    send_delay_message("k", 1, id="b")
    broker.database.has_rules = False  # as in a worker's process
    broker.queue.maintain(lease_ms=60_000)
    held = {one.id: one for one in claim(broker)}
    assert decode(held["a"].rule).windows == (ALWAYS,)
    assert held["b"].rule == ""
    RuleRow.objects.using(database).delete()
    broker.queue.look_again()
    broker.queue.maintain(lease_ms=60_000)
    broker.queue.apply([settlement(one, SettleAction.RELEASE) for one in held.values()])
    assert _asked(database, lambda: claim(broker)) == []


@pytest.fixture
def remind(registry: None, broker: DatabaseBackend) -> Handler[int, None]:
    """A handler that fails, in a window that is closed for two to three hours."""

    @delay_execute("k", window=_closed("Europe/Rome"))
    def remind(message: Message[int]) -> None:
        raise Retry("1m")

    return remind


def _worked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.NOTSET, "django_delayq")  # the command sets it: it is as before at the end
    call_command("run_delayq", "--drain", verbosity=0)


def _opens(hours: int) -> datetime:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_worker_retries_in_the_window_of_the_message_or_its_handler(
    remind: Handler[int, None], broker: DatabaseBackend, caplog: pytest.LogCaptureFixture, is_own: bool
) -> None:
    remind.send(1, id="a", window=_closed("Asia/Tokyo", 5) if is_own else None)
    opens = _opens(5 if is_own else 3)
    assert _due_at("a") == opens
    reschedule_delay_messages("a", delay=0)  # a plain one says nothing of the window
    broker.database.has_rules = False
    _worked(caplog)
    info = get_delay_message("a")
    assert info is not None
    assert (info.failures, info.due_at) == (1, opens)


def test_the_window_of_a_handler_is_that_of_its_sends(remind: Handler[int, None], database: str) -> None:
    assert remind.send(1, id="a").due_at == _opens(3)
    assert remind.send(1, id="b", window=_closed(hours=5)).due_at == _opens(5)
    send_delay_messages([remind.prepare(1, id="c"), remind.prepare(1, id="d", window=ALWAYS)])
    assert _due_at("c") == _opens(3)
    assert _due_at("d") < datetime.now(UTC) + HOUR
    assert {id: _zones(row) for id, row in _rules(database).items()} == {
        "a": {"Europe/Rome"},
        "b": {"UTC"},
        "c": {"Europe/Rome"},
        "d": {"Europe/Rome"},
    }


# Words


def test_explain_shows_the_rule_in_words(broker: DatabaseBackend, database: str) -> None:
    with time_machine.travel(datetime(2026, 3, 28, 12, tzinfo=UTC), tick=False):
        send_delay_message("k", 1, id="a", at=At(days=30_000, time="09:00", zone="Europe/Rome"))
    told = delayq("explain", "a")
    assert "rule: Sat 2026-03-28 13:00: asked for in Europe/Rome\n" in told
    assert "30000 days on" in told
    assert delayq_json("explain", "a")["facts"]["rule"][0] == "Sat 2026-03-28 13:00: asked for in Europe/Rome"
    reschedule_delay_messages("a", delay="1h")
    assert "rule: the message is due at another time than it gave\n" in delayq("explain", "a")
    for action in (SettleAction.FINISH, SettleAction.BURY):
        send_delay_message("k", 1, id=action, window=ALWAYS)
        broker.queue.apply([settlement(one, action) for one in claim(broker)])
        assert "in the window from here on in Europe/Rome" in delayq("explain", action)
    send_delay_message("k", 1, id="b")
    assert "rule:" not in delayq("explain", "b")
    assert delayq_json("explain", "b")["facts"]["rule"] == []


# `delayq resolve`


def _lines(*arguments: str) -> list[str]:
    return delayq("resolve", "--zone", "Europe/Rome", *arguments).splitlines()


def _iso(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count_from_noon(database: str) -> None:
    """Make local times count from noon in Rome: then it is the same day an hour ahead, and only the hour differs."""
    for row in RuleRow.objects.using(database):
        rule = decode(row.rule)
        if rule.at is not None:
            sent = datetime.fromtimestamp(rule.from_ms / 1000, zoneinfo.ZoneInfo("Europe/Rome"))
            noon = sent.replace(hour=12, minute=0, second=0, microsecond=0)
            row.rule = encode(replace(rule, from_ms=to_epoch_ms(noon))) or ""
            row.save()


def test_a_change_of_a_zone_moves_the_messages_that_it_made_wrong(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None], database: str
) -> None:
    send_delay_message("k", 1, id="local", at=NINE, expires="1d")
    send_delay_message("k", 1, id="window", window=_closed("Europe/Rome", 30), spread="30m")
    send_delay_message("k", 1, id="tokyo", at=At(days=3, time="09:00", zone="Asia/Tokyo"))
    send_delay_message("k", 1, id="plain", delay="1h")
    send_delay_message("k", 1, id="stale", at=NINE)
    reschedule_delay_messages("stale", delay="2h")
    send_delay_message("k", 1, id="cancelled", at=NINE)
    cancel_delay_messages("cancelled")
    count_from_noon(database)
    before = {id: _due_at(id) for id in ("local", "window", "tokyo", "plain", "stale")}
    assert _lines() == ["moved 0 of 2 messages with a rule in Europe/Rome"]
    change_zone("Europe/Rome", "Europe/Athens")  # an hour ahead
    moved = [
        f"local: {_iso(before['local'])} -> {_iso(before['local'] - HOUR)}",
        f"window: {_iso(before['window'])} -> {_iso(before['window'] - HOUR)}",
    ]
    assert _lines("--dry-run") == [*moved, "would move 2 of 2 messages with a rule in Europe/Rome"]
    assert {id: _due_at(id) for id in before} == before
    assert _lines() == [*moved, "moved 2 of 2 messages with a rule in Europe/Rome"]
    after = before | {id: before[id] - HOUR for id in ("local", "window")}
    assert {id: _due_at(id) for id in before} == after
    info = get_delay_message("local")
    assert info is not None
    assert info.expires_at == info.due_at + timedelta(days=1)
    assert _lines() == ["moved 0 of 2 messages with a rule in Europe/Rome"]
    change_zone("Europe/Rome", "Asia/Tokyo")
    assert _lines()[-1] == "moved 2 of 2 messages with a rule in Europe/Rome"
    assert _lines()[-1] == "moved 0 of 2 messages with a rule in Europe/Rome"


def test_a_message_whose_new_time_is_past_is_due_and_that_is_said(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None]
) -> None:
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=30)
    local = due.astimezone(zoneinfo.ZoneInfo("Europe/Rome"))
    with time_machine.travel(due - timedelta(hours=12), tick=False):
        send_delay_message("k", 1, id="a", at=At(time=f"{local:%H:%M}", zone="Europe/Rome"))
    assert _due_at("a") == due
    change_zone("Europe/Rome", "Europe/Athens")
    assert _lines() == [
        f"a: {_iso(due)} -> {_iso(due - HOUR)}, which is past",
        "moved 1 of 1 message with a rule in Europe/Rome, 1 of them to a time that is past",
    ]
    assert [one.id for one in claim(broker)] == ["a"]
    assert _lines() == ["moved 0 of 0 messages with a rule in Europe/Rome"]


@pytest.mark.parametrize("later", ["reschedule", "resolve"])
def test_one_that_was_moved_to_the_past_expires_as_long_after_its_next_due_time_as_before(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None], database: str, later: str
) -> None:
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=10)
    local = due.astimezone(zoneinfo.ZoneInfo("Europe/Rome"))
    with time_machine.travel(due - timedelta(hours=12), tick=False):
        send_delay_message("k", 1, id="a", at=At(time=f"{local:%H:%M}", zone="Europe/Rome"), expires="1h")
    ReadyMessage.objects.using(database).update(sent_at=due - timedelta(hours=12))
    change_zone("Europe/Rome", "Asia/Tokyo")
    _lines()
    if later == "reschedule":
        reschedule_delay_messages("a", delay="1d")
    else:
        change_zone("Europe/Rome", "Atlantic/Azores")
        _lines()
    info = get_delay_message("a")
    assert info is not None
    assert info.expires_at is not None
    assert info.due_at > datetime.now(UTC)
    assert info.expires_at - info.due_at == HOUR


def test_a_message_that_has_expired_is_left(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None], database: str
) -> None:
    send_delay_message("k", 1, id="a", at=NINE, expires="1d")
    ReadyMessage.objects.using(database).update(expires_at=datetime.now(UTC))
    count_from_noon(database)
    change_zone("Europe/Rome", "Europe/Athens")
    assert _lines() == ["moved 0 of 1 message with a rule in Europe/Rome"]


FASTER: dict[str, Callable[[DatabaseBackend], object]] = {
    "cancel": lambda broker: cancel_delay_messages("a"),
    "reschedule": lambda broker: reschedule_delay_messages("a", delay="1h"),
    "replace": lambda broker: send_delay_message("k", 2, id="a", delay="1h", on_conflict="replace"),
}


@pytest.mark.parametrize("faster", FASTER.values(), ids=FASTER)
def test_who_is_faster_than_the_correction_wins(
    broker: DatabaseBackend,
    change_zone: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    faster: Callable[[DatabaseBackend], object],
) -> None:
    send_delay_message("k", 1, id="a", at=NINE)
    look_at, due = rules._look_at, []

    def look_and_be_late(*arguments: Any) -> rules.Looked:
        found = look_at(*arguments)
        faster(broker)
        due.append(_due_at("a"))
        return found

    monkeypatch.setattr(rules, "_look_at", look_and_be_late)
    change_zone("Europe/Rome", "Europe/Athens")
    told = _lines()
    assert told[0].endswith(": left")
    assert told[1:] == [
        "moved 0 of 1 message with a rule in Europe/Rome",
        "left 1: they started, or got another due time, meanwhile",
    ]
    assert _due_at("a") == due[0]


@pytest.mark.parametrize("then", [None, SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.FINISH])
def test_a_message_that_started_meanwhile_is_left(
    broker: DatabaseBackend, database: str, then: SettleAction | None
) -> None:
    send_delay_message("k", 1, id="a", window=ALWAYS)
    row = ReadyMessage.objects.using(database).get()
    due_ms = to_epoch_ms(row.due_at)
    correction = rules.Correction("a", row.pk, RuleRow.objects.using(database).get().rule, due_ms, due_ms + DAY_MS)
    held = claim(broker)
    if then is not None:
        broker.queue.apply([settlement(one, then, delay_ms=60_000) for one in held])
    before = _due_at("a")
    assert broker.queue.correct([correction]) == [False]
    assert _due_at("a") == before


def test_rules_are_looked_at_in_bounded_pages(
    broker: DatabaseBackend, database: str, change_zone: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "BATCH", 10)
    send_delay_messages(
        Send("k", n, id=f"{n:02}", at=NINE if n % 3 else At(days=3, time="09:00", zone="UTC")) for n in range(45)
    )
    change_zone("Europe/Rome", "Europe/Athens")
    ids = [f"{n:02}" for n in range(45) if n % 3]
    told = _lines()
    assert told[-1] == "moved 30 of 30 messages with a rule in Europe/Rome"
    assert sorted(line.partition(":")[0] for line in told[:-1]) == ids
    assert len(_asked(database, lambda: list(rules.look(broker.database, "Europe/Rome")))) == 1 + 2 * 5
    assert BATCH > 10


def test_a_rule_that_cannot_be_resolved_is_told_and_left(
    broker: DatabaseBackend, settings: Any, change_zone: Callable[[str, str], None], database: str
) -> None:
    delayq_setting = settings.DELAYQ["default"]
    settings.DELAYQ = {"default": delayq_setting | {"CALENDARS": {"IT": [date(2026, 12, 25)]}}}
    send_delay_message("k", 1, id="a", at=At(business_days=3, time="09:00", zone="Europe/Rome", calendar="IT"))
    send_delay_message("k", 1, id="b", at=NINE)
    count_from_noon(database)
    settings.DELAYQ = {"default": delayq_setting}
    change_zone("Europe/Rome", "Europe/Athens")
    before = _due_at("a"), _due_at("b")
    with pytest.raises(CommandError, match="1 rule could not be resolved; what has them is where it was") as error:
        _lines()
    assert error.value.returncode == 1
    assert (_due_at("a"), _due_at("b")) == (before[0], before[1] - HOUR)


def test_another_alias_is_left_alone(
    broker: DatabaseBackend, database: str, change_zone: Callable[[str, str], None]
) -> None:
    send_delay_message("k", 1, id="a", at=NINE)
    for model in (ReadyMessage, RuleRow):
        model._default_manager.using(database).update(alias="other")
    change_zone("Europe/Rome", "Europe/Athens")
    assert _lines() == ["moved 0 of 0 messages with a rule in Europe/Rome"]


def test_a_correction_is_logged_with_its_ids(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_delayq.audit")
    send_delay_message("k", 1, id="a", at=NINE)
    change_zone("Europe/Rome", "Europe/Athens")
    _lines("--dry-run")
    assert not caplog.records
    _lines()
    (record,) = caplog.records
    assert record.getMessage().startswith("resolve who=")
    assert record.getMessage().endswith(" moved=1 ids=a")


def test_a_zone_that_is_none_is_refused(broker: DatabaseBackend) -> None:
    with pytest.raises(CommandError, match="Europe/Roma"):
        delayq("resolve", "--zone", "Europe/Roma")


@pytest.mark.parametrize("window", [None, Window("mon-sun", "10:00", "18:00", zone="Europe/Rome")])
def test_a_dry_run_says_what_is_moved_of_a_schedule(
    broker: DatabaseBackend, change_zone: Callable[[str, str], None], window: Window | None
) -> None:
    nine = Every(days=1, time="09:00", zone="Europe/Rome")
    schedule_delay_message("k", 1, name="rome", every=nine, window=window)
    change_zone("Europe/Rome", "Asia/Kathmandu")
    line, counted = _lines("--dry-run")
    assert line.startswith("rome@")
    assert counted == "would move 1 of 1 message with a rule in Europe/Rome"
    assert _lines() == [line, "moved 1 of 1 message with a rule in Europe/Rome"]
