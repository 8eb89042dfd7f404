"""Find instants by human time: a local time some days on, and windows that close at night and on holidays. Pure.

The rule for changes of the clocks: a local time that is skipped is later by as much as was skipped (02:30 is 03:30),
and of one that comes twice the first counts. That is what RFC 5545 says, what java.time and Temporal ("compatible") do,
and dateutil with `resolve_imaginary`. So a time of each day comes once on each day, and never before its day.

A window is a question about what a clock on the wall there shows, so it needs no such rule: whatever the clocks do, an
instant is inside if they show a time inside. A local time that comes twice is inside twice.

zoneinfo does not say when clocks change, so they are looked at every three days: if they go as before, they have not
changed in between. (Of all zones, the two changes that are nearest to each other, from 1970 to 2100, are a week apart.)
"""

import re
from calendar import monthrange
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime, time as clock_time, timedelta
from functools import lru_cache
from hashlib import sha256
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from django_delayq.support.timestamps import check_instant, from_ms, to_epoch_ms
from django_delayq.support.translatable import Text, text as _
from django_delayq.support.validation import check_count, did_you_mean, short_repr

Calendar = Container[date] | Callable[[date], bool | str | None]
"""The days that are holidays: dates, or a function that says whether a date is one, or the name of the holiday.

A mapping of dates to names gives names too.
"""

MOST_CLOSED_DAYS = 2 * 366
"""How long a window may stay closed, and days may follow each other of which none is a business day."""

_MOST_DAYS = 100 * 366
_DAY = timedelta(days=1)
_LOOK = timedelta(days=3)
_DAY_NAMES = (_("Mon"), _("Tue"), _("Wed"), _("Thu"), _("Fri"), _("Sat"), _("Sun"))
_WEEKDAYS = tuple(name.lower() for name in _DAY_NAMES)
_BUSINESS_DAYS = frozenset(range(5))
_MOST_SHOWN = 10
"""How many runs of closed days the words of a rule name."""
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", re.ASCII)

Note = Callable[[date, str], None] | None
"""Takes down a step of a rule for people: the day, or what the clocks show after it, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A local time in a zone, some days after the day that it is there now.

    `months` are added first (31 January and a month is the last day of February), then `days`, then `business_days`,
    which are Monday to Friday without the holidays of `calendar`. With none of them it is the next such time: today's,
    or tomorrow's if today's is over.

    Raises `TypeError` or `ValueError`, naming the value and the fix.
    """

    time: str | clock_time
    zone: str | ZoneInfo
    months: int = 0
    days: int = 0
    business_days: int = 0
    calendar: str | Calendar | None = None
    _time: clock_time = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_time", time_of(self.time, "time"))
        object.__setattr__(self, "_zone", zone_of(self.zone))
        check_count(self.months, "months", 0, _MOST_DAYS // 30)
        check_count(self.days, "days", 0, _MOST_DAYS)
        check_count(self.business_days, "business_days", 0, _MOST_DAYS)
        if self.calendar is not None:
            check_calendar(self.calendar)
            if not self.business_days:
                raise ValueError(
                    f"calendar={short_repr(self.calendar)} is asked for business days only: give business_days=..., or "
                    "send with a window=... that has the calendar."
                )

    def resolve(self, now: datetime) -> datetime:
        """Return the instant, in UTC; never before `now`, which is aware.

        Raises `ValueError` if `calendar` has no business day for two years.
        """
        return self._resolve(now, None)

    def preview(self, now: datetime) -> str:
        """Return the steps to the instant in words, a line each."""
        return "\n".join(steps(self, now))

    def _resolve(self, now: datetime, note: Note) -> datetime:
        zone, at = self._zone, self._time
        now = check_instant(now, "now")
        today = now.astimezone(zone).date()
        if not (self.months or self.days or self.business_days):
            first = instant_of(datetime.combine(today, at), zone)
            if first >= now:
                return _noted(first, at, zone, note)
            day = today + _DAY
            if note:
                note(datetime.combine(day, clock_time()), _("the next day, because %(time)s is over", time=_clock(at)))
        else:
            day = self._day(today, note)
        instant = instant_of(datetime.combine(day, at), zone)
        if instant < now:  # the clocks have gone back since then, past midnight, and it comes again
            instant = datetime.combine(day, at.replace(fold=1), zone).astimezone(UTC)
        return _noted(instant, at, zone, note)

    def _day(self, day: date, note: Note) -> date:
        for unit, count, later in (
            ("months", self.months, months_after),
            ("days", self.days, days_after),
            ("business days", self.business_days, self._business_days_after),
        ):
            if count:
                before, day = day, later(day, count)
                if note and unit == "business days":
                    _note_closed(note, before + _DAY, day, _BUSINESS_DAYS, self.calendar)
                if note:
                    note(datetime.combine(day, clock_time()), _("%(length)s on", length=counted(count, unit)))
        return day

    def _business_days_after(self, day: date, count: int) -> date:
        closed = 0
        while count:
            day += _DAY
            if day.weekday() in _BUSINESS_DAYS and not is_holiday(self.calendar, day):
                count, closed = count - 1, 0
            elif (closed := closed + 1) > MOST_CLOSED_DAYS:
                raise ValueError(
                    _(
                        "calendar=%(calendar)s has no business day in the %(most)d days to %(day)s.",
                        calendar=short_repr(self.calendar),
                        most=MOST_CLOSED_DAYS,
                        day=day,
                    )
                )
        return day


@dataclass(frozen=True, slots=True)
class Window:
    """The time from `start` to `end`, not included, of some days of the week: `Window("mon-fri", "09:00", "18:00")`.

    A window whose `end` is not after its `start` goes on over midnight; "24:00" ends with the day. It opens on the
    `weekdays` that are no holidays of `calendar`, and may close on a day that is one.

    Raises `TypeError` or `ValueError`, naming the value and the fix.
    """

    weekdays: str
    start: str | clock_time
    end: str | clock_time
    _: KW_ONLY
    zone: str | ZoneInfo
    calendar: str | Calendar | None = None
    _days: frozenset[int] = field(init=False, repr=False, compare=False)
    _opens: timedelta = field(init=False, repr=False, compare=False)  # from the midnight of the day on which it opens
    _closes: timedelta = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        opens, closes = _hours_of(self.start, self.end)
        object.__setattr__(self, "_days", weekdays_of(self.weekdays))
        object.__setattr__(self, "_opens", opens)
        object.__setattr__(self, "_closes", closes)
        object.__setattr__(self, "_zone", zone_of(self.zone))
        if self.calendar is not None:
            check_calendar(self.calendar)

    def resolve(self, now: datetime) -> datetime:
        """Return the first instant from `now` on, which is aware, that is inside, in UTC.

        Raises `ValueError` if the window stays closed for two years.
        """
        return self._resolve(now, None)

    def preview(self, now: datetime) -> str:
        """Return the steps to the instant in words, a line each."""
        return "\n".join(steps(self, now))

    def _resolve(self, now: datetime, note: Note) -> datetime:
        zone = self._zone
        now = check_instant(now, "now")
        local = clock_in(now, zone)
        last = local + timedelta(days=MOST_CLOSED_DAYS)
        if note and self._closes_at(local):
            note(local, _("it is open"))
        first = local.date()
        while self._closes_at(local) is None:
            opens_at = self._opens_after(local, last)
            if note:
                _note_closed(note, first, opens_at.date(), self._days, self.calendar)
                first = opens_at.date()
            now, local = _run(now, local, opens_at, zone)
            if note:
                note(local, _("it opens") if self._closes_at(local) else _("the clocks change"))
        return now

    def _open_until(self, instant: datetime, limit: datetime) -> datetime:
        """Return until when the window stays open from `instant` on; `limit` if it is open for longer."""
        zone = self._zone
        while instant < limit:
            local = clock_in(instant, zone)
            closes_at = self._closes_at(local)
            if closes_at is None:
                return instant
            instant, _local = _run(instant, local, closes_at, zone)
        return limit

    def _closes_at(self, local: datetime) -> datetime | None:
        """Return the local time at which the window closes, as seen at a local time; None if it is closed then."""
        midnight = datetime(local.year, local.month, local.day)
        time_of_day = local - midnight
        if self._opens <= time_of_day < self._closes and self._opens_on(local):
            return midnight + self._closes
        if time_of_day + _DAY < self._closes and self._opens_on(local - _DAY):
            return midnight - _DAY + self._closes
        return None

    def _opens_after(self, local: datetime, last: datetime) -> datetime:
        """Return the first local time after `local` at which the window opens. Raises `ValueError` after `last`."""
        opens_at = datetime(local.year, local.month, local.day) + self._opens
        while opens_at <= local or not self._opens_on(opens_at):
            opens_at += _DAY
            if opens_at > last:
                raise ValueError(
                    _(
                        "Window(%(days)s, calendar=%(calendar)s) stays closed until %(last)s, and perhaps for good; "
                        "give one that opens.",
                        days=f"{self.weekdays!r}, {str(self.start)!r}, {str(self.end)!r}",
                        calendar=short_repr(self.calendar),
                        last=last.date(),
                    )
                )
        return opens_at

    def _opens_on(self, day: datetime) -> bool:
        return day.weekday() in self._days and not is_holiday(self.calendar, day.date())


Windows = Window | Sequence[Window]
"""A window, or several, of which any may be open."""


def due_in_window_ms(due_ms: int, window: Windows | None, spread_ms: int, id: str) -> int:
    """Return the epoch ms at which a message is due that may not be due before `due_ms`.

    It is in the `window`, and later by a part of `spread_ms` that depends on the `id` alone. Where the window closes
    before that, the part is one of the time until it closes. Raises like `Window`.
    """
    first_ms, most_ms = room_in_window_ms(due_ms, window, spread_ms)
    return first_ms + spread_of(id, most_ms)


def room_in_window_ms(due_ms: int, window: Windows | None, spread_ms: int) -> tuple[int, int]:
    """Return the first epoch ms from `due_ms` on that is in the `window`, and over how many ms a spread may go on then.

    That is what is the same for all ids.
    """
    if window is None:
        return due_ms, spread_ms
    windows = check_windows(window)
    instant = from_ms(due_ms)
    due_ms = to_epoch_ms(min(each.resolve(instant) for each in windows))
    if not spread_ms:
        return due_ms, 0
    until, limit = from_ms(due_ms), from_ms(due_ms + spread_ms)
    while (later := max(each._open_until(until, limit) for each in windows)) > until:
        until = later
    return due_ms, to_epoch_ms(until) - due_ms


def spread_of(id: str, most_ms: int) -> int:
    """Return a number of ms under `most_ms`, always the same for an id, and evenly spread over ids."""
    return int.from_bytes(sha256(id.encode()).digest()[:4]) * most_ms >> 32


def check_zone(name: str) -> str:
    """Return the name of a time zone unchanged. Raises `ValueError` if there is none of this name."""
    _zone_named(name)
    return name


def check_dates(values: Iterable[object], name: str) -> None:
    """Raise `TypeError` unless all values are dates. A datetime is none: it equals no date."""
    for value in values:
        if type(value) is not date:
            raise TypeError(f"{name} has {short_repr(value)}, which is {type(value).__name__}; give dates.")


# Calendars by name


def _find_none(name: str) -> Calendar:
    raise ValueError(f"calendar={name!r} is a name of CALENDARS, and Django is not set up; give dates, or a function.")


_find_calendar: Callable[[str], Calendar] = _find_none


def find_calendars_with(find: Callable[[str], Calendar]) -> None:
    """Set the function that finds the calendar of a name."""
    global _find_calendar
    _find_calendar = find


# The parts of a rule, which are read again at each use: what has been read is cached


@lru_cache(maxsize=1024)
def _zone_named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # "Europe" is a directory
        known = available_timezones()
        if not known:
            told = _("zone=%(zone)s: this machine has no time zones; pip install tzdata.", zone=repr(name))
            raise ValueError(told) from error
        near = did_you_mean(name, known)
        fix = near if near.startswith("did") else _("write a name such as 'Europe/Rome'.")
        raise ValueError(_("zone=%(zone)s is no time zone: %(fix)s", zone=short_repr(name), fix=fix)) from error


def zone_of(zone: object) -> ZoneInfo:
    """Return the zone of a name, or the zone itself. Raises `TypeError` or `ValueError`."""
    if isinstance(zone, str):
        return _zone_named(zone)
    if isinstance(zone, ZoneInfo):
        return zone
    raise TypeError(
        f"zone={short_repr(zone)} is {type(zone).__name__}; give the name of a zone, such as 'Europe/Rome', or a "
        "zoneinfo.ZoneInfo."
    )


def time_of(value: object, name: str) -> clock_time:
    """Return a time of day, given as one or as text like "09:00". Raises `TypeError` or `ValueError`."""
    if isinstance(value, str):
        return _parsed_time(value, name)
    if not isinstance(value, clock_time):
        raise TypeError(f"{name}={short_repr(value)} is {type(value).__name__}; give text such as '09:00', or a time.")
    if value.tzinfo is not None or value.microsecond or value.fold:
        raise ValueError(f"{name}={value!r} has a zone, a fold or microseconds; give hour, minute and second alone.")
    return value


@lru_cache(maxsize=4096)
def _parsed_time(text: str, name: str) -> clock_time:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{name}={short_repr(text)} is no time of day; write it like '09:00' or '18:30:15'.")
    hour, minute, second = map(int, match.groups("0"))
    return clock_time(hour, minute, second)


def _hours_of(start: object, end: object) -> tuple[timedelta, timedelta]:
    """Return how long after a midnight a window opens and closes."""
    opens = _since_midnight(time_of(start, "start"))
    closes = _DAY if end == "24:00" else _since_midnight(time_of(end, "end"))
    if opens == closes:
        raise ValueError(f"start={start} and end={end} are one time; for a whole day give '00:00' and '24:00'.")
    return opens, closes if closes > opens else closes + _DAY


def _since_midnight(at: clock_time) -> timedelta:
    return timedelta(hours=at.hour, minutes=at.minute, seconds=at.second)


def weekdays_of(text: object) -> frozenset[int]:
    """Return the numbers of the days in a text such as "mon-fri" or "mon,wed,sat-sun". Monday is 0."""
    if not isinstance(text, str):
        raise TypeError(f"weekdays={short_repr(text)} is {type(text).__name__}; write days like 'mon-fri'.")
    return _parsed_weekdays(text)


@lru_cache(maxsize=1024)
def _parsed_weekdays(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        first, *rest = names = part.strip().split("-")
        for name in names:
            if name not in _WEEKDAYS or len(names) > 2:
                raise ValueError(
                    f"weekdays={short_repr(text)} has {short_repr(part)}; write days like 'mon-fri', 'sat,sun' or "
                    f"'mon-sun', of {', '.join(_WEEKDAYS)}."
                )
        begin, end = _WEEKDAYS.index(first), _WEEKDAYS.index(rest[0] if rest else first)
        found |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return frozenset(found)


def check_calendar(calendar: object) -> None:
    """Raise `TypeError` unless this is a name of CALENDARS, dates, or a function."""
    if isinstance(calendar, list | tuple | set | frozenset):
        check_dates(calendar, "calendar")
    elif not isinstance(calendar, Container) and not callable(calendar):  # text is a container too
        raise TypeError(
            f"calendar={short_repr(calendar)} is {type(calendar).__name__}; give a name of CALENDARS, dates, or a "
            "function of a date."
        )


def is_holiday(calendar: str | Calendar | None, day: date) -> bool:
    """Return whether a day is a holiday of the calendar. Raises `ValueError` if the site's function raises."""
    if calendar is None:
        return False
    if isinstance(calendar, str):
        calendar = _find_calendar(calendar)
    try:
        return bool(calendar(day)) if callable(calendar) else day in calendar
    except Exception as error:
        name, why = getattr(calendar, "__name__", short_repr(calendar)), f"{type(error).__name__}: {error}"
        told = _("calendar=%(calendar)s fails for %(day)s: %(why)s", calendar=name, day=day, why=why.removesuffix(": "))
        raise ValueError(told) from error


def _holiday_name(calendar: str | Calendar | None, day: date) -> str | None:
    """Return what a calendar calls a holiday; None if it only knows that it is one."""
    if isinstance(calendar, str):
        calendar = _find_calendar(calendar)
    name = calendar(day) if callable(calendar) else calendar.get(day) if isinstance(calendar, Mapping) else None
    return name if isinstance(name, str) else None


def check_windows(window: object) -> Sequence[Window]:
    """Return one window, or several, as a sequence. Raises `TypeError` or `ValueError` for anything else."""
    windows = (window,) if isinstance(window, Window) else window
    if not isinstance(windows, list | tuple) or not all(isinstance(each, Window) for each in windows):
        raise TypeError(
            f"window={short_repr(window)} is {type(window).__name__}; give Window('mon-fri', '09:00', '18:00', "
            "zone=...), or a list of such."
        )
    if not windows:
        raise ValueError("window=[] is never open; give at least one Window, or None.")
    return windows


def windows_from_words(text: str, zone: str, calendar: str | Calendar | None) -> tuple[Window, ...]:
    """Return windows from a text such as "mon-fri 09:00-18:00" or "mon-fri 09:00-18:00; sat 09:00-12:00".

    Raises `ValueError`, naming the value and the fix.
    """
    windows = []
    for part in text.split(";"):
        weekdays, _space, hours = part.strip().rpartition(" ")
        start, dash, end = hours.partition("-")
        if not weekdays or not dash:
            raise ValueError(
                f"window={short_repr(text)} has {short_repr(part)}; write it like 'mon-fri 09:00-18:00', and several "
                "with semicolons between them."
            )
        windows.append(Window(weekdays, start, end, zone=zone, calendar=calendar))
    return tuple(windows)


def words_of_windows(windows: Iterable[Window]) -> str:
    """Return the text from which `windows_from_words` makes these windows, but for their zones and calendars."""
    return "; ".join(f"{each.weekdays} {each.start}-{each.end}" for each in windows)


# Clocks


def instant_of(local: datetime, zone: str | ZoneInfo) -> datetime:
    """Return the instant, in UTC, of a naive local time. Raises `TypeError` or `ValueError` for what is no zone."""
    return local.replace(tzinfo=zone_of(zone)).astimezone(UTC)


def clock_in(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return what the clocks of a zone show at an instant, as a naive datetime."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _run(instant: datetime, local: datetime, target: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the instant at which clocks that show `local` at `instant` show `target`, and what they show then.

    If they change before that, or just then, return the instant at which they do.
    """
    offset = instant.astimezone(zone).utcoffset()
    while local < target:
        step = min(target - local, _LOOK)
        later = instant + step
        if later.astimezone(zone).utcoffset() != offset:
            changed = _change_between(instant, later, zone)
            return changed, clock_in(changed, zone)
        instant, local = later, local + step
    return instant, local


def _change_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the first whole second of a new offset, between an instant of the old one and an instant of the new."""
    old = before.astimezone(zone).utcoffset()
    first, last = -((before - _EPOCH) // -_SECOND), -((after - _EPOCH) // -_SECOND)
    while first < last:
        middle = (first + last) // 2
        if (_EPOCH + middle * _SECOND).astimezone(zone).utcoffset() == old:
            first = middle + 1
        else:
            last = middle
    return _EPOCH + first * _SECOND


_EPOCH, _SECOND = from_ms(0), timedelta(seconds=1)


def months_after(day: date, count: int) -> date:
    """Return the same day some months later, or the last one of a month that is shorter."""
    years, month = divmod(day.month - 1 + count, 12)
    year = day.year + years
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def days_after(day: date, count: int) -> date:
    """Return the day some days later."""
    return day + timedelta(days=count)


# Words


def counted(count: int, unit: str) -> Text:
    """Return a number of months, weeks, business days and so on in words."""
    one = {
        "months": _("1 month"),
        "weeks": _("1 week"),
        "days": _("1 day"),
        "business days": _("1 business day"),
        "hours": _("1 hour"),
        "minutes": _("1 minute"),
        "seconds": _("1 second"),
    }
    many = {
        "months": _("%(count)d months", count=count),
        "weeks": _("%(count)d weeks", count=count),
        "days": _("%(count)d days", count=count),
        "business days": _("%(count)d business days", count=count),
        "hours": _("%(count)d hours", count=count),
        "minutes": _("%(count)d minutes", count=count),
        "seconds": _("%(count)d seconds", count=count),
    }
    return (one if count == 1 else many)[unit]


def steps(rule: At | Window, start: datetime, called: str | None = None) -> Iterator[str]:
    """Yield the steps of a rule from an instant, which is `called` so, in words."""
    found: list[str] = []
    instant = rule._resolve(start, lambda local, why: found.append(_("%(when)s: %(why)s", when=_shown(local), why=why)))
    when = _shown(clock_in(start, rule._zone))
    yield _("%(when)s: %(called)s in %(zone)s", when=when, called=called or _("now"), zone=rule._zone)
    yield from found
    yield _("%(when)s UTC: the instant", when=_shown(instant))


def _note_closed(
    note: Callable[[date, str], None],
    first: date,
    end: date,
    weekdays: frozenset[int],
    calendar: str | Calendar | None,
) -> None:
    """Note the days from `first` to `end`, not included, that are closed; days in a row with one reason as one."""
    runs: list[tuple[date, date, str]] = []
    while first < end:
        why = _why_closed(first, weekdays, calendar)
        if why is not None and runs and runs[-1][1:] == (first - _DAY, why):
            runs[-1] = (runs[-1][0], first, why)
        elif why is not None:
            runs.append((first, first, why))
        first += _DAY
    for begin, last, reason in runs[:_MOST_SHOWN]:
        note(begin, reason if begin == last else _("%(why)s until %(last)s", why=reason, last=_shown(last)))
    if more := runs[_MOST_SHOWN:]:
        note(more[0][0], _("closed days go on, the last is %(last)s", last=_shown(more[-1][1])))


def _why_closed(day: date, weekdays: frozenset[int], calendar: str | Calendar | None) -> Text | None:
    """Return why a day is closed, in words; None for one that is open."""
    if is_holiday(calendar, day):
        name = _holiday_name(calendar, day)
        return _("holiday (%(name)s)", name=name) if name else _("holiday")
    if day.weekday() in weekdays:
        return None
    return _("closed day") if day.weekday() in _BUSINESS_DAYS else _("weekend")


def _noted(instant: datetime, at: clock_time, zone: ZoneInfo, note: Note) -> datetime:
    """Return the instant, after a note on whether it is when the clocks show `at`."""
    if note:
        local = instant.astimezone(zone)
        if local.time() != at:
            note(local, _("%(time)s is skipped when the clocks go forward", time=_clock(at)))
        elif local.utcoffset() == local.replace(fold=1 - local.fold).utcoffset():
            note(local, _("at %(time)s", time=_clock(at)))
        elif local.fold:
            note(local, _("the second %(time)s, because the clocks go back", time=_clock(at)))
        else:
            note(local, _("the first %(time)s, because the clocks go back", time=_clock(at)))
    return instant


def _shown(moment: date) -> Text:
    day = _DAY_NAMES[moment.weekday()]
    if not isinstance(moment, datetime):
        return _("%(day)s %(date)s", day=day, date=moment)
    return _("%(day)s %(date)s %(time)s", day=day, date=moment.date(), time=_clock(moment))


def _clock(moment: datetime | clock_time) -> str:
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
