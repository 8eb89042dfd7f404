"""Write the rule that gave a message its due time as text, and read and apply it again. Pure: no Django, no I/O.

The text is JSON. It names zones and calendars, and has the dates of a calendar that is a list of dates. A calendar that
is a function, or an object without a name, can't be written: a rule with one has no text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time as clock_time
from zoneinfo import ZoneInfo

from django_delayq.core import codec
from django_delayq.core.codec import Instant, Natural
from django_delayq.core.human_time import (
    At,
    Calendar,
    Window,
    check_dates,
    check_zone,
    due_in_window_ms,
    instant_of,
    steps,
)
from django_delayq.support.timestamps import due_time_ms, from_ms
from django_delayq.support.translatable import text as _
from django_delayq.support.units import to_text
from django_delayq.support.validation import short_repr


@dataclass(frozen=True, slots=True)
class LocalTime:
    """What the clocks of a zone show at an occurrence of a schedule."""

    time: datetime
    zone: str

    def resolve(self, _now: datetime) -> datetime:
        """Return the instant at which they do, by the time-zone database of this process. Raises like `instant_of`."""
        return instant_of(self.time, self.zone)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a due time was found from: a local time, windows, or both.

    `from_ms` is the instant from which an `At` was found. Without `at` it is the first at which the message could be
    due.
    """

    from_ms: int = 0
    at: At | LocalTime | None = None
    windows: tuple[Window, ...] = ()
    spread_ms: int = 0

    @property
    def asks_calendar(self) -> bool:
        """Return whether it has a calendar by name, which may be a function of the site."""
        own = [self.at.calendar] if isinstance(self.at, At) else []
        return any(isinstance(calendar, str) for calendar in (*own, *(each.calendar for each in self.windows)))

    def due_ms(self, id: str) -> int:
        """Return when a message is due by this rule, in epoch ms, as the zones and calendars are now.

        Raises whatever a calendar of the site raises, and `ValueError` for one that is not there, or always closed.
        """
        return due_in_window_ms(self._first_ms(), self.windows or None, self.spread_ms, id)

    def steps(self, id: str) -> Iterator[str]:
        """Yield the steps to the due time in words, a line each. Raises like `due_ms`."""
        first_ms = self._first_ms()
        if isinstance(self.at, At):
            yield from steps(self.at, from_ms(self.from_ms), _("asked for"))
        if self.windows:
            first = from_ms(first_ms)
            yield from steps(
                min(self.windows, key=lambda each: each.resolve(first)), first, _("in the window from here on")
            )
        if self.spread_ms:
            opens_ms = due_in_window_ms(first_ms, self.windows or None, 0, id)
            later = to_text(self.due_ms(id) - opens_ms)
            yield _("spread over %(length)s: %(later)s later", length=to_text(self.spread_ms), later=later)

    def _first_ms(self) -> int:
        return self.from_ms if self.at is None else due_time_ms(self.at.resolve(from_ms(self.from_ms)))


@dataclass(frozen=True, slots=True)
class _At:
    time: str
    zone: str
    months: Natural = 0
    days: Natural = 0
    business_days: Natural = 0
    calendar: str | list[date] | None = None


@dataclass(frozen=True, slots=True)
class _LocalTime:
    time: str
    zone: str


@dataclass(frozen=True, slots=True)
class _Window:
    weekdays: str
    start: str
    end: str
    zone: str
    calendar: str | list[date] | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    from_ms: Instant
    at: _At | None = None
    local: _LocalTime | None = None
    windows: list[_Window] = field(default_factory=list)
    spread_ms: Natural = 0


class _NoText(Exception):
    """A part of the rule can't be written."""


def in_words(text: str, id: str, *, is_due_by_it: bool) -> list[str]:
    """Return a rule that was kept in words, a line each, for people. It never raises.

    `is_due_by_it` says whether its message still has the due time that it gave.
    """
    try:
        rule = decode(text)
        found = list(rule.steps(id))
    except Exception as error:  # noqa: BLE001 - a calendar is the site's code
        return [_("it can't be said: %(error)s", error=error)]
    if is_due_by_it or not found:  # of an occurrence its schedule says the rest
        return found
    other = _("the message is due at another time than it gave")
    return [_("%(other)s; its window holds for retries and snoozes", other=other) if rule.windows else other, *found]


def encode(rule: Rule) -> str | None:
    """Return the text of a rule; None if a calendar or a zone of it has no name."""
    at = rule.at
    try:
        written = _Rule(
            rule.from_ms,
            _At(_text(at.time), _name(at.zone), at.months, at.days, at.business_days, _calendar(at.calendar))
            if isinstance(at, At)
            else None,
            _LocalTime(at.time.isoformat(), at.zone) if isinstance(at, LocalTime) else None,
            [
                _Window(each.weekdays, _text(each.start), _text(each.end), _name(each.zone), _calendar(each.calendar))
                for each in rule.windows
            ],
            rule.spread_ms,
        )
    except _NoText:
        return None
    return codec.dumps(written).decode()


def decode(text: str) -> Rule:
    """Return the rule of a text. Raises `ValueError`, also if a zone of it is not known here."""
    try:
        written = codec.read(text, _Rule)
        return Rule(
            written.from_ms,
            _read_at(written),
            tuple(
                Window(each.weekdays, each.start, each.end, zone=each.zone, calendar=_read_calendar(each.calendar))
                for each in written.windows
            ),
            written.spread_ms,
        )
    except (TypeError, ValueError) as error:
        told = _("the rule %(rule)s can't be read: %(error)s", rule=short_repr(text), error=error)
        raise ValueError(told) from error


def zones(rule: Rule) -> frozenset[str]:
    """Return the names of the zones of a rule that was read."""
    own = () if rule.at is None else (str(rule.at.zone),)
    return frozenset((*own, *(str(each.zone) for each in rule.windows)))


def like_zone(zone: str) -> str:
    """Return a pattern for LIKE that matches each text of a rule with the zone, and few others."""
    return f'%"zone":"{zone}"%'


def is_due_by(rule_due_ms: int | None, due_ms: int, sent_ms: int) -> bool:
    """Return whether a message has the due time that its rule gave: it was not rescheduled, retried or snoozed since.

    Where that was past, the message was due when it was sent.
    """
    return rule_due_ms is not None and due_ms == max(rule_due_ms, sent_ms)


def _read_at(written: _Rule) -> At | LocalTime | None:
    at, local = written.at, written.local
    if local is not None:
        return LocalTime(datetime.fromisoformat(local.time), check_zone(local.zone))
    if at is None:
        return None
    return At(
        time=at.time,
        zone=at.zone,
        months=at.months,
        days=at.days,
        business_days=at.business_days,
        calendar=_read_calendar(at.calendar),
    )


def _text(at: str | clock_time) -> str:
    return at if isinstance(at, str) else at.isoformat()


def _name(zone: str | ZoneInfo) -> str:
    name = zone if isinstance(zone, str) else zone.key
    if name is None:  # it was read from a file
        raise _NoText
    return name


def _calendar(calendar: str | Calendar | None) -> str | list[date] | None:
    if calendar is None or isinstance(calendar, str):
        return calendar
    if not isinstance(calendar, list | tuple | set | frozenset):
        raise _NoText
    check_dates(calendar, "calendar")
    return sorted(calendar)


def _read_calendar(calendar: str | list[date] | None) -> str | Calendar | None:
    return frozenset(calendar) if isinstance(calendar, list) else calendar
