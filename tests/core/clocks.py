"""Another opinion on human time: slow, plain, and with nothing of ours in it. Times are minutes since 1970.

All are whole or half minutes: Monrovia's clocks were 44 and a half minutes behind until 1972.
"""

import os
import random
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from time import monotonic
from zoneinfo import ZoneInfo, available_timezones

from dateutil.relativedelta import relativedelta
from dateutil.tz import resolve_imaginary

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = 1440
FIRST_YEAR, LAST_YEAR = 1970, 2100
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

NAMES = sorted(available_timezones() - {"localtime"})


def instant(minute: float) -> datetime:
    return EPOCH + minute * MINUTE


@dataclass(frozen=True)
class Clocks:
    """The clocks of a zone: by how much they are ahead of UTC, in minutes, from each of these minutes on."""

    zone: ZoneInfo
    starts: tuple[float, ...]
    offsets: tuple[float, ...]

    def local(self, minute: float) -> float:
        return minute + self.offsets[bisect_right(self.starts, minute) - 1]

    @property
    def changes(self) -> tuple[float, ...]:
        return self.starts[1:]


@cache
def clocks(name: str, first_year: int = FIRST_YEAR, last_year: int = LAST_YEAR) -> Clocks:
    """Look at the clocks of a zone twice a day, and each half minute of a half day in which they have changed."""
    zone = ZoneInfo(name)
    minute, last = ((datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // MINUTE for year in (first_year, last_year + 1))
    starts, offsets = [float(minute)], [_offset(zone, minute)]
    while minute < last:
        minute += DAY // 2
        if _offset(zone, minute) != offsets[-1]:
            halves = range(2 * minute - DAY, 2 * minute + 1)
            change = next(half / 2 for half in halves if _offset(zone, half / 2) != offsets[-1])
            starts.append(change)
            offsets.append(_offset(zone, change))
    return Clocks(zone, tuple(starts), tuple(offsets))


def distinct() -> list[str]:
    """Return a name of each zone: many names are of the same."""
    return sorted({(zone.starts, zone.offsets): name for name in NAMES for zone in [clocks(name)]}.values())


def _offset(zone: ZoneInfo, minute: float) -> float:
    offset = instant(minute).astimezone(zone).utcoffset()
    assert offset is not None
    return offset / MINUTE


Compare = Callable[[Clocks, float, random.Random, Counter[str]], Iterable[str]]
"""A function that asks random rules around a change of a zone, counts them, and returns what is wrong, a line each."""


def sweep(rules: int, compare: Compare) -> int:
    """Compare at each change of each zone, as often as RULES says, or else `rules`. Return the exit code of a sweep.

    SEED is what the rules are drawn by. The numbers are printed at the end, and what is wrong before.
    """
    times, seed = int(os.environ.get("RULES", rules)), int(os.environ.get("SEED", "1"))
    counts = Counter(wrong=0)
    started = monotonic()
    for name in distinct():
        zone = clocks(name)
        choose = random.Random(f"{seed} {name}")
        for change in zone.changes:
            counts["changes"] += 1
            for _ in range(times):
                for line in compare(zone, change, choose, counts):
                    counts["wrong"] += 1
                    sys.stdout.write(f"{line}\n")
    counts["zones"], counts["names"] = len(distinct()), len(NAMES)
    sys.stdout.write(f"{dict(sorted(counts.items()))} in {monotonic() - started:.0f} s\n")
    return 1 if counts["wrong"] else 0


@dataclass(frozen=True)
class Hours:
    """A window: days of the week, from Monday's 0, minutes of a day, and holidays as days since 1970."""

    weekdays: frozenset[int]
    start: int
    end: int
    holidays: frozenset[int]

    @property
    def arguments(self) -> tuple[str, str, str]:
        return ",".join(WEEKDAYS[day] for day in sorted(self.weekdays)), text(self.start), text(self.end)

    @property
    def calendar(self) -> frozenset[date]:
        return frozenset(date(1970, 1, 1) + timedelta(days=day) for day in self.holidays)

    def is_open(self, local: float) -> bool:
        day, minute = divmod(local, DAY)
        if self.start < self.end:
            return self.start <= minute < self.end and self._opens_on(int(day))
        return (minute >= self.start and self._opens_on(int(day))) or (
            minute < self.end and self._opens_on(int(day) - 1)
        )

    def _opens_on(self, day: int) -> bool:
        return (day + 3) % 7 in self.weekdays and day not in self.holidays


def text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def first_open(hours: Hours, clocks: Clocks, minute: float) -> float:
    """Walk on, half a minute at a time where the clocks are not at whole minutes, until the window is open."""
    step = 1.0 if all(offset.is_integer() for offset in clocks.offsets) else 0.5
    while not hours.is_open(clocks.local(minute)):
        minute += step
    return minute


def first_closed(hours: Sequence[Hours], clocks: Clocks, minute: float, limit: float) -> float:
    """Walk on until all of the windows are closed, or to the limit."""
    step = 1.0 if all(offset.is_integer() for offset in clocks.offsets) else 0.5
    while minute < limit and any(each.is_open(clocks.local(minute)) for each in hours):
        minute += step
    return min(minute, limit)


def some_hours(choose: random.Random, near: float) -> Hours:
    """Return a window whose ends are often near a local time, and which has holidays near it."""
    ends: set[int] = set()
    while len(ends) < 2:
        away = choose.choice((choose.randrange(-90, 91), choose.randrange(DAY)))
        ends.add((int(near) + away) % DAY)
    start, end = choose.sample(sorted(ends), 2)
    if choose.random() < 0.1:
        start, end = choose.choice(((0, DAY), (start, DAY), (0, end or DAY)))
    weekdays = frozenset(choose.sample(range(7), choose.choice((1, 3, 5, 7, 7))))
    day = int(near // DAY)
    holidays = frozenset(day + choose.randrange(-2, 8) for _ in range(choose.choice((0, 0, 1, 3))))
    return Hours(weekdays, start, end, holidays)


@dataclass(frozen=True)
class Later:
    """What `At` is asked for, and when that is by dateutil."""

    months: int
    days: int
    business_days: int
    minute: int
    holidays: frozenset[int]

    @property
    def calendar(self) -> frozenset[date] | None:
        dates = frozenset(date(1970, 1, 1) + timedelta(days=day) for day in self.holidays)
        return dates if self.business_days else None

    def resolve(self, now: datetime, zone: ZoneInfo) -> datetime:
        day = now.astimezone(zone).date()
        if not (self.months or self.days or self.business_days):
            first = self._on(day, zone, 0)
            if first >= now:
                return first
            day += timedelta(days=1)
        day += relativedelta(months=self.months, days=self.days)
        left = self.business_days
        while left:
            day += timedelta(days=1)
            left -= day.isoweekday() < 6 and (self.calendar is None or day not in self.calendar)
        return next(found for found in (self._on(day, zone, fold) for fold in (0, 1)) if found >= now)

    def _on(self, day: date, zone: ZoneInfo, fold: int) -> datetime:
        local = datetime.combine(day, time(*divmod(self.minute, 60), fold=fold), zone)
        found: datetime = resolve_imaginary(local).astimezone(UTC)
        return found


def some_later(choose: random.Random, near: float) -> Later:
    """Return days and a time that lead near a local time, from some days before it."""
    kind = choose.randrange(4)
    minute = (int(near) + choose.choice((choose.randrange(-90, 91), choose.randrange(DAY)))) % DAY
    day = int(near // DAY)
    return Later(
        months=choose.randrange(3) if kind == 1 else 0,
        days=choose.randrange(4) if kind == 2 else 0,
        business_days=choose.randrange(4) if kind == 3 else 0,
        minute=minute,
        holidays=frozenset(day + choose.randrange(-2, 6) for _ in range(choose.choice((0, 1, 3)))),
    )
