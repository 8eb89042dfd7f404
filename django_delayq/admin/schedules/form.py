"""The form of a schedule: what is typed becomes a `NewSchedule`, and each error is told beside its field."""

from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.formatting import visible
from django_delayq.admin.message.payload import Payload, typed_json
from django_delayq.admin.schedules.occurrences import rule_in
from django_delayq.admin.schedules.page import CATCH_UP, OVERLAP
from django_delayq.admin.schedules.words import help_for_rules, local_time_of, rule_of_words, words_of_rule
from django_delayq.api.handlers import get_handler, handlers_by_key
from django_delayq.api.schedules import new_schedule
from django_delayq.conf import Alias
from django_delayq.core.codec import decode_data, read
from django_delayq.core.errors import DataMismatch, DelayqError, UnknownKey
from django_delayq.core.human_time import Windows, instant_of, windows_from_words, words_of_windows, zone_of
from django_delayq.core.message import Send
from django_delayq.core.occurrences import MOST_SCHEDULE_NAME
from django_delayq.core.recurrence import NewSchedule, RRule, Rule, zone_in
from django_delayq.core.requests import Header
from django_delayq.core.rules import decode
from django_delayq.models import Schedule
from django_delayq.support.units import to_ms, to_text
from django_delayq.support.validation import OWN, short_repr
from django_delayq.translation import translated

_MOST = 2**31 - 1
_OF_WINDOW = ("zone", "calendar")
"""The fields that a window which was typed is read with."""
_FORMAT = "%Y-%m-%dT%H:%M:%S"


class ScheduleForm(forms.Form):
    """A schedule as it is typed. Once it is valid, `wanted` is the schedule to write."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=MOST_SCHEDULE_NAME,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=gettext_lazy(
            "Each message has it in its id: name@2026-11-30T18:00:00[Europe/Rome]. It stays as it is."
        ),
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
        self.fields["rule"].help_text = help_for_rules()
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
        except forms.ValidationError as error:
            self.add_error(None, error)
        except (UnknownKey, DataMismatch) as error:
            field = "key" if isinstance(error, UnknownKey) else "payload"
            self.add_error(field if field in self.fields else None, translated(error))
        except (DelayqError, TypeError, ValueError, OverflowError) as error:  # what no field is checked for
            self.add_error(None, translated(error))
        return asked

    def _wanted(self, asked: dict[str, Any]) -> NewSchedule:
        row = self.row
        self._check_together(asked)
        rule = self._rule(asked, asked["start"])
        key = asked["key"] if row is None or "key" in asked else row.key
        wanted = new_schedule(
            self.alias,
            row.name if row else asked["name"],
            row.origin if row else Schedule.Origin.ADMIN,
            rule,
            Send(key, self._data(asked, key), window=self._windows(asked), spread=asked["spread"] or None),
            start=self._instant("start"),
            until=self._instant("until"),
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

    def _check_together(self, asked: dict[str, Any]) -> None:
        start, until = self._instant("start"), self._instant("until")
        if start is not None and until is not None and until < start:
            raise forms.ValidationError({"until": _("It is before the start.")})
        if asked["catch_up"] == "all" and asked["overlap"] == "skip":
            told = _(
                "All but the first would be left out, because “%(field)s” says: %(choice)s. Choose another of the two."
            )
            said = {"field": self.fields["overlap"].label, "choice": OVERLAP["skip"]}
            raise forms.ValidationError({"catch_up": told % said})

    def _rule(self, asked: dict[str, Any], start: datetime | None) -> Rule:
        if asked["rule"]:
            return rule_of_words(asked["rule"], asked["zone"], start, asked["calendar"] or None)
        if {"zone", "calendar"} & set(self.changed_data):
            raise forms.ValidationError({"rule": _("Write the rule again for another zone or calendar.")})
        assert self.row is not None  # noqa: S101  - the rule is required otherwise
        rule, why_not = rule_in(self.row)
        if rule is None:
            raise forms.ValidationError({"rule": why_not})
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
            told = _("The payload, which you may not see, does not fit the handler any more.")
            raise forms.ValidationError(told) from error

    def clean_name(self) -> str:
        """Return the name, if a schedule may have it."""
        name: str = self.cleaned_data["name"]
        if name.startswith(OWN):
            raise forms.ValidationError(_("Names that begin with %(own)s are for django-delayq itself.") % {"own": OWN})
        if not name.isprintable():
            raise forms.ValidationError(_("It has a character that can't be seen; leave it out."))
        return name

    def clean_payload(self) -> str:
        """Return the payload, if it is JSON: a handler's type would say something else of what is none."""
        return typed_json(self.cleaned_data["payload"])

    def clean_start(self) -> datetime | None:
        """Return the local time that was typed."""
        return self._local("start")

    def clean_until(self) -> datetime | None:
        """Return the local time that was typed."""
        return self._local("until")

    def _local(self, name: str) -> datetime | None:
        text = self.cleaned_data[name].strip()
        return local_time_of(text) if text else None

    def clean_zone(self) -> str:
        """Return the name of the zone, if it is one."""
        zone: str = self.cleaned_data["zone"]
        try:
            zone_of(zone)
        except ValueError as error:
            near = get_close_matches(zone, sorted(available_timezones()), n=1) or ["Europe/Rome"]
            told = _("%(zone)s is no time zone; write a name such as %(example)s.")
            raise forms.ValidationError(told % {"zone": short_repr(zone), "example": near[0]}) from error
        return zone

    def clean_window(self) -> str:
        """Return the words of the windows, if they are some."""
        words: str = self.cleaned_data["window"]
        parts = [part for part in map(str.strip, words.split(";")) if part]
        for part in parts or filter(None, [words]):
            try:
                windows_from_words(part, "UTC", None)
            except ValueError as error:
                told = _("%(window)s is no window; write it like %(example)s, and a whole day like %(whole)s.")
                said = {
                    "window": short_repr(part),
                    "example": "mon-fri 09:00-18:00",
                    "whole": "sat 00:00-24:00",
                }
                raise forms.ValidationError(told % said) from error
        return "; ".join(parts)

    def clean_spread(self) -> str:
        """Return the length of the spread, if it is one."""
        text: str = self.cleaned_data["spread"]
        try:
            if text:
                to_ms(text, "spread")
        except ValueError as error:
            told = _("%(length)s is no length of time up to 100 years; write it like 30m, 2h30m or 7d.")
            raise forms.ValidationError(told % {"length": short_repr(text)}) from error
        return text

    def _instant(self, name: str) -> datetime | None:
        """Return the instant of a local time in the zone of the form. One that was not changed stays to the ms."""
        if self.row is not None and not {name, "zone"} & set(self.changed_data):
            kept: datetime | None = getattr(self.row, f"{name}_at")
            return kept
        local: datetime | None = self.cleaned_data[name]
        return None if local is None else instant_of(local, self.cleaned_data["zone"])


def _initial_of(row: Schedule | None, payload: Payload | None) -> dict[str, Any]:
    if row is None:
        return {"zone": timezone.get_default_timezone_name()}
    rule, _why_not = rule_in(row)
    zone = zone_in(rule) or timezone.get_default_timezone_name()
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
    """Return the words from which `rule_of_words` makes the rule; empty if there are none."""
    words = words_of_rule(rule)
    start = datetime.fromisoformat(initial["start"]) if initial["start"] else None
    try:
        again = rule_of_words(words, initial["zone"], start, initial["calendar"] or None)
    except forms.ValidationError:
        return ""
    return words if again == rule else ""
