"""Sending at a local time and into a window: by the clock of this machine, once, whatever the broker's says."""

import asyncio
import re
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_delayq import (
    At,
    Handler,
    Window,
    areschedule_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.checks import check_settings
from django_delayq.core.human_time import spread_of
from django_delayq.support.timestamps import to_epoch_ms
from tests.api.support import NOW, waiting

pytestmark = pytest.mark.django_db(transaction=True)

SATURDAY = datetime(2026, 3, 28, 12, tzinfo=UTC)
OFFICE = Window("mon-fri", "09:00", "18:00", zone="Europe/Rome")
OPENS = datetime(2026, 3, 30, 7, tzinfo=UTC)
EARLY = Window("mon-sun", "06:00", "07:00", zone="UTC")
HALF_AN_HOUR = 1_800_000


@pytest.fixture(autouse=True)
def _saturday() -> Iterator[None]:
    """This machine's clock stands still at noon of a Saturday, away from the broker's."""
    with time_machine.travel(SATURDAY, tick=False):
        yield


def test_at_a_local_time(close_order: Handler[int, None]) -> None:
    sent = close_order.send(5, at=At(days=3, time="09:00", zone="Europe/Rome"))
    assert sent.due_at == datetime(2026, 3, 31, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "due_at"),
    [
        ({}, OPENS),
        ({"delay": "2h"}, OPENS),
        ({"delay": "45h"}, OPENS + timedelta(hours=2)),
        ({"at": datetime(2026, 3, 27, 10, tzinfo=UTC)}, OPENS),  # past, when it was open
        ({"at": datetime(2026, 3, 30, 10, tzinfo=UTC)}, datetime(2026, 3, 30, 10, tzinfo=UTC)),
        ({"at": At(time="19:00", zone="Europe/Rome")}, OPENS),
        ({"at": At(days=2, time="17:30", zone="Europe/Rome")}, datetime(2026, 3, 30, 15, 30, tzinfo=UTC)),
    ],
)
def test_in_a_window(when: dict[str, Any], due_at: datetime, close_order: Handler[int, None]) -> None:
    assert close_order.send(5, window=OFFICE, **when).due_at == due_at


def test_in_one_of_several_windows(close_order: Handler[int, None]) -> None:
    assert close_order.send(5, window=[OFFICE, EARLY]).due_at == datetime(2026, 3, 29, 6, tzinfo=UTC)


def test_a_due_time_is_rounded_up_before_the_window_is_asked(close_order: Handler[int, None]) -> None:
    """Else the last microsecond of a window would be rounded up to when it is closed."""
    last = datetime(2026, 3, 30, 15, 59, 59, 999_500, tzinfo=UTC)
    assert close_order.send(5, at=last, window=OFFICE).due_at == OPENS + timedelta(days=1)


def test_a_spread_depends_on_the_id_alone(close_order: Handler[int, None]) -> None:
    first = close_order.send(5, id="order:5", window=OFFICE, spread="30m").due_ms
    assert first == to_epoch_ms(OPENS) + spread_of("order:5", HALF_AN_HOUR) > to_epoch_ms(OPENS)
    again = close_order.send(6, id="order:5", window=OFFICE, spread="30m", on_conflict="replace")
    assert again.due_ms == first
    assert close_order.send(5, id="order:6", window=OFFICE, spread="30m").due_ms != first


def test_a_spread_without_an_id_is_that_of_the_id_it_gets(close_order: Handler[int, None]) -> None:
    sent = close_order.send(5, window=OFFICE, spread="30m")
    assert sent.due_ms == to_epoch_ms(OPENS) + spread_of(sent.id, HALF_AN_HOUR)


def test_a_spread_delay_counts_on_the_clock_of_the_broker(close_order: Handler[int, None]) -> None:
    sent = close_order.send(5, id="order:5", delay="1h", spread="30m")
    assert sent.due_ms == NOW + 3_600_000 + spread_of("order:5", HALF_AN_HOUR)
    sent = close_order.send(5, id="order:6", spread="30m")
    assert sent.due_ms == NOW + spread_of("order:6", HALF_AN_HOUR)


def test_a_spread_instant_is_later_by_less(close_order: Handler[int, None]) -> None:
    at = SATURDAY + timedelta(hours=1)
    sent = close_order.send(5, id="order:5", at=at, spread="30m")
    assert sent.due_ms == to_epoch_ms(at) + spread_of("order:5", HALF_AN_HOUR)


def test_each_way_to_send_takes_them(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    when: Any = {"delay": "2h", "window": OFFICE, "spread": "30m"}
    close_order.send(5, id="a", **when)
    asyncio.run(close_order.asend(5, id="b", **when))
    send_delay_message("order.close", 5, id="c", **when)
    send_delay_messages([close_order.prepare(5, id="d", **when)])
    due = {info.id: info.due_ms for info in waiting(broker)}
    assert due == {id: to_epoch_ms(OPENS) + spread_of(id, HALF_AN_HOUR) for id in "abcd"}


def test_a_message_is_rescheduled_to_a_local_time_or_into_a_window(close_order: Handler[int, None]) -> None:
    def due_at() -> datetime:
        info = get_delay_message("a")
        assert info is not None
        return info.due_at

    close_order.send(5, id="a", delay="1h")
    assert reschedule_delay_messages("a", at=At(time="09:00", zone="Asia/Tokyo")) == 1
    assert due_at() == datetime(2026, 3, 29, 0, tzinfo=UTC)
    assert asyncio.run(areschedule_delay_messages("a", delay=0, window=OFFICE)) == 1
    assert due_at() == OPENS
    assert reschedule_delay_messages("a", delay=0, window=EARLY) == 1
    assert due_at() == datetime(2026, 3, 29, 6, tzinfo=UTC)
    assert asyncio.run(areschedule_delay_messages("a", at=At(days=1, time="09:00", zone="UTC"))) == 1
    assert due_at() == datetime(2026, 3, 29, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "error", "said"),
    [
        ({"delay": 1, "at": At(time="09:00", zone="UTC")}, TypeError, r"delay=1 and at=At\(.* are both given"),
        ({"window": "mon-fri"}, TypeError, r"window='mon-fri' is str; give Window\("),
        ({"spread": "soon"}, ValueError, r"spread='soon' is no length of time"),
        ({"spread": -1}, ValueError, r"spread=-1 is too short"),
        ({"at": At(months=1_200, days=36_600, time="09:00", zone="UTC")}, ValueError, r"is over 100 years from now"),
        (
            {"window": Window("mon-fri", "09:00", "18:00", zone="UTC", calendar="XX")},
            ValueError,
            r"calendar='XX' is not in CALENDARS: there is none",
        ),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_sent(
    when: Any, error: type[Exception], said: str, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    with pytest.raises(error, match=said):
        close_order.send(5, **when)
    assert waiting(broker) == []


# CALENDARS


def is_monday(day: date) -> bool:
    return day.weekday() == 0


def of_two(day: date, other: date) -> bool:
    return True


def opens_on(calendar: str, now: datetime) -> int:
    """Return the day of the month on which a window opens next."""
    return Window("mon-fri", "09:00", "18:00", zone="UTC", calendar=calendar).resolve(now).day


def with_calendars(settings: Settings, calendars: Any, **others: Any) -> None:
    memory = {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}
    aliases = {"default": calendars} | others
    settings.DELAYQ = {name: memory | {"CALENDARS": of} for name, of in aliases.items()}


@pytest.mark.parametrize(
    ("calendar", "day"),
    [
        (["2026-03-30", date(2026, 3, 31)], 1),
        ({date(2026, 3, 30)}, 31),
        ("tests.api.test_human_time.is_monday", 31),
    ],
)
def test_a_calendar_has_dates_or_a_function(calendar: Any, day: int, settings: Settings) -> None:
    with_calendars(settings, {"own": calendar})
    assert opens_on("own", SATURDAY) == day
    assert At(business_days=1, time="09:00", zone="UTC", calendar="own").resolve(SATURDAY).day == day
    assert check_settings() == []


def test_a_calendar_of_the_library_knows_the_holidays_of_a_country_and_of_a_part_of_it(settings: Settings) -> None:
    pytest.importorskip("holidays")
    with_calendars(settings, {"IT": "holidays:IT", "Bavaria": "holidays:DE-BY", "DE": "holidays:DE"})
    easter = datetime(2026, 4, 3, 20, tzinfo=UTC)
    assert opens_on("IT", easter) == opens_on("DE", easter) == 7  # Easter Monday
    epiphany = datetime(2027, 1, 5, 20, tzinfo=UTC)  # of the next year
    assert (opens_on("Bavaria", epiphany), opens_on("DE", epiphany)) == (7, 6)
    named = Window("mon-sun", "09:00", "18:00", zone="UTC", calendar="DE").preview(
        datetime(2027, 12, 25, 12, tzinfo=UTC)
    )
    assert re.search(r"^Sat 2027-12-25: holiday \(\w.+\)$", named, re.MULTILINE)  # in the language of the process
    assert check_settings() == []


def test_a_calendar_is_found_in_any_alias_and_changes_with_the_settings(settings: Settings) -> None:
    window = Window("mon-fri", "09:00", "18:00", zone="UTC", calendar="own")
    with_calendars(settings, {}, other={"own": ["2026-03-30"]})
    assert window.resolve(SATURDAY).day == 31
    with_calendars(settings, {"own": ["2026-03-31"]})
    assert window.resolve(SATURDAY).day == 30
    with_calendars(settings, {"own": ["2026-03-30"]}, other={"own": ["2026-03-30"]})
    assert window.resolve(SATURDAY).day == 31
    with_calendars(settings, {"ours": []})
    with pytest.raises(ValueError, match=r"calendar='own' is not in CALENDARS: there is: ours"):
        window.resolve(SATURDAY)


@pytest.mark.parametrize(
    ("calendars", "said"),
    [
        (["IT"], r'\["CALENDARS"\] is list; make it a dict'),
        ({"own": 5}, r'\["CALENDARS"\]\["own"\] is int; give dates, \'holidays:IT\', or the path of a function'),
        ({"own": ["25.12."]}, r'\["own"\] has \'25.12.\'; write dates like \'2026-12-25\''),
        ({"own": [SATURDAY]}, r'\["own"\] has datetime.*, which is datetime; give dates'),
        ({"own": "IT"}, r"\"own\"\]='IT' is no dotted path to a function of a date, nor like 'holidays:IT'"),
        ({"own": "tests.nowhere.is_holiday"}, r"'tests.nowhere.is_holiday' is no calendar: No module named"),
        ({"own": "tests.api.test_human_time.of_two"}, r"of_two' is no calendar: missing a required argument: 'other'"),
        ({"own": "holidays:XX"}, r"'holidays:XX' is no calendar: .*XX"),
        ({"own": "holidays:IT-XX"}, r"'holidays:IT-XX' is no calendar: .*XX"),
        ({"own": "holidays:"}, r"'holidays:' is no calendar"),
        ({"own": "holiday:IT"}, r"='holiday:IT' has a colon; write 'holidays:IT', or the path of a function"),
        ({"own": "django_delayq.Message"}, r"'django_delayq.Message' is no calendar: it is a class"),
        ({5: ["2026-12-25"], "own": ["2026-12-25"]}, r'a name in .*\["CALENDARS"\]=5 is int; give one str'),
        ({"": ["2026-12-25"]}, r"a name in .*=\'\' is empty"),
    ],
)
def test_a_calendar_that_is_of_no_use_is_found_by_a_check(calendars: Any, said: str, settings: Settings) -> None:
    pytest.importorskip("holidays")
    with_calendars(settings, calendars)
    (found,) = check_settings()
    assert found.id == "delayq.E001"
    assert re.search(said, found.msg)


def test_two_calendars_with_one_name_are_refused(settings: Settings) -> None:
    with_calendars(settings, {"own": ["2026-03-30"]}, other={"own": []})
    assert [found.id for found in check_settings()] == ["delayq.E001"] * 2
    with pytest.raises(ImproperlyConfigured, match=r'CALENDARS\["own"\] is another one in another alias'):
        Window("mon-fri", "09:00", "18:00", zone="UTC", calendar="own").resolve(SATURDAY)


def test_without_the_library_the_error_says_what_to_install(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with_calendars(settings, {"IT": "holidays:IT"})
    (found,) = check_settings()
    assert "pip install 'django-delayq[holidays]'" in found.msg
