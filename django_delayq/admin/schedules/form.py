"""The form of a schedule: what is typed becomes a `NewSchedule`, and each error is told beside its field."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.formatting import visible
from django_delayq.admin.message.payload import Payload
from django_delayq.admin.schedules.occurrences import rule_in
from django_delayq.admin.schedules.page import CATCH_UP, OVERLAP
from django_delayq.api.handlers import get_handler, handlers_by_key
from django_delayq.api.schedules import new_schedule
from django_delayq.conf import Alias
from django_delayq.core.codec import decode_data, read
from django_delayq.core.errors import DataMismatch, DelayqError, UnknownKey
from django_delayq.core.human_time import Windows, windows_from_words, words_of_windows, zone_of
from django_delayq.core.message import Send
from django_delayq.core.occurrences import MOST_SCHEDULE_NAME
from django_delayq.core.recurrence import Every, NewSchedule, RRule, Rule, rule_from_words
from django_delayq.core.requests import Header
from django_delayq.core.rules import decode
from django_delayq.models import Schedule
from django_delayq.support.units import to_text
from django_delayq.support.validation import OWN
from django_delayq.translation import translated

_YEARS = range(1970, 9000)
_MOST = 2**31 - 1
_OF_WINDOW = ("zone", "calendar")
"""The fields that a window which was typed is read with."""
_NAMED = re.compile(r"(?:in )?(\w+)=")
_FORMAT = "%Y-%m-%dT%H:%M:%S"


class ScheduleForm(forms.Form):
    """A schedule as it is typed. Once it is valid, `wanted` is the schedule to write."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=MOST_SCHEDULE_NAME,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy("Each message has it in its id: name@2026-11-30T17:00:00Z. It stays as it is."),
    )
    key = forms.ChoiceField(label=gettext_lazy("Key"))
    payload = forms.CharField(
        label=gettext_lazy("Payload"),
        strip=False,
        initial="null",
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 6, "spellcheck": "false"}),
        help_text=gettext_lazy("JSON, as the handler is to receive it. It is checked against the handler's type."),
    )
    rule = forms.CharField(
        label=gettext_lazy("Rule"),
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "Words, such as: every 15 minutes; every day at 09:00; every 2 weeks on mon,thu at 09:00; every month on "
            "day -1 at 18:00; every month on business day 1 at 09:00. Or a cron expression: 0 9 * * 1-5. Or an RRULE: "
            "FREQ=MONTHLY;BYDAY=-1FR, which counts from the start below."
        ),
    )
    zone = forms.CharField(
        label=gettext_lazy("Time zone"),
        max_length=100,
        help_text=gettext_lazy("Of the rule, and of the start and the end below. Such as Europe/Rome."),
    )
    calendar = forms.ChoiceField(
        label=gettext_lazy("Calendar"),
        required=False,
        help_text=gettext_lazy("Nothing occurs on its holidays."),
    )
    start = forms.CharField(
        label=gettext_lazy("Start"),
        required=False,
        max_length=40,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}),
    )
    until = forms.CharField(
        label=gettext_lazy("Until"),
        required=False,
        max_length=40,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}),
    )
    count = forms.IntegerField(label=gettext_lazy("How many in all"), required=False, min_value=1, max_value=_MOST)
    window = forms.CharField(
        label=gettext_lazy("Window"),
        required=False,
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "Such as: mon-fri 09:00-18:00; sat 09:00-12:00. In the time zone and the calendar above. An occurrence at "
            "which it is closed is due when it opens. Empty: the handler's, if it has one."
        ),
    )
    spread = forms.CharField(
        label=gettext_lazy("Spread"),
        required=False,
        max_length=40,
        help_text=gettext_lazy("Such as 30m: each occurrence is due at a time of its own, up to so much later."),
    )
    catch_up = forms.ChoiceField(label=gettext_lazy("After an outage"), choices=list(CATCH_UP.items()), initial="last")
    overlap = forms.ChoiceField(
        label=gettext_lazy("If the one before still runs"), choices=list(OVERLAP.items()), initial="skip"
    )

    def __init__(self, posted: Any, alias: Alias, row: Schedule | None, payload: Payload | None) -> None:
        """Make the form for a new schedule, or for `row`. Without a `payload` that may be typed, the data stay."""
        super().__init__(posted, initial=_initial_of(row, payload))
        self.alias, self.row = alias, row
        self.wanted: NewSchedule | None = None
        handlers = {handler.key for handler in handlers_by_key(alias.name).values()}
        keys = {key for key in handlers if not key.startswith(OWN)} | ({row.key} if row else set())
        self.fields["key"].choices = [(key, visible(key)) for key in sorted(keys)]  # type: ignore[attr-defined]
        calendars = [(name, name) for name in sorted(alias.calendars)]
        self.fields["calendar"].choices = [("", _("none")), *calendars]  # type: ignore[attr-defined]
        if row is not None:
            del self.fields["name"]
            if row.window and not (self.initial.get("window") or self.initial.get("spread")):
                self.fields["window"].help_text = _("It can't be written in words. Empty: it stays.")
            if not self.initial["rule"]:
                self.fields["rule"].required = False
                self.fields["rule"].help_text = _("It can't be written in words. Empty: the rule and its zone stay.")
        if payload is None:
            del self.fields["payload"]
            if row is not None:  # another handler might show data that this user may not see
                del self.fields["key"]

    def clean(self) -> dict[str, Any]:
        """Make the schedule. An error is told beside the field that it names."""
        asked: dict[str, Any] = self.cleaned_data
        if self.errors:
            return asked
        try:
            self.wanted = self._wanted(asked)
        except (DelayqError, TypeError, ValueError, OverflowError) as error:
            self._tell(error)
        return asked

    def _wanted(self, asked: dict[str, Any]) -> NewSchedule:
        row = self.row
        start, until = (self._local(name) for name in ("start", "until"))
        rule = self._rule(asked, start)
        key = asked["key"] if row is None or "key" in asked else row.key
        wanted = new_schedule(
            self.alias,
            row.name if row else asked["name"],
            row.origin if row else Schedule.Origin.ADMIN,
            rule,
            Send(key, self._data(asked, key), window=self._windows(asked), spread=asked["spread"] or None),
            start=self._instant("start", start),
            until=self._instant("until", until),
            count=asked["count"],
            catch_up=asked["catch_up"],
            overlap=asked["overlap"],
        )
        if row is not None and not {"window", "spread", *(_OF_WINDOW if asked["window"] else ())} & {
            *self.changed_data
        }:
            wanted = replace(wanted, window=row.window)
        if row is not None and key == row.key:  # its queue, tags and so on stay, which are given in code alone
            version = wanted.header.version  # the data was written anew
            wanted = replace(wanted, header=replace(read(row.header, Header), version=version))
        return wanted

    def _rule(self, asked: dict[str, Any], start: datetime | None) -> Rule:
        if asked["rule"]:
            return rule_from_words(asked["rule"], asked["zone"], start=start, calendar=asked["calendar"] or None)
        if {"zone", "calendar"} & set(self.changed_data):
            raise ValueError(_("Write the rule again for another zone or calendar."))
        assert self.row is not None  # noqa: S101  - the rule is required otherwise
        rule, why_not = rule_in(self.row)
        if rule is None:
            raise ValueError(why_not)
        return rule

    def _windows(self, asked: dict[str, Any]) -> Windows | None:
        """Return the windows that were typed."""
        return (
            windows_from_words(asked["window"], asked["zone"], asked["calendar"] or None) if asked["window"] else None
        )

    def _data(self, asked: dict[str, Any], key: str) -> Any:
        handler = get_handler(self.alias.name, key)
        is_own = self.row is not None and key == self.row.key  # then the data is shown in the version that it has

        def read_data(body: bytes) -> Any:
            if handler is None:
                return decode_data(body)
            version = read(self.row.header, Header).version if self.row is not None and is_own else handler.version
            return handler.data_of(body, version)

        if "payload" in asked:
            return read_data(asked["payload"].encode())
        if self.row is None:
            return read_data(b"null")
        try:
            return read_data(self.row.data.encode())
        except DataMismatch as error:  # which may quote them
            raise ValueError(_("The payload, which you may not see, does not fit the handler any more.")) from error

    def _local(self, name: str) -> datetime | None:
        """Return the local time that was typed in a field."""
        text = self.cleaned_data[name].strip()
        if not text:
            return None
        try:
            local = datetime.fromisoformat(text)
        except ValueError:
            local = None
        if local is None or local.tzinfo is not None or local.year not in _YEARS:
            example = "2026-11-21 08:00"
            told = _("%(value)s is no date and time; write it like %(example)s.")
            raise ValueError(f"{name}={told % {'value': repr(text), 'example': example}}")
        return local

    def clean_zone(self) -> str:
        """Return the name of the zone, if it is one."""
        zone: str = self.cleaned_data["zone"]
        try:
            zone_of(zone)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        return zone

    def clean_window(self) -> str:
        """Return the words of the windows, if they are some."""
        words: str = self.cleaned_data["window"]
        try:
            if words:
                windows_from_words(words, "UTC", None)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        return words

    def _instant(self, name: str, local: datetime | None) -> datetime | None:
        """Return the instant of a local time in the zone of the form. One that was not changed stays to the ms."""
        if self.row is not None and not {name, "zone"} & set(self.changed_data):
            kept: datetime | None = getattr(self.row, f"{name}_at")
            return kept
        return None if local is None else local.replace(tzinfo=ZoneInfo(self.cleaned_data["zone"])).astimezone(UTC)

    def _tell(self, error: Exception) -> None:
        told = translated(error)
        named = _NAMED.match(told)
        field = named[1] if named else ""
        if isinstance(error, UnknownKey):
            field = "key"
        elif isinstance(error, DataMismatch) or field == "data":
            field = "payload"
        elif field == "until" and "start=" in told:
            field = "until"
        if field not in self.fields:
            field = "rule"
        self.add_error(field, told)


def _initial_of(row: Schedule | None, payload: Payload | None) -> dict[str, Any]:
    if row is None:
        return {"zone": timezone.get_default_timezone_name()}
    rule, _why_not = rule_in(row)
    zone = str(getattr(rule, "zone", None) or timezone.get_default_timezone_name())
    calendar = getattr(rule, "calendar", None)
    initial: dict[str, Any] = {
        "key": row.key,
        "zone": zone,
        "calendar": calendar if isinstance(calendar, str) else "",
        "count": row.most,
        "catch_up": row.catch_up,
        "overlap": row.overlap,
        **_window_as_typed(row, zone, calendar),
        **{name: _typed(getattr(row, f"{name}_at"), zone) for name in ("start", "until")},
    }
    if isinstance(rule, RRule) and row.start_at is None:
        initial["start"] = rule.start.strftime(_FORMAT)
    if payload is not None:
        initial["payload"] = payload.text
    return initial | {"rule": _words_of(rule, initial)}


def _window_as_typed(row: Schedule, zone: str, calendar: object) -> dict[str, str]:
    """Return the window and the spread of a schedule as they are typed; empty if they can't be."""
    if not row.window:
        return {}
    try:
        rule = decode(row.window)
    except ValueError:  # a zone that this machine lacks
        return {}
    words = words_of_windows(rule.windows)
    if words and windows_from_words(words, zone, calendar if isinstance(calendar, str) else None) != rule.windows:
        return {}
    return {"window": words, "spread": to_text(rule.spread_ms) if rule.spread_ms else ""}


def _typed(at: datetime | None, zone: str) -> str:
    return "" if at is None else at.astimezone(ZoneInfo(zone)).strftime(_FORMAT)


def _words_of(rule: Rule | None, initial: dict[str, Any]) -> str:
    """Return the words from which `rule_from_words` makes the rule; empty if there are none."""
    words = str(getattr(rule, "expression", None) or getattr(rule, "text", None) or "")
    if isinstance(rule, Every):
        units = [(name, getattr(rule, name)) for name in ("months", "weeks", "days", "hours", "minutes", "seconds")]
        words = " ".join(f"every {name[:-1] if count == 1 else f'{count} {name}'}" for name, count in units if count)
        on = rule.weekdays or (rule.day and f"day {rule.day}")
        on = on or (rule.business_day and f"business day {rule.business_day}")
        words += f" on {on}" if on else ""
        words += f" at {rule.time}" if rule.time else ""
    start = datetime.fromisoformat(initial["start"]) if initial["start"] else None
    try:
        again = rule_from_words(words, initial["zone"], start=start, calendar=initial["calendar"] or None)
    except (TypeError, ValueError):
        return ""
    return words if again == rule else ""
