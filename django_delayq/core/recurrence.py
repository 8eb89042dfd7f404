"""Find the occurrences of rules that recur: cron expressions, and intervals. Pure.

A rule has no state: `after` an instant, its next occurrence is always the same one, whoever asks. Local times that the
clocks skip or show twice follow the rule of human_time.py: the one is later by as much as is skipped, of the other the
first counts. So an occurrence of each day comes once on each day, and two local times that become one instant are one
occurrence. An interval of hours, minutes or seconds is elapsed time, which no clock changes.

cronsim reads cron expressions. It gets local times without a zone, because its own rule for the clocks is Debian's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time as clock_time, timedelta
from itertools import count
from typing import Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo

from django_delayq.core.codec import dumps, loads
from django_delayq.core.human_time import _days_after, _local, _months_after, _time_of, _weekdays_of, _zone_of
from django_delayq.support.timestamps import EPOCH, check_aware
from django_delayq.support.units import LONGEST_MS
from django_delayq.support.validation import check_count, did_you_mean, short_repr

FIRST_DAY = date(1970, 1, 5)
"""The day from which an interval of days, weeks or months is counted unless it says otherwise: a Monday."""

_DAY = timedelta(days=1)
_LOOK_BACK = timedelta(days=3)
"""How far back clocks are looked at. No zone has changed its clocks twice within that."""
_LAST = datetime(9000, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(milliseconds=LONGEST_MS)
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
_LOCAL_UNITS = {"days": 100 * 366, "weeks": 100 * 52, "months": 100 * 12}
"""The units that are counted in local time, each with the most of them."""


class Rule(Protocol):
    """A rule that recurs."""

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence after an instant, which is aware, in UTC; None if there is none any more."""

    def to_json(self) -> str:
        """Return the rule as text, which `rule_of` reads."""

    def __str__(self) -> str:
        """Return the rule in words."""


@dataclass(frozen=True, slots=True)
class Cron:
    """The local times of a cron expression: `Cron("0 9 * * 1-5", zone="Europe/Rome")`, of five fields.

    It needs the extra `cron`. Raises `TypeError` or `ValueError`, naming the value and the fix.
    """

    expression: str
    zone: str | ZoneInfo
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone_of(self.zone))
        _check_cron(self.expression)

    def after(self, instant: datetime) -> datetime | None:
        return _first_after(instant, self._zone, self._local_times)

    def to_json(self) -> str:
        return dumps({"cron": self.expression, "zone": str(self._zone)}).decode()

    def __str__(self) -> str:
        from cronsim import CronSim

        return f"{CronSim(self.expression, datetime(2000, 1, 1)).explain()} in {self._zone}"

    def _local_times(self, local: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        return CronSim(self.expression, local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """An interval: `Every(minutes=15)`, or `Every(months=1, day=-1, time="18:00", zone="Europe/Rome")`.

    - Seconds, minutes and hours are added up, and counted from 1970 in UTC: a quarter of an hour begins at :00.
    - Days, weeks or months need the local `time` and its `zone`. They are counted from the day `since`, before which
      nothing occurs; without it from Monday, 5 January 1970.
    - `weekdays` are those of each week, such as "mon,thu". Without them it is that of `since`.
    - `day` is that of each month, from 1, or from -1 for the last one. If a month is too short, it is its last day.
      Without it, it is that of `since`, or the first.

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
    since: date | None = None
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

    def after(self, instant: datetime) -> datetime | None:
        if self._step:
            passed = (check_aware(instant, "instant") - EPOCH) // self._step
            found = EPOCH + (passed + 1) * self._step
            return found if found < _LAST else None
        assert self.zone is not None  # noqa: S101  - checked when the rule was made
        return _first_after(instant, _zone_of(self.zone), self._local_times)

    def to_json(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return dumps({"every": {name: _plain(value) for name, value in given.items() if value}}).decode()

    def __str__(self) -> str:
        sizes = [(getattr(self, name), name) for name in (*_LOCAL_UNITS, *reversed(_UNITS)) if getattr(self, name)]
        words = [f"every {' '.join(name[:-1] if n == 1 else f'{n} {name}' for n, name in sizes)}"]
        if self.weekdays:
            words.append(f"on {self.weekdays}")
        if self.day is not None:
            words.append("on the last day" if self.day == -1 else f"on day {self.day}")
        if self.time is not None:
            words.append(f"at {_plain(self.time)} in {self.zone}")
        if self.since is not None:
            words.append(f"since {self.since}")
        return " ".join(words)

    def _check_elapsed(self, step: timedelta) -> None:
        if step > _LONGEST:
            raise ValueError(f"{self!r} is over 100 years; give less.")
        for name in ("time", "zone", "weekdays", "day", "since"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name}={short_repr(value)} is for days, weeks or months; leave it out, or give days=1."
                )

    def _check_local(self) -> None:
        if self.time is None or self.zone is None:
            raise ValueError(f"{self!r} needs the local time=... of its days, such as '09:00', and the zone=... of it.")
        _time_of(self.time, "time")
        _zone_of(self.zone)
        if self.since is not None and type(self.since) is not date:
            raise TypeError(f"since={short_repr(self.since)} is {type(self.since).__name__}; give a date.")
        if self.weekdays is not None:
            if not self.weeks:
                raise ValueError(f"weekdays={short_repr(self.weekdays)} is for weeks; give weeks=1.")
            _weekdays_of(self.weekdays)
        if self.day is not None:
            if not self.months:
                raise ValueError(f"day={short_repr(self.day)} is for months; give months=1.")
            check_count(self.day, "day", -31, 31)
            if not self.day:
                raise ValueError("day=0 is no day of a month; give 1 for the first, or -1 for the last.")

    def _local_times(self, local: datetime) -> Iterator[datetime]:
        """Yield the local times after `local`, in order."""
        assert self.time is not None  # noqa: S101  - checked when the rule was made
        at, since = _time_of(self.time, "time"), self.since or FIRST_DAY
        days = self._days if self.days else self._days_of_weeks if self.weeks else self._days_of_months
        found = (datetime.combine(day, at) for day in days(max(local.date(), since), since))
        return (each for each in found if each > local)

    def _days(self, first: date, since: date) -> Iterator[date]:
        begin = first + -(first - since).days % self.days * _DAY
        return (_days_after(begin, number * self.days) for number in count())

    def _days_of_weeks(self, first: date, since: date) -> Iterator[date]:
        weekdays = sorted(_weekdays_of(self.weekdays)) if self.weekdays else [since.weekday()]
        monday = since - since.weekday() * _DAY
        begin = (first - monday).days // 7 // self.weeks * self.weeks
        found = (monday + (week * 7 + weekday) * _DAY for week in count(begin, self.weeks) for weekday in weekdays)
        return (day for day in found if day >= first)

    def _days_of_months(self, first: date, since: date) -> Iterator[date]:
        day = self.day or (self.since.day if self.since else 1)
        month = since.replace(day=1)
        passed = (first.year - month.year) * 12 + first.month - month.month
        begin = passed // self.months * self.months
        found = (_day_of(_months_after(month, number), day) for number in count(begin, self.months))
        return (each for each in found if each >= first)


def rule_of(text: str) -> Rule:
    """Return the rule that `to_json` wrote. Raises like the rule's class, and `ValueError` for other text."""
    value: Any = loads(text)
    match value:
        case {"cron": expression, "zone": zone}:
            return Cron(expression, zone)
        case {"every": dict()} if value["every"].keys() <= {each.name for each in fields(Every) if each.init}:
            since = value["every"].get("since")
            return Every(**value["every"] | {"since": since and date.fromisoformat(since)})
    raise ValueError(f"{short_repr(text)} is no rule of this version; give what Cron(...) or Every(...) writes.")


MOST_CAUGHT_UP = 1000
"""How many missed occurrences `catch_up="all"` runs; older ones are left out."""

GRACE = timedelta(minutes=1)
"""How late an occurrence may still be put with `catch_up="none"`: upkeep takes a moment too."""

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "after"]


def check_policies(catch_up: CatchUp, overlap: Overlap) -> None:
    """Raise `ValueError`, naming the value and the fix, unless both can be had together."""
    for name, value, known in (("catch_up", catch_up, get_args(CatchUp)), ("overlap", overlap, get_args(Overlap))):
        if value not in known:
            raise ValueError(f"{name}={short_repr(value)} is unknown: {did_you_mean(str(value), known)}")
    if catch_up == "all" and overlap == "skip":
        raise ValueError(
            'catch_up="all" with overlap="skip": what is caught up is over when the one before ends, so all but the '
            'first would be skipped; give overlap="after", or catch_up="last".'
        )


def next_to_put(
    rule: Rule, following: datetime | None, now: datetime, ended: datetime | None, catch_up: CatchUp, overlap: Overlap
) -> datetime | None:
    """Return the occurrence to put next, now that the one before it is over; None if the rule has no more.

    `following` is the first that was not put. `ended` is when the one before it ended, if it ran: with
    `overlap="skip"` what fell due until then is left out. Of the others that are over, `catch_up` says which are put.
    """
    if following is None or following > now:
        return following
    if overlap == "skip" and ended is not None and following <= ended:
        following = rule.after(min(ended, now))
        if following is None or following > now:
            return following
    missed = latest(rule, following, now, MOST_CAUGHT_UP if catch_up == "all" else 1)
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


def _first_after(
    instant: datetime, zone: ZoneInfo, local_times: Callable[[datetime], Iterator[datetime]]
) -> datetime | None:
    """Return the first instant after `instant` of local times, which `local_times` yields in order after a local time.

    Local times that were skipped come after later ones: so what was skipped lately is looked at again.
    """
    now = check_aware(instant, "instant").astimezone(UTC)
    offset, before = (each.astimezone(zone).utcoffset() for each in (now, max(now - _LOOK_BACK, EPOCH)))
    skipped = max((offset or timedelta()) - (before or timedelta()), timedelta())
    found: datetime | None = None
    for local in local_times(_local(now, zone) - skipped):
        if found is not None and local >= _local(found, zone):
            return found
        if local.year >= _LAST.year:
            return found
        other = local.replace(tzinfo=zone).astimezone(UTC)
        if other > now and (found is None or other < found):
            found = other
    return found


def _check_cron(expression: object) -> None:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ValueError("Cron(...) needs cronsim: pip install 'django-delayq[cron]'.") from error
    if not isinstance(expression, str):
        raise TypeError(f"expression={short_repr(expression)} is {type(expression).__name__}; write '0 9 * * 1-5'.")
    if len(expression.split()) != 5:
        raise ValueError(
            f"expression={short_repr(expression)} has {len(expression.split())} fields; write five, as in "
            "'0 9 * * 1-5': minute, hour, day of the month, month, day of the week."
        )
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "it never comes"
        raise ValueError(
            f"expression={short_repr(expression)} is no cron expression ({why}); write it like '0 9 * * 1-5'."
        ) from error


def _day_of(month: date, day: int) -> date:
    """Return a day of the month that begins with `month`: its last one if it is shorter, its first from the end."""
    length = (_months_after(month, 1) - month).days
    return month.replace(day=min(day, length) if day > 0 else max(length + 1 + day, 1))


def _plain(value: Any) -> Any:
    if isinstance(value, clock_time):
        return value.isoformat("auto" if value.second else "minutes")
    return str(value) if isinstance(value, ZoneInfo | date) else value
