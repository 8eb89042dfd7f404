"""Find the occurrences of rules that recur: cron expressions, and intervals. Pure.

A rule has no state: whoever asks, the next occurrence after an instant is always the same. Local times that a change of
the clocks skips or repeats are treated as in human_time.py: one that is skipped is later by as much as is skipped, and
of one that comes twice the first counts. So a daily rule occurs once on each day, and two local times that become one
instant are one occurrence. An interval of hours, minutes or seconds is elapsed time, which no change of the clocks
moves.

cronsim reads cron expressions, and dateutil the rules of RFC 5545. Both are given local times without a zone, because
cronsim treats changes of the clocks as Debian's cron does, and dateutil does not treat them at all.
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, date, datetime, time as clock_time, timedelta
from functools import lru_cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo

from django_delayq.core.codec import dumps, loads
from django_delayq.core.human_time import (
    MOST_CLOSED_DAYS,
    Calendar,
    Window,
    check_calendar,
    clock_in,
    counted,
    is_holiday,
    months_after,
    time_of,
    weekdays_of,
    words_of_windows,
    zone_of,
)
from django_delayq.core.requests import Header
from django_delayq.support.timestamps import EPOCH, check_aware, check_instant
from django_delayq.support.translatable import Text, text as _
from django_delayq.support.units import LONGEST_MS
from django_delayq.support.validation import check_count, did_you_mean, short_repr

if TYPE_CHECKING:
    from cronsim import CronSim
    from dateutil.rrule import rrule

FIRST_DAY = date(1970, 1, 5)
"""The day from which an interval of days, weeks or months is counted unless it says otherwise: a Monday."""

_NO_TIME, _DAY = timedelta(), timedelta(days=1)
_LOOK_BACK = timedelta(days=3)
"""How far back to look for a change of the clocks. No zone has ever changed its clocks twice within that time."""
LAST = datetime(9000, 1, 1, tzinfo=UTC)
_MOST_COUNT = 2**31 - 1
_LONGEST = timedelta(milliseconds=LONGEST_MS)
_MOST_CLOSED = 50
"""How many days of a rule may be holidays in a row, if they are over two years."""
_MOST_CLOSED_MONTHS = 24
"""For how long months may be left out, because none of their days is a business day."""
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
_LOCAL_UNITS = {"days": 100 * 366, "weeks": 100 * 52, "months": 100 * 12}
"""The units that are counted in local time, each with its maximum."""


class Rule(Protocol):
    """A rule that recurs."""

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence after an instant, which is aware, in UTC; None if there are no more."""

    def to_json(self) -> str:
        """Return the rule as text, which `rule_of` reads."""

    def __str__(self) -> str:
        """Return the rule in words."""


@dataclass(frozen=True, slots=True)
class Cron:
    """The local times of a cron expression: `Cron("0 9 * * 1-5", zone="Europe/Rome")`, of five fields.

    Times on a holiday of the `calendar` are left out. It needs the extra `recurring`. Raises `TypeError` or
    `ValueError`, naming the value and the fix.
    """

    expression: str
    zone: str | ZoneInfo
    calendar: str | Calendar | None = None
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", zone_of(self.zone))
        _check_cron(self.expression)
        if self.calendar is not None:
            check_calendar(self.calendar)

    def after(self, instant: datetime) -> datetime | None:
        return _first_after(instant, self._zone, self._local_times, self.calendar)

    def to_json(self) -> str:
        return _to_json(expression=self.expression, zone=self._zone, calendar=self.calendar)

    def __str__(self) -> str:
        times = _parsed_cron(self.expression)[0].explain()
        return without_holidays(_("%(times)s in %(zone)s", times=times, zone=self._zone), self.calendar)

    def _local_times(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times after `local`, in order.

        cronsim's own iterator would do, but goes from minute to minute, which takes up to ten times as long.
        """
        times, today = _parsed_cron(self.expression)[1], local.date()
        for year in count(today.year):
            days = _cron_days(self.expression, year)
            for day in days[bisect_left(days, today) :]:
                for at in times if day > today else times[bisect_right(times, local.time()) :]:
                    yield datetime.combine(day, at)


_SOON = timedelta(days=12 * 365)
"""Within this long after its start an RRULE must come once. A leap day comes within eight years."""
_MOST_A_DAY = 24 * 60
"""How often an RRULE may come in a day: those of a month are kept in memory."""
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
"""Those that an RRULE may have."""


@dataclass(frozen=True, slots=True)
class RRule:
    """The local times of a recurrence rule of RFC 5545, counted from `start`, which is one of them if the rule has it.

    `RRule("FREQ=MONTHLY;BYDAY=-1FR", start=datetime(2026, 1, 30, 18), zone="Europe/Rome")` is 18:00 on the last Friday
    of each month. `UNTIL` is a local time too. Times on a holiday of the `calendar` are left out. It needs the extra
    `recurring`.

    Raises `TypeError` or `ValueError`, naming the value and the fix.
    """

    text: str
    _: KW_ONLY
    start: datetime
    zone: str | ZoneInfo
    calendar: str | Calendar | None = None
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", zone_of(self.zone))
        if not isinstance(self.start, datetime) or self.start.tzinfo is not None or self.start.microsecond:
            raise ValueError(
                f"start={short_repr(self.start)} is no local time to the second; give a datetime without a time zone."
            )
        _check_rrule(self.text, self.start)
        if self.calendar is not None:
            check_calendar(self.calendar)

    def after(self, instant: datetime) -> datetime | None:
        return _first_after(instant, self._zone, self._local_times, self.calendar)

    def to_json(self) -> str:
        return _to_json(text=self.text, start=self.start, zone=self._zone, calendar=self.calendar)

    def __str__(self) -> str:
        start = f"{self.start:%Y-%m-%d %H:%M}"
        words = _("%(rule)s from %(start)s on in %(zone)s", rule=self.text, start=start, zone=self._zone)
        return without_holidays(words, self.calendar)

    def _local_times(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times after `local`, in order."""
        while True:
            known = _rrule_times(self.text, self.start, local.date().replace(day=1))
            later = known[bisect_right(known, local) :]
            if not later:
                return
            yield from later
            local = later[-1]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Every:
    """An interval: `Every(minutes=15)`, or `Every(months=1, day=-1, time="18:00", zone="Europe/Rome")`.

    - Seconds, minutes and hours are added up, and counted from 1970 in UTC: 15 minutes are :00, :15, :30 and :45.
    - Days, weeks or months need the local `time` and its `zone`. They are counted from the day `since`, before which
      nothing occurs; without it from Monday, 5 January 1970.
    - `weekdays` of `weeks` are the days on which it occurs, such as "mon,thu"; without them, the weekday of `since`.
    - `day` of `months` is the day of the month: counted from 1, or from -1 back from the last one. In a month that is
      too short it is the last day, or counted back the first. Without it, it is the day of `since`, or the first.
    - `business_day` is counted like it, among Monday to Friday without the holidays of the `calendar`. A month that has
      none is left out.
    - Days that are a holiday of the `calendar` are left out.

    Raises `TypeError` or `ValueError`, naming the value and the fix.
    """

    seconds: int = 0
    minutes: int = 0
    hours: int = 0
    days: int = 0
    weeks: int = 0
    months: int = 0
    time: str | clock_time | None = None
    zone: str | ZoneInfo | None = None
    weekdays: str | None = None
    day: int | None = None
    business_day: int | None = None
    since: date | None = None
    calendar: str | Calendar | None = None
    _step: timedelta = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, size in _UNITS.items():
            check_count(getattr(self, name), name, 0, LONGEST_MS // 1000 // size)
        for name, most in _LOCAL_UNITS.items():
            check_count(getattr(self, name), name, 0, most)
        step = timedelta(seconds=sum(getattr(self, name) * size for name, size in _UNITS.items()))
        object.__setattr__(self, "_step", step)
        units = [name for name in _LOCAL_UNITS if getattr(self, name)]
        if len(units) + bool(step) != 1:
            raise ValueError(
                f"{self!r} needs one interval: hours, minutes and seconds (which are added up), or days, or weeks, or "
                "months."
            )
        if step:
            self._check_elapsed(step)
        else:
            self._check_local()

    def __repr__(self) -> str:
        given = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.init)
        defaults = {f"{each.name}={each.default!r}" for each in fields(self)}
        return f"Every({', '.join(text for text in given if text not in defaults)})"

    def after(self, instant: datetime) -> datetime | None:
        if self._step:
            passed = (check_instant(instant, "instant") - EPOCH) // self._step
            found = EPOCH + (passed + 1) * self._step
            return found if found < LAST else None
        assert self.zone is not None  # noqa: S101  - checked when the rule was made
        return _first_after(instant, zone_of(self.zone), self._local_times, self.calendar)

    def to_json(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return _to_json(**given)

    def __str__(self) -> str:
        sizes = [(getattr(self, name), name) for name in (*_LOCAL_UNITS, *reversed(_UNITS)) if getattr(self, name)]
        words = _interval(sizes)
        if self.weekdays:
            words = _("%(rule)s on %(weekdays)s", rule=words, weekdays=self.weekdays)
        if self.day is not None:
            words = _("%(rule)s on %(nth)s day", rule=words, nth=_nth(self.day))
        if self.business_day is not None:
            words = _("%(rule)s on %(nth)s business day", rule=words, nth=_nth(self.business_day))
        if self.time is not None:
            words = _("%(rule)s at %(time)s in %(zone)s", rule=words, time=_plain(self.time), zone=self.zone)
        if self.since is not None:
            words = _("%(rule)s since %(date)s", rule=words, date=self.since)
        return without_holidays(words, self.calendar)

    def _check_elapsed(self, step: timedelta) -> None:
        if step > _LONGEST:
            raise ValueError(f"{self!r} is over 100 years; give less.")
        for name in ("time", "zone", "weekdays", "day", "business_day", "since", "calendar"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name}={short_repr(value)} is for days, weeks or months; leave it out, or give days=1."
                )

    def _check_local(self) -> None:
        if self.time is None or self.zone is None:
            raise ValueError(f"{self!r} needs the local time=... of its days, such as '09:00', and the zone=... of it.")
        time_of(self.time, "time")
        zone_of(self.zone)
        if self.since is not None and type(self.since) is not date:
            raise TypeError(f"since={short_repr(self.since)} is {type(self.since).__name__}; give a date.")
        if self.weekdays is not None:
            if not self.weeks:
                raise ValueError(f"weekdays={short_repr(self.weekdays)} is for weeks; give weeks=1.")
            weekdays_of(self.weekdays)
        if self.day is not None and self.business_day is not None:
            raise ValueError(f"day={self.day!r} and business_day={self.business_day!r} are both given; give one.")
        self._check_day_of_month("day", 31)
        self._check_day_of_month("business_day", 23)
        if self.calendar is not None:
            check_calendar(self.calendar)

    def _check_day_of_month(self, name: str, most: int) -> None:
        if (value := getattr(self, name)) is None:
            return
        if not self.months:
            raise ValueError(f"{name}={short_repr(value)} is for months; give months=1.")
        check_count(value, name, -most, most)
        if not value:
            raise ValueError(f"{name}=0 is no day of a month; give 1 for the first, or -1 for the last.")

    def _local_times(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times after `local`, in order."""
        assert self.time is not None  # noqa: S101  - checked when the rule was made
        at, since = time_of(self.time, "time"), self.since or FIRST_DAY
        days = self._days if self.days else self._days_of_weeks if self.weeks else self._days_of_months
        for day in days(max(local.date(), since), since):
            found = datetime.combine(day, at)
            if found > local:
                yield found

    def _days(self, first: date, since: date) -> Iterator[date]:
        begin = first.toordinal()
        begin += (since.toordinal() - begin) % self.days
        return map(date.fromordinal, count(begin, self.days))

    def _days_of_weeks(self, first: date, since: date) -> Iterator[date]:
        weekdays = sorted(weekdays_of(self.weekdays)) if self.weekdays else [since.weekday()]
        monday = since - since.weekday() * _DAY
        begin = (first - monday).days // 7 // self.weeks * self.weeks
        found = (monday + (week * 7 + weekday) * _DAY for week in count(begin, self.weeks) for weekday in weekdays)
        return (day for day in found if day >= first)

    def _days_of_months(self, first: date, since: date) -> Iterator[date]:
        month = _number_of(since)
        begin = month + (_number_of(first) - month) // self.months * self.months
        closed_from: int | None = None
        for number in count(begin, self.months):
            found = self._day_in(*divmod(number, 12))
            if found is not None:
                closed_from = None
                if found >= first:
                    yield found
            elif closed_from is None:
                closed_from = number
            elif number - closed_from >= _MOST_CLOSED_MONTHS:
                raise ValueError(
                    _(
                        "calendar=%(calendar)s has no business day in %(month)s.",
                        calendar=short_repr(self.calendar),
                        month=f"{number // 12:04}-{number % 12 + 1:02}",
                    )
                )

    def _day_in(self, year: int, index: int) -> date | None:
        """Return the day of a month, whose index is counted from 0; None if it has no business day."""
        if self.business_day is not None:
            return _business_day_of(year, index + 1, self.business_day, self.calendar)
        return _day_of(year, index + 1, self.day or (self.since.day if self.since else 1))


def rule_of(text: str) -> Rule:
    """Return the rule that `to_json` wrote. Raises like the rule's class, and `ValueError` for other text."""
    value: Any = loads(text)
    if isinstance(value, dict):
        for name, read in (
            ("calendar", _calendar_of),
            ("since", date.fromisoformat),
            ("start", datetime.fromisoformat),
        ):
            if name in value:
                value[name] = read(value[name])
        for kind in (Cron, RRule, Every):
            known = {each.name for each in fields(kind) if each.init}
            if value.keys() <= known and (kind is Every or fields(kind)[0].name in value):
                return kind(**value)
    raise ValueError(
        _("%(rule)s is no rule of this version; give what Cron(...) or Every(...) writes.", rule=short_repr(text))
    )


def zone_in(rule: Rule | None) -> str | None:
    """Return the name of the zone of a rule's local times; None if it has none, like an interval of hours."""
    zone = getattr(rule, "zone", None)
    return None if zone is None else str(zone)


def _calendar_of(value: Any) -> str | Calendar:
    return value if isinstance(value, str) else frozenset(map(date.fromisoformat, value))


MOST_CAUGHT_UP = 1000
"""How many missed occurrences `catch_up="all"` runs at most; older ones are left out."""

GRACE = timedelta(minutes=1)
"""How late an occurrence may still be put with `catch_up="none"`: maintenance takes a moment too."""

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "after"]


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule to be written. Each of its messages has this `header` and `body`.

    With a reason in `paused` it is written paused, unless it exists.
    """

    name: str
    origin: str
    rule: Rule
    header: Header
    body: bytes
    window: str = ""
    start: datetime | None = None
    until: datetime | None = None
    count: int | None = None
    catch_up: CatchUp = "last"
    overlap: Overlap = "skip"
    paused: str = ""


def check_every(every: object, catch_up: CatchUp, overlap: Overlap) -> None:
    """Raise `TypeError` or `ValueError`, naming the value and the fix, unless a schedule can have these together."""
    if not isinstance(every, Cron | Every | RRule | None):
        raise TypeError(
            f"every={short_repr(every)} is {type(every).__name__}; give Every(days=1, time='09:00', zone=...), "
            "Cron(...) or RRule(...)."
        )
    if every is None and (catch_up, overlap) != ("last", "skip"):
        option = f"catch_up={short_repr(catch_up)}" if catch_up != "last" else f"overlap={short_repr(overlap)}"
        raise ValueError(f"{option} is that of every=..., which is missing; give it, or leave this out.")
    if every is not None:
        every.to_json()  # raises for what can't be kept
    for name, value, known in (("catch_up", catch_up, get_args(CatchUp)), ("overlap", overlap, get_args(Overlap))):
        if value not in known:
            raise ValueError(f"{name}={short_repr(value)} is unknown: {did_you_mean(str(value), known)}")
    if catch_up == "all" and overlap == "skip":
        raise ValueError(
            'catch_up="all" with overlap="skip": what is caught up is over when the one before ends, so all but the '
            'first would be skipped; give overlap="after", or catch_up="last".'
        )


def check_bounds(every: Rule | None, start: datetime | None, until: datetime | None, count: int | None) -> None:
    """Raise `TypeError` or `ValueError`, naming the value and the fix, unless these can bound the rule `every`."""
    for name, value in (("start", start), ("until", until), ("count", count)):
        if every is None and value is not None:
            raise ValueError(f"{name}={value} bounds every=..., which is missing; give it, or leave this out.")
    for option, instant in (("start", start), ("until", until)):
        if instant is not None and not EPOCH <= check_aware(instant, option) < LAST:
            raise ValueError(f"{option}={instant} is no time from 1970 to 9000; give another one.")
    if start is not None and until is not None and until < start:
        raise ValueError(f"until={until} is before start={start}; give a later one.")
    if count is not None:
        check_count(count, "count", most=_MOST_COUNT)


def check_comes(every: Rule, start: datetime | None, until: datetime | None, now: datetime) -> datetime:
    """Return the first occurrence after `now`. Raises `ValueError`, naming the value and the fix, if none comes."""
    for first in to_come(every, now, start, until, 1):
        return first
    if until is not None and until <= now:
        raise ValueError(f"until={until} is past, so nothing ever runs; give a later one.")
    following = every.after(not_before(now, start))
    if following is None:
        since = f"start={start}" if start is not None and start > now else "now"
        raise ValueError(f"every={short_repr(str(every))} does not come any more after {since}; give one that does.")
    raise ValueError(
        f"until={until} is before the first occurrence of every={short_repr(str(every))}, which is at {following}; "
        "give a later one."
    )


def next_to_put(
    rule: Rule,
    following: datetime | None,
    now: datetime,
    ended: datetime | None,
    catch_up: CatchUp,
    overlap: Overlap,
    until: datetime | None = None,
) -> datetime | None:
    """Return the occurrence to put next, now that the one before it is over; None if the rule has no more.

    `following` is the first that was not put. `ended` is when the one before it ended, if it ran: with
    `overlap="skip"` whatever fell due by then is left out. Of the others that are past, `catch_up` says which are put.
    Those after `until` are none, but one may be returned if there is no other.
    """
    past = now if until is None else min(now, until)
    if following is None or following > past:
        return following
    if overlap == "skip" and ended is not None and following <= ended:
        following = rule.after(min(ended, past))
        if following is None or following > past:
            return following
    missed = latest(rule, following, past, MOST_CAUGHT_UP if catch_up == "all" else 1)
    if catch_up == "none" and missed[-1] <= now - GRACE:
        return rule.after(now)
    return missed[0]


def latest(rule: Rule, first: datetime, now: datetime, most: int) -> list[datetime]:
    """Return the last `most` occurrences of a rule up to `now`, from its occurrence `first` on, in order.

    It looks back twice as far each time, so that the work is bounded however long ago `first` was.
    """
    back = timedelta(minutes=1)
    while True:
        begin = max(first - timedelta(microseconds=1), now - back)
        found = []
        each = rule.after(begin)
        while each is not None and each <= now:
            found.append(each)
            each = rule.after(each)
        if len(found) >= most or begin < first:
            return found[-most:]
        back *= 2


def span(rule: Rule, after: datetime, until: datetime | None) -> Iterator[datetime]:
    """Yield the occurrences of a rule after one instant, and until another, or without end."""
    while (found := rule.after(after)) is not None and (until is None or found <= until):
        yield found
        after = found


def not_before(after: datetime, start: datetime | None) -> datetime:
    """Return the instant after which the first occurrence after `after` is that is not before the `start`."""
    return after if start is None else max(after, start - timedelta(microseconds=1))


def to_come(
    rule: Rule, after: datetime, start: datetime | None, until: datetime | None, left: int | None
) -> Iterator[datetime]:
    """Yield the occurrences of a schedule after an instant: none before `start` or after `until`, at most `left`."""
    return islice(span(rule, not_before(after, start), until), left)


def within(
    rule: Rule, start: datetime | None, until: datetime | None, first: datetime, last: datetime, most: int
) -> list[datetime]:
    """Return the occurrences of a schedule from `first` to `last`, both included, at most `most`."""
    before = max(first, EPOCH) - timedelta(microseconds=1)
    return list(to_come(rule, before, start, last if until is None else min(last, until), most))


def _first_after(
    instant: datetime,
    zone: ZoneInfo,
    local_times: Callable[[datetime], Iterator[datetime]],
    calendar: str | Calendar | None,
) -> datetime | None:
    """Return the first instant after `instant` of local times, which `local_times` yields in order after a local time.

    Those on holidays are left out. A local time that the clocks skip becomes an instant after that of later ones, so
    those that were skipped lately are looked at again. Raises `ValueError` if two years have nothing but holidays.
    """
    now = check_instant(instant, "instant")
    here, before = now.astimezone(zone), max(now - _LOOK_BACK, EPOCH).astimezone(zone)
    skipped = max((here.utcoffset() or _NO_TIME) - (before.utcoffset() or _NO_TIME), _NO_TIME)
    found: datetime | None = None
    shown = datetime.max
    closed: list[datetime] = []
    for local in local_times(here.replace(tzinfo=None, fold=0) - skipped):
        if local >= shown:
            return found
        if local.year >= LAST.year:
            return found
        if is_holiday(calendar, local.date()):
            closed.append(local)
            if len(closed) >= _MOST_CLOSED and local - closed[0] > timedelta(days=MOST_CLOSED_DAYS):
                raise ValueError(
                    _(
                        "calendar=%(calendar)s has holidays on all %(count)d days of the rule from %(first)s to "
                        "%(last)s.",
                        calendar=short_repr(calendar),
                        count=len(closed),
                        first=closed[0].date(),
                        last=local.date(),
                    )
                )
            continue
        closed.clear()
        other = local.replace(tzinfo=zone).astimezone(UTC)
        if other > now and (found is None or other < found):
            found, shown = other, clock_in(other, zone)
            if shown == local:  # it is not skipped, so none that follows is before it
                return found
    return found


@lru_cache(maxsize=256)
def _parsed_cron(expression: str) -> tuple["CronSim", list[clock_time]]:
    """Return what cronsim read of an expression, and the times of a day on which it comes, in order."""
    from cronsim import CronSim

    parsed = CronSim(expression, datetime(2000, 1, 1))
    return parsed, [clock_time(hour, minute) for hour in sorted(parsed.hours) for minute in sorted(parsed.minutes)]


@lru_cache(maxsize=256)
def _cron_days(expression: str, year: int) -> list[date]:
    """Return the days of a year on which an expression comes, in order.

    They are kept because most days are not those of a rule that comes once a month or a year.
    """
    parsed = _parsed_cron(expression)[0]
    return [
        day
        for month in sorted(parsed.months)
        for day in (date(year, month, number) for number in range(1, monthrange(year, month)[1] + 1))
        if parsed.match_day(day)
    ]


def _check_cron(expression: object) -> None:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ValueError(_("Cron(...) needs cronsim: pip install 'django-delayq[recurring]'.")) from error
    if not isinstance(expression, str):
        raise TypeError(f"expression={short_repr(expression)} is {type(expression).__name__}; write '0 9 * * 1-5'.")
    if len(expression.split()) != 5:
        raise ValueError(
            f"expression={short_repr(expression)} does not have five fields; write minute, hour, day of the month, "
            "month and day of the week, as in '0 9 * * 1-5'."
        )
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))
    except (CronSimError, StopIteration, ValueError) as error:  # the last is Python's, for a number that is very long
        why = str(error) or "it never comes"
        raise ValueError(
            f"expression={short_repr(expression)} is no cron expression ({why}); write it like '0 9 * * 1-5'."
        ) from error


@lru_cache(maxsize=1024)
def _parsed_rrule(text: str, start: datetime) -> "rrule":
    from dateutil.rrule import rrule, rrulestr

    if "FREQ=" not in text.upper():
        raise ValueError("it has no FREQ")
    if re.search(r"UNTIL=\w+Z\b", text.upper()):
        raise ValueError("its UNTIL is in UTC")
    parsed = rrulestr(text, dtstart=start, cache=False)
    if not isinstance(parsed, rrule):
        raise ValueError("it is a set of rules; give one")
    if "DTSTART" in text.upper():
        raise ValueError("it has a DTSTART; give start=...")
    if not 1 <= parsed._interval <= _LOCAL_UNITS["days"]:
        raise ValueError(f"INTERVAL={parsed._interval}; give 1 to {_LOCAL_UNITS['days']}")
    if len(parsed._timeset or ()) > _MOST_A_DAY:
        raise ValueError(f"it comes {len(parsed._timeset)} times a day, and may come {_MOST_A_DAY} times")
    if parsed._count is not None and parsed._count < 1:
        raise ValueError(f"it never comes, with COUNT={parsed._count}")
    if parsed._until is not None and parsed._until < start:
        raise ValueError(f"it never comes, because its UNTIL is before its start={start}")
    within = min(parsed._until - start, _SOON) if parsed._until else _SOON
    if not _comes_within(parsed, start, within):
        raise ValueError(f"it never comes in {_SOON.days // 365} years")
    return parsed


def _comes_within(parsed: "rrule", start: datetime, within: timedelta) -> bool:
    """Return whether a rule comes at least once in this time from its start on.

    dateutil looks for the first time up to the year 9999, which takes it seconds for a rule that never comes. So it is
    asked with a start in the last of those years: the Gregorian calendar repeats itself every 400 years.
    """
    year = start.year % 400 + 9600
    late = start.replace(year=year if year + _SOON.days // 365 < 9999 else year - 400)
    found = next(iter(parsed.replace(dtstart=late, count=None, until=None)), None)
    return found is not None and found - late <= within


@lru_cache(maxsize=128)
def _rrule_times(text: str, start: datetime, month: date) -> list[datetime]:
    """Return the local times of a rule in the month that begins at `month`, and the one that follows.

    They are kept because dateutil takes long to begin, above all where it counts from the start on, and a preview, a
    backfill or the look back after an outage asks for many.
    """
    first, end = (datetime.combine(day, clock_time()) for day in (month, months_after(month, 1)))
    found = []
    for local in _rrule_near(text, start, first).xafter(first, inc=True):
        found.append(local)
        if local >= end:
            break
    return found


def _rrule_near(text: str, start: datetime, local: datetime) -> "rrule":
    """Return the rule as it is counted from a day not long before a local time, because dateutil counts each one.

    Days and weeks are the same from any day that is a whole number of intervals after the start. Months are few.
    """
    from dateutil.rrule import DAILY, WEEKLY

    parsed = _parsed_rrule(text, start)
    if parsed._count or parsed._freq not in (DAILY, WEEKLY):
        return parsed
    interval = parsed._interval * timedelta(days=1 if parsed._freq == DAILY else 7)
    passed = (local - start) // interval - 1
    return parsed if passed <= 0 else parsed.replace(dtstart=start + passed * interval)


def _check_rrule(text: object, start: datetime) -> None:
    if not isinstance(text, str):
        raise TypeError(f"text={short_repr(text)} is {type(text).__name__}; write 'FREQ=WEEKLY;BYDAY=MO,TH'.")
    try:
        import dateutil  # noqa: F401
    except ImportError as error:
        raise ValueError(_("RRule(...) needs python-dateutil: pip install 'django-delayq[recurring]'.")) from error
    frequency = re.search(r"FREQ=(\w+)", text.upper())
    if frequency is not None and frequency[1] not in FREQUENCIES:
        raise ValueError(
            f"text={short_repr(text)} has FREQ={frequency[1]}; give one of {', '.join(FREQUENCIES)}, or "
            "Every(hours=...)."
        )
    try:
        _parsed_rrule(text, start)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ) as error:  # it raises each of them for some text
        raise ValueError(
            f"text={short_repr(text)} is no rule of RFC 5545 ({error}); write it like 'FREQ=WEEKLY;BYDAY=MO,TH', with "
            "UNTIL as a local time."
        ) from error


def _number_of(month: date) -> int:
    """Return the number of a day's month, counted from the year 0."""
    return month.year * 12 + month.month - 1


def _day_of(year: int, month: int, day: int) -> date:
    """Return a day of a month; if that is too short, its last, or counted back its first."""
    length = monthrange(year, month)[1]
    return date(year, month, min(day, length) if day > 0 else max(length + 1 + day, 1))


def _business_day_of(year: int, month: int, number: int, calendar: str | Calendar | None) -> date | None:
    """Return a business day of a month, counted as by `_day_of`; None if the month has none."""
    weekday, length = monthrange(year, month)
    found: date | None = None
    left = abs(number)
    for day_of_month in range(1, length + 1) if number > 0 else range(length, 0, -1):
        if (weekday + day_of_month - 1) % 7 < 5 and not is_holiday(calendar, day := date(year, month, day_of_month)):
            found, left = day, left - 1
            if not left:
                break
    return found


def _to_json(**given: Any) -> str:
    return dumps({name: _plain(value) for name, value in given.items() if value}).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, clock_time):
        return value.isoformat("auto" if value.second else "minutes")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, ZoneInfo):
        return str(value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, Iterable):
        return sorted(map(str, value))
    raise TypeError(f"calendar={short_repr(value)} can't be kept; give its name in CALENDARS, or dates.")


_EACH = {
    "months": _("every month"),
    "weeks": _("every week"),
    "days": _("every day"),
    "hours": _("every hour"),
    "minutes": _("every minute"),
    "seconds": _("every second"),
}


def _interval(sizes: list[tuple[int, str]]) -> Text:
    if len(sizes) == 1 and sizes[0][0] == 1:
        return _EACH[sizes[0][1]]
    words, *smaller = (counted(*size) for size in sizes)
    for each in smaller:
        words = _("%(length)s %(smaller)s", length=words, smaller=each)
    return _("every %(interval)s", interval=words)


def _nth(number: int) -> Text:
    if number in (1, -1):
        return _("the first") if number == 1 else _("the last")
    size = abs(number)
    endings = {
        1: _("the %(number)dst", number=size),
        2: _("the %(number)dnd", number=size),
        3: _("the %(number)drd", number=size),
    }
    nth = _("the %(number)dth", number=size)
    if size not in (11, 12, 13):
        nth = endings.get(size % 10, nth)
    return nth if number > 0 else _("%(nth)s to last", nth=nth)


def words_of_window(window: Window) -> str:
    """Return a window in words, with its zone, and the calendar whose holidays are left out."""
    return without_holidays(f"{words_of_windows([window])} {window.zone}", window.calendar)


def without_holidays(words: str, calendar: object) -> str:
    """Return the words of a rule or a window, with the calendar whose holidays are left out."""
    if calendar is None:
        return words
    if isinstance(calendar, str):
        return _("%(rule)s without holidays of %(calendar)s", rule=words, calendar=calendar)
    return _("%(rule)s without some holidays", rule=words)
