"""`python -m tests.core.recurrence_sweep`: recurring rules at every change of the clocks of every zone, 1970 to 2100.

Around each change some random rules are asked for what comes in three days, one occurrence after the other. That is
compared with their local times, which are counted here day by day and become instants by `clocks.py`. Prints the
numbers, and exits 1 if any occurrence is missed, doubled, early or late. RULES is how many of each kind at each change,
SEED what they are drawn by. It takes some minutes on a core.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime, timedelta

from django_delayq.core.recurrence import Cron, Every, RRule, Rule, span
from tests.core.clocks import DAY, WEEKDAYS, Clocks, instant, sweep

DAYS = 3
FIRST_DAY = date(1970, 1, 1)
Kind = Callable[[Clocks, float, random.Random], tuple[Rule, Collection[int]]]
"""A function that draws a rule for a local time near a change. It also returns the local minutes that the rule has."""


def main() -> int:
    """Sweep, and return the exit code."""
    return sweep(1, compare)


def compare(zone: Clocks, change: float, choose: random.Random, counts: Counter[str]) -> Iterator[str]:
    """Yield what differs in the days around a change, for a rule of each kind."""
    for kind in (cron, days, weeks, months, rrule):
        yield from compare_one(zone, change, kind, choose, counts)


def compare_one(zone: Clocks, change: float, kind: Kind, choose: random.Random, counts: Counter[str]) -> Iterator[str]:
    """Yield what differs in the days around a change."""
    begin = change - choose.randrange(1, DAYS * DAY)
    rule, local_minutes = kind(zone, change, choose)
    after, until = instant(begin), instant(begin + DAYS * DAY)
    found = list(span(rule, after, until))
    expected = [
        at for at in sorted({instant(minute_of(zone, local)) for local in local_minutes}) if after < at <= until
    ]
    counts[kind.__name__] += 1
    counts["occurrences"] += len(expected)
    if found != expected:
        yield f"{rule!r} after {after}: {found}, and not {expected}"


def minute_of(zone: Clocks, local: float) -> float:
    """Return the first minute at which the clocks show a local time.

    If they skip it, return the minute at which they would show it had they not changed.
    """
    shown = [local - offset for offset in set(zone.offsets) if zone.local(local - offset) == local]
    if shown:
        return min(shown)
    before = zip(zone.changes, zone.offsets, zone.offsets[1:], strict=False)
    return next(local - old for at, old, new in before if at + old <= local < at + new)


def near(zone: Clocks, change: float) -> list[int]:
    """Return the local days, counted from 1970, that `DAYS` around a change may touch."""
    middle = int(zone.local(change) // DAY)
    return list(range(middle - DAYS - 1, middle + DAYS + 2))


def some_time(zone: Clocks, change: float, choose: random.Random) -> int:
    """Return a minute of the day, often near the local time of the change."""
    away = choose.choice((choose.randrange(-90, 91), choose.randrange(DAY)))
    return (int(zone.local(change)) + away) % DAY


def clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def cron(zone: Clocks, change: float, choose: random.Random) -> tuple[Rule, Collection[int]]:
    """Draw a cron expression of minutes, hours and weekdays."""
    times = [some_time(zone, change, choose) for _ in range(choose.randrange(1, 5))]
    minutes, hours = {each % 60 for each in times}, {each // 60 for each in times}
    weekdays = set(choose.sample(range(7), choose.choice((1, 4, 7))))
    fields = (minutes, hours, {(weekday + 1) % 7 for weekday in weekdays})
    minutes_text, hours_text, weekdays_text = (",".join(map(str, sorted(field))) for field in fields)
    found = [
        day * DAY + hour * 60 + minute
        for day in near(zone, change)
        if (day + 3) % 7 in weekdays
        for hour in hours
        for minute in minutes
    ]
    return Cron(f"{minutes_text} {hours_text} * * {weekdays_text}", zone=zone.zone), found


def days(zone: Clocks, change: float, choose: random.Random) -> tuple[Rule, Collection[int]]:
    """Draw an interval of days."""
    count, minute = choose.randrange(1, 4), some_time(zone, change, choose)
    since = near(zone, change)[0] - choose.randrange(400)
    rule = Every(days=count, time=clock(minute), zone=zone.zone, since=FIRST_DAY + timedelta(days=since))
    return rule, [day * DAY + minute for day in near(zone, change) if (day - since) % count == 0]


def weeks(zone: Clocks, change: float, choose: random.Random) -> tuple[Rule, Collection[int]]:
    """Draw an interval of weeks, with some days of them."""
    count, minute = choose.randrange(1, 3), some_time(zone, change, choose)
    since, weekdays = (
        near(zone, change)[0] - choose.randrange(400),
        set(choose.sample(range(7), choose.randrange(1, 7))),
    )
    names = ",".join(WEEKDAYS[weekday] for weekday in sorted(weekdays))
    begin = FIRST_DAY + timedelta(days=since)
    rule = Every(weeks=count, weekdays=names, time=clock(minute), zone=zone.zone, since=begin)
    monday = since - (since + 3) % 7
    wanted = [day for day in near(zone, change) if (day - monday) // 7 % count == 0 and (day + 3) % 7 in weekdays]
    return rule, [day * DAY + minute for day in wanted if day >= since]


def months(zone: Clocks, change: float, choose: random.Random) -> tuple[Rule, Collection[int]]:
    """Draw a day of the month near the change, counted from its start or its end."""
    minute = some_time(zone, change, choose)
    wanted = FIRST_DAY + timedelta(days=choose.choice(near(zone, change)))
    length = ((wanted.replace(day=1) + timedelta(days=31)).replace(day=1) - wanted.replace(day=1)).days
    day = choose.choice((wanted.day, wanted.day - length - 1))
    rule = Every(months=1, day=day, time=clock(minute), zone=zone.zone, since=wanted.replace(day=1))
    all_days = [FIRST_DAY + timedelta(days=each) for each in near(zone, change)]
    return rule, [
        (each - FIRST_DAY).days * DAY + minute
        for each in all_days
        if each >= wanted.replace(day=1) and is_day(each, day)
    ]


def is_day(each: date, day: int) -> bool:
    """Return whether a date is a day of its month; in a shorter one that is the last or the first."""
    first = each.replace(day=1)
    length = ((first + timedelta(days=31)).replace(day=1) - first).days
    return each.day == (min(day, length) if day > 0 else max(length + 1 + day, 1))


def rrule(zone: Clocks, change: float, choose: random.Random) -> tuple[Rule, Collection[int]]:
    """Draw a rule of RFC 5545: some days on, at some hours."""
    count, minute = choose.randrange(1, 4), some_time(zone, change, choose)
    hours = {minute // 60, *(choose.randrange(24) for _ in range(choose.randrange(3)))}
    since = near(zone, change)[0] - choose.randrange(400)
    start = datetime(1970, 1, 1) + timedelta(days=since)
    listed = ",".join(map(str, sorted(hours)))
    rule = RRule(f"FREQ=DAILY;INTERVAL={count};BYHOUR={listed};BYMINUTE={minute % 60}", start=start, zone=zone.zone)
    wanted = [day for day in near(zone, change) if (day - since) % count == 0]
    return rule, [day * DAY + hour * 60 + minute % 60 for day in wanted for hour in hours]


if __name__ == "__main__":
    sys.exit(main())
