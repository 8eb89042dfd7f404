"""Rules as text: what is written is read again, and gives the same due time."""

import struct
from datetime import UTC, date, datetime, time
from io import BytesIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from django_delayq import At, Window
from django_delayq.core.human_time import due_in_window_ms
from django_delayq.core.rules import LocalTime, Rule, decode, encode, in_words, like_zone, zones
from django_delayq.support.timestamps import from_ms, to_epoch_ms

SATURDAY = to_epoch_ms(datetime(2026, 3, 21, 12, tzinfo=UTC))
OFFICE = Window("mon-fri", "09:00", "18:00", zone="Europe/Rome")
EASTER = date(2026, 4, 6)
EVENING = LocalTime(datetime(2026, 3, 21, 19), "Asia/Tokyo")
AT = At(months=1, days=2, business_days=3, time="09:00", zone="America/New_York", calendar=[EASTER])


@pytest.mark.parametrize(
    "rule",
    [
        Rule(SATURDAY, AT),
        Rule(SATURDAY, windows=(OFFICE,)),
        Rule(SATURDAY, AT, (OFFICE, Window("sat,sun", "22:00", "02:00", zone="UTC", calendar={EASTER})), 1_800_000),
        Rule(SATURDAY, At(time=time(9, 0, 30), zone=ZoneInfo("Asia/Tokyo"))),
        Rule(SATURDAY, windows=(Window("mon-sun", time(8), "24:00", zone=ZoneInfo("UTC"), calendar=()),)),
        Rule(at=EVENING),
        Rule(at=EVENING, windows=(OFFICE,), spread_ms=1_800_000),
    ],
)
def test_a_rule_that_is_read_again_gives_the_same_due_time(rule: Rule) -> None:
    text = encode(rule)
    assert text is not None
    again = decode(text)
    assert again.due_ms("order:17") == rule.due_ms("order:17")
    assert encode(again) == text
    assert list(again.steps("order:17")) == list(rule.steps("order:17"))


@given(
    st.integers(0, 4_000_000_000_000),
    st.integers(0, 24),
    st.integers(0, 400),
    st.integers(0, 30),
    st.times(max_value=time(23, 59)).map(lambda at: at.replace(microsecond=0, fold=0)),
    st.sampled_from(["Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
    st.lists(st.dates(date(2000, 1, 1), date(2090, 1, 1)), max_size=5),
)
def test_any_local_time_survives(
    now_ms: int, months: int, days: int, business_days: int, at: time, zone: str, calendar: list[date]
) -> None:
    dates = calendar if business_days else None
    said = At(months=months, days=days, business_days=business_days, time=at, zone=zone, calendar=dates)
    rule = Rule(now_ms, said)
    assert decode(encode(rule) or "").at is not None
    assert decode(encode(rule) or "")._first_ms() == to_epoch_ms(said.resolve(from_ms(now_ms)))


def unnamed_zone() -> ZoneInfo:
    """A zone that was read from a file."""
    offset = struct.pack(">lBB", 3600, 0, 0)
    header = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return ZoneInfo.from_file(BytesIO((header + offset + b"ABC\0") * 2 + b"\nABC-1\n"))


class Days:
    """Dates that only `in` tells."""

    def __contains__(self, day: object) -> bool:
        return False


@pytest.mark.parametrize(
    "rule",
    [
        Rule(0, At(business_days=1, time="09:00", zone="UTC", calendar=lambda day: False)),
        Rule(0, windows=(OFFICE, Window("mon-fri", "09:00", "18:00", zone="UTC", calendar=Days()))),
        Rule(0, At(time="09:00", zone=unnamed_zone())),
    ],
)
def test_a_rule_without_a_name_for_its_calendar_or_zone_has_no_text(rule: Rule) -> None:
    assert encode(rule) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"from_ms":-1}',
        '{"from_ms":1,"at":{"time":"25:00","zone":"UTC"}}',
        '{"from_ms":1,"at":{"time":"09:00","zone":"Mars/Olympus"}}',
        '{"from_ms":1,"at":{"time":"09:00","zone":"UTC","calendar":["25.12."]}}',
        '{"from_ms":0,"local":{"time":"2026-03-21T25:00:00","zone":"UTC"}}',
        '{"from_ms":0,"local":{"time":"2026-03-21T19:00:00","zone":"Mars/Olympus"}}',
        '{"from_ms":1,"windows":[{"weekdays":"mon","start":"09:00","end":"09:00","zone":"UTC"}]}',
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the rule .* can't be read"):
        decode(text)
    assert "can't be said" in in_words(text, "a", is_due_by_it=True)[0]


def test_the_zones_of_a_rule_are_those_of_each_part() -> None:
    text = encode(Rule(0, AT, (OFFICE,))) or ""
    assert zones(decode(text)) == {"America/New_York", "Europe/Rome"}
    for zone in zones(decode(text)):
        assert like_zone(zone).strip("%") in text
    text = encode(Rule(at=EVENING)) or ""
    assert zones(decode(text)) == {"Asia/Tokyo"}
    assert like_zone("Asia/Tokyo").strip("%") in text


def said(rule: Rule, **options: Any) -> list[str]:
    return in_words(encode(rule) or "", "order:17", **({"is_due_by_it": True} | options))


def test_a_rule_in_words_has_each_step() -> None:
    rule = Rule(SATURDAY, At(time="19:00", zone="Europe/Rome"), (OFFICE,), 1_800_000)
    spread_ms = rule.due_ms("order:17") - due_in_window_ms(SATURDAY, OFFICE, 0, "")
    assert said(rule) == [
        "Sat 2026-03-21 13:00: asked for in Europe/Rome",
        "Sat 2026-03-21 19:00: at 19:00",
        "Sat 2026-03-21 18:00 UTC: the instant",
        "Sat 2026-03-21 19:00: in the window from here on in Europe/Rome",
        "Sat 2026-03-21: weekend until Sun 2026-03-22",
        "Mon 2026-03-23 09:00: it opens",
        "Mon 2026-03-23 08:00 UTC: the instant",
        f"spread over 30m: {spread_ms // 60_000}m{spread_ms % 60_000 // 1000}s later",
    ]


@pytest.mark.parametrize("is_due_by_it", [True, False])
def test_the_local_time_of_an_occurrence_is_left_to_its_schedule(is_due_by_it: bool) -> None:
    assert said(Rule(at=EVENING), is_due_by_it=is_due_by_it) == []
    assert "in the window from here on in Europe/Rome" in said(Rule(at=EVENING, windows=(OFFICE,)))[0]


def test_a_rule_that_gave_another_due_time_says_so() -> None:
    assert said(Rule(SATURDAY, AT), is_due_by_it=False)[0] == "the message is due at another time than it gave"
    assert said(Rule(SATURDAY, windows=(OFFICE,)), is_due_by_it=False)[0] == (
        "the message is due at another time than it gave; its window holds for retries and snoozes"
    )
