"""`delayq schedules`, and the subcommands that change schedules, on a store whose clock the test moves."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq import (
    Cron,
    DelayqError,
    Every,
    Message,
    Window,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    get_delay_schedule,
    pause_delay_schedules,
    reschedule_delay_messages,
    schedule_delay_message,
    sync_delay_schedules,
)
from django_delayq.api import registry as handlers
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.core.message import State
from django_delayq.models import ReadyMessage, Schedule
from django_delayq.support.timestamps import from_ms
from tests.commands.support import delayq, delayq_json
from tests.store.skewed import DatabaseClock

START = datetime(2031, 3, 3, 9, 30, tzinfo=UTC)  # a Monday
DAILY = Cron("0 9 * * *", zone="Europe/Rome")


@pytest.fixture(autouse=True)
def clock(settings: Settings, sqlite_database: str) -> Iterator[DatabaseClock]:
    """The clock of a database alone. It begins at `START`."""
    settings.DELAYQ = {
        "default": {
            "BROKER": "django_delayq.brokers.database.DatabaseBroker",
            "DATABASE": sqlite_database,
            "STORE": {},
            "OPTIONS": {"unknown_keys": "allow"},
        }
    }
    clock = DatabaseClock(sqlite_database)
    with clock.in_use():
        clock.jump((START - from_ms(database_of(get_backend()).now_ms())) // timedelta(milliseconds=1) + 1)
        yield clock


def database_of(backend: Backend) -> Any:
    assert backend.store is not None
    return backend.store.database


@pytest.mark.usefixtures("registry")
def test_the_list_has_rules_in_words_next_occurrences_in_their_zone_and_what_holds_them_up(
    sqlite_database: str,
) -> None:
    schedule_delay_message("report.daily", name="report", every=DAILY)
    schedule_delay_message("k", name="hourly", every=Every(hours=1))
    schedule_delay_message("k", name="paused", every=Every(hours=1))
    delay_execute(key="done", every=Every(hours=1), until=START)(lambda message: None)
    sync_delay_schedules()
    schedule_delay_message("k", name="bad", every=Every(hours=1))
    pause_delay_schedules("paused", reason="stocktaking")
    Schedule.objects.using(sqlite_database).filter(name="bad").update(rule='{"fortnightly": true}')
    shown = {line.split()[0]: line for line in delayq("schedules").splitlines()}
    assert list(shown) == ["NAME", "bad", "done", "hourly", "paused", "report"]
    assert "At 09:00 every day in Europe/Rome" in shown["report"]
    assert "Tue 2031-03-04 09:00 Europe/Rome (in 22h" in shown["report"]
    assert "Mon 2031-03-03 10:00 UTC (in " in shown["hourly"]
    assert shown["paused"].endswith("paused: stocktaking")
    assert " - " in shown["paused"]
    assert shown["done"].endswith("over")
    assert "error: " in shown["bad"]
    assert "no rule of this version" in shown["bad"]


def test_the_list_is_narrowed_by_key_and_by_the_beginning_of_names() -> None:
    for key, name in (("a", "invoice:1"), ("a", "invoice:2"), ("b", "invoice:3"), ("a", "other")):
        schedule_delay_message(key, name=name, every=DAILY)
    found = delayq_json("schedules", "--key", "a", "--prefix", "invoice:")
    assert [each["name"] for each in found] == ["invoice:1", "invoice:2"]
    assert delayq("schedules", "--prefix", "x") == "No schedule was found.\n"


def test_one_schedule_is_shown_with_its_next_ten_instants() -> None:
    schedule_delay_message("k", {"a": 1}, name="s", every=DAILY, count=20, queue="mail")
    shown = delayq("schedules", "s").splitlines()
    assert shown[:3] == ["s: goes on", "for: key 'k' in queue 'mail'", "rule: At 09:00 every day in Europe/Rome"]
    assert "occurrences so far: 1 of 20" in shown
    assert 'data: {"a":1}' in shown
    begin = shown.index("next:") + 1
    assert len(shown[begin:]) == 10
    assert shown[begin].startswith("  Tue 2031-03-04 09:00 Europe/Rome")
    assert shown[-1].startswith("  Thu 2031-03-13 09:00 Europe/Rome")
    seen = delayq_json("schedules", "s")
    assert (seen["next"][0], len(seen["next"]), seen["count"]) == ("2031-03-04T08:00:00Z", 10, 20)


def test_the_windows_and_the_spread_of_one_schedule_are_shown() -> None:
    office = [Window("mon-fri", "09:00", "18:00", zone="Europe/Rome"), Window("sat", "09:00", "12:00", zone="UTC")]
    schedule_delay_message("k", name="s", every=DAILY, window=office, spread="90m")
    shown = delayq("schedules", "s").splitlines()
    assert shown[3:5] == ["window: mon-fri 09:00-18:00 Europe/Rome; sat 09:00-12:00 UTC", "spread: over 1h30m"]
    schedule_delay_message("k", name="plain", every=DAILY)
    assert not [line for line in delayq("schedules", "plain").splitlines() if line.startswith(("window", "spread"))]


def test_what_is_next_is_when_the_window_opens_and_its_occurrence_follows() -> None:
    evening = Window("mon-sun", "20:00", "22:00", zone="Europe/Rome")
    schedule_delay_message("k", name="s", every=DAILY, window=evening)
    told = "Tue 2031-03-04 20:00 Europe/Rome (in 1d9h), for Tue 2031-03-04 09:00 Europe/Rome"
    assert told in delayq("schedules")
    assert f"next:\n  {told}" in delayq("schedules", "s")
    seen = delayq_json("schedules", "s")
    assert seen["next"][:2] == ["2031-03-04T08:00:00Z", "2031-03-05T08:00:00Z"]
    assert seen["next_due"][:2] == ["2031-03-04T19:00:00Z", "2031-03-05T19:00:00Z"]


def test_what_waits_for_its_window_is_next_though_its_occurrence_is_past(clock: DatabaseClock) -> None:
    evening = Window("mon-sun", "20:00", "22:00", zone="Europe/Rome")
    schedule_delay_message("k", name="s", every=DAILY, window=evening)
    clock.jump(24 * 3_600_000)
    assert delayq_json("schedules")[0]["next_due"] == ["2031-03-04T19:00:00Z"]


def test_what_is_next_is_when_an_occurrence_was_rescheduled_to() -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    reschedule_delay_messages("s@2031-03-04T09:00:00[Europe/Rome]", at=START + timedelta(days=2))
    seen = delayq_json("schedules", "s")
    assert seen["next"][:2] == ["2031-03-04T08:00:00Z", "2031-03-05T08:00:00Z"]
    assert seen["next_due"][:2] == ["2031-03-05T09:30:00Z", "2031-03-05T08:00:00Z"]


def test_an_occurrence_that_was_cancelled_is_not_next() -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    cancel_delay_messages("s@2031-03-04T09:00:00[Europe/Rome]")
    assert delayq_json("schedules")[0]["next"] == ["2031-03-05T08:00:00Z"]


def test_no_occurrence_is_shown_beyond_the_count() -> None:
    schedule_delay_message("k", name="s", every=DAILY, count=3)
    assert len(delayq_json("schedules", "s")["next"]) == 3


@pytest.mark.usefixtures("registry")
def test_a_schedule_that_is_gone_from_the_code_says_so() -> None:
    delay_execute(key="report.daily", every=DAILY)(lambda message: None)
    sync_delay_schedules()
    handlers.by_alias["default"].pop("report.daily")
    sync_delay_schedules()
    assert delayq("schedules", "report.daily").startswith("report.daily: gone from the code\n")
    assert delayq_json("schedules")[0]["next"] == []


@pytest.mark.usefixtures("registry")
def test_one_that_can_not_be_written_keeps_no_other_from_being_gone() -> None:
    delay_execute(key="report.daily", every=DAILY)(lambda message: None)
    sync_delay_schedules()
    handlers.by_alias["default"].pop("report.daily")

    @delay_execute(key="needs.data", every=DAILY)
    def needs_data(message: Message[int]) -> None: ...

    with pytest.raises(DelayqError, match=r"Schedule 'needs\.data'"):
        sync_delay_schedules()
    assert delayq("schedules", "report.daily").startswith("report.daily: gone from the code\n")


def test_the_name_of_a_schedule_is_explained_as_one() -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    with pytest.raises(CommandError, match="'s' is a schedule, not a message: `delayq schedules s` shows it"):
        delayq("explain", "s")


def test_schedules_are_paused_and_resumed_by_name() -> None:
    for name in ("a", "b"):
        schedule_delay_message("k", name=name, every=DAILY)
    assert delayq("pause-schedule", "a", "b", "--reason", "stocktaking") == "paused 2 of 2\n"
    assert [each["reason"] for each in delayq_json("schedules")] == ["stocktaking"] * 2
    assert not ReadyMessage.objects.using(database_of(get_backend()).using).exists()
    with pytest.raises(
        CommandError, match=r"Not paused: 'a' \(paused already: stocktaking\), 'x' \(no such schedule\)"
    ):
        delayq("pause-schedule", "a", "x", "--reason", "again")
    assert delayq("resume-schedule", "a") == "resumed 1 of 1\n"
    with pytest.raises(CommandError, match=r"Not resumed: 'a' \(it was not paused\)") as raised:
        delayq("resume-schedule", "a", "b")
    assert raised.value.returncode == 1
    assert [each["paused_at"] for each in delayq_json("schedules")] == [None, None]


def test_one_more_message_of_a_schedule_is_put() -> None:
    schedule_delay_message("k", 7, name="s", every=DAILY)
    assert delayq("run-schedule", "s") == "put s@2031-03-03T09:30:00Z\n"
    info = get_delay_message("s@2031-03-03T09:30:00Z")
    assert info is not None
    assert (info.data, info.state) == (7, State.READY)
    with pytest.raises(CommandError, match="There is no schedule 'x'"):
        delayq("run-schedule", "x")


def test_a_span_is_backfilled_and_a_dry_run_puts_nothing() -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    span = ("--from", "2031-02-01T00:00Z", "--until", "2031-02-12T09:00+01:00")
    shown = delayq("backfill-schedule", "s", *span, "--dry-run").splitlines()
    assert (shown[0], shown[1], shown[-1]) == (
        "would put 12 messages",
        "  Sat 2031-02-01 09:00 Europe/Rome",
        "  … and 2 more",
    )
    assert get_delay_message("s@2031-02-01T09:00:00[Europe/Rome]") is None
    assert delayq("backfill-schedule", "s", *span) == "put 12 messages\n"
    assert get_delay_message("s@2031-02-12T09:00:00[Europe/Rome]") is not None


def test_removed_schedules_are_gone_after_a_question(answer: Callable[[str], None]) -> None:
    for name in ("a", "b"):
        schedule_delay_message("k", name=name, every=DAILY)
    answer("no\n")
    with pytest.raises(CommandError, match="Nothing was done"):
        delayq("remove-schedule", "a")
    answer("yes\n")
    assert delayq("remove-schedule", "a").endswith("removed 1 of 1\n")
    with pytest.raises(CommandError, match=r"Not removed: 'a' \(no such schedule\)"):
        delayq("remove-schedule", "a", "b", "--no-input")
    assert get_delay_schedule("b") is None
    assert not ReadyMessage.objects.using(database_of(get_backend()).using).exists()


@pytest.mark.usefixtures("registry")
def test_the_removal_of_a_schedule_that_is_in_the_code_says_that_it_comes_back() -> None:
    delay_execute(key="report.daily", every=DAILY)(lambda message: None)
    sync_delay_schedules()
    assert "it comes back when a worker starts" in delayq("remove-schedule", "report.daily", "--no-input")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["schedules", "x"], 1, "There is no schedule 'x' in 'default'"),
        (["schedules", "x", "--key", "k"], 2, "Give NAME, or --key and --prefix"),
        (["pause-schedule", "x"], 1, "required: --reason"),
        (["pause-schedule", "x", "--reason", ""], 1, "reason='' is empty"),
        (["backfill-schedule", "s", "--from", "2031-02-01", "--until", "2031-02-01T00:00Z"], 1, "with its offset"),
        (
            ["backfill-schedule", "s", "--from", "2031-02-02T00:00Z", "--until", "2031-02-01T00:00Z"],
            2,
            "--until=2031-02-01T00:00:00.000Z is before --from=2031-02-02T00:00:00.000Z",
        ),
        (
            ["backfill-schedule", "s", "--from", "2031-02-01T00:00Z", "--until", "2031-03-01T00:00Z"],
            1,
            "over 100,000 occurrences",
        ),
        (["backfill-schedule", "x", "--from", "2031-02-01T00:00Z", "--until", "2031-03-01T00:00Z"], 1, "no schedule"),
    ],
)
def test_a_wrong_command_line_is_named_with_its_fix(arguments: list[str], code: int, told: str) -> None:
    schedule_delay_message("k", name="s", every=Every(seconds=1))
    with pytest.raises(CommandError) as raised:
        delayq(*arguments)
    assert told in str(raised.value)
    assert raised.value.returncode == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["schedules"],
        ["schedules", "s"],
        ["pause-schedule", "s", "--reason", "x"],
        ["resume-schedule", "s"],
        ["run-schedule", "s"],
        ["backfill-schedule", "s", "--from", "2031-02-01T00:00Z", "--until", "2031-03-01T00:00Z"],
        ["remove-schedule", "s", "--no-input"],
    ],
)
def test_without_a_store_they_say_so(settings: Settings, arguments: list[str]) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match=r"Schedules need a store, .* set up STORE in DELAYQ\['default'\]"):
        delayq(*arguments)


def test_changes_are_written_to_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    with caplog.at_level("INFO", "django_delayq.audit"):
        delayq("pause-schedule", "s", "--reason", "stock taking")
        delayq("resume-schedule", "s")
        delayq("run-schedule", "s")
        delayq("remove-schedule", "s", "--no-input")
    lines = [record.getMessage() for record in caplog.records if record.name == "django_delayq.audit"]
    assert [line.split()[0] for line in lines] == [
        "pause_schedule",
        "resume_schedule",
        "run_schedule",
        "remove_schedule",
    ]
    assert lines[0].endswith('reason="stock taking" ids=s')


def test_a_schedule_whose_rule_fails_is_not_resumed_and_the_reason_is_told() -> None:
    schedule_delay_message("k", name="s", every=DAILY)
    delayq("pause-schedule", "s", "--reason", "stocktaking")
    database = get_backend().store.database.using  # type: ignore[union-attr]
    Schedule.objects.using(database).update(rule='{"days":1,"time":"09:00","zone":"Mars/Base"}')
    with pytest.raises(CommandError, match="None is resumed: zone='Mars/Base' is no time zone"):
        delayq("resume-schedule", "s")
