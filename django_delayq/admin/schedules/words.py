"""Read rules and local times as a person types them. What is wrong is told in the words of the form."""

import re
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from django_delayq.core.recurrence import FREQUENCIES, Cron, Every, RRule, Rule
from django_delayq.support.validation import short_repr

_COUNT = r"(?: (?P<count>[1-9]\d*))?"
_AT = r" at (?P<time>(?:[01]?\d|2[0-3])(?::[0-5]\d){0,2})"
_DAY = "(?:mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?)"
_DAYS = rf"(?P<weekdays>weekday|{_DAY}(?:-{_DAY})?(?:, ?{_DAY}(?:-{_DAY})?)*)"
_NTH = (
    r"(?:the )?(?:(?P<end>first|last)|(?P<nth>[1-9]\d*)(?:st|nd|rd|th)(?P<back> to last)?)"
    r"(?P<business> (?:business|working))?(?: day)?"
)
FORMS = (
    (rf"every{_COUNT} (?P<unit>second|minute|hour)s?", "every 15 minutes"),
    (rf"every{_COUNT} (?P<unit>day)s?{_AT}", "every day at 18:30"),
    (rf"every {_DAYS}{_AT}", "every weekday at 9:00"),
    (rf"every{_COUNT} (?P<unit>week)s?(?: on {_DAYS})?{_AT}", "every 2 weeks on mon,thu at 9:00"),
    (rf"every{_COUNT} (?P<unit>month)s?(?: on {_NTH})?{_AT}", "every month on the last day at 18:00"),
    (rf"every {_NTH} of the month{_AT}", "every first working day of the month at 9:00"),
)
"""What is understood, each with an example. Without a unit it is each week, or each month."""

_YEARS = range(1970, 9000)
_CRON, _RRULE = "0 9 * * 1-5", "FREQ=MONTHLY;BYDAY=-1FR"


def help_for_rules() -> str:
    """Return what may be typed as a rule."""
    return _(
        "English words, such as: %(examples)s. Or a cron expression: %(cron)s. Or an RRULE: %(rrule)s, which counts "
        "from the start below."
    ) % {"examples": _examples(), "cron": _CRON, "rrule": _RRULE}


def rule_of_words(text: str, zone: str, start: datetime | None, calendar: str | None) -> Rule:
    """Return the rule that a person typed. An RRULE counts from the local time `start`.

    Raises `ValidationError` that names the field of the form.
    """
    text = " ".join(text.split())
    if text.upper().startswith(("RRULE:", "FREQ=")):
        return _rrule(text, zone, start, calendar)
    if text.lower().startswith("every"):
        return _every(text, zone, calendar)
    if len(text.split()) != 5:
        raise _not_understood(text)
    try:
        return Cron(text, zone=zone, calendar=calendar)
    except ValueError as error:
        told = _(
            "%(rule)s is no cron expression (%(why)s). Write minute, hour, day of the month, month, day of the week."
        )
        raise _refused(error, told, text) from error


def words_of_rule(rule: Rule | None) -> str:
    """Return the words that a person would type for a rule. Those of some rules are not understood."""
    if isinstance(rule, Cron):
        return rule.expression
    return rule.text if isinstance(rule, RRule) else str(rule or "").partition(" in ")[0]


def local_time_of(text: str) -> datetime:
    """Return the local time that a person typed. Raises `ValidationError`."""
    try:
        local = datetime.fromisoformat(text.strip())
    except ValueError:
        local = None
    if local is None or local.tzinfo is not None or local.year not in _YEARS:
        told = _("%(value)s is no date and time; write it like %(example)s.")
        raise ValidationError(told % {"value": short_repr(text), "example": "2026-11-21 08:00"})
    return local


def _every(text: str, zone: str, calendar: str | None) -> Every:
    match = _match(text)
    if match is None:
        day, at, time = text.partition(" at ")
        if _match(f"{day} at 9:00") is None:
            raise _not_understood(text)
        if at:
            raise ValidationError(
                {"rule": _("%(time)s is no time of day; write it like 9:00 or 18:30.") % {"time": short_repr(time)}}
            )
        raise ValidationError({"rule": _("Write the time of day too: %(rule)s") % {"rule": f"{day} at 9:00"}})
    given: dict[str, Any] = match.groupdict()
    unit = given.get("unit") or ("week" if given.get("weekdays") else "month")
    rule: dict[str, Any] = {f"{unit}s": int(given.get("count") or 1)}
    if hours := given.get("time"):
        rule |= {"time": hours if ":" in hours else f"{hours}:00", "zone": zone, "calendar": calendar}
    elif calendar:
        raise ValidationError({"calendar": _("Hours, minutes and seconds go on through holidays: choose none.")})
    if weekdays := given.get("weekdays"):
        rule["weekdays"] = "mon-fri" if weekdays == "weekday" else re.sub(r"([a-z]{3})[a-z]*", r"\1", weekdays)
    if given.get("end") or given.get("nth"):
        number = int(given["nth"] or 1)
        from_end = given["back"] or given["end"] == "last"
        rule["business_day" if given["business"] else "day"] = -number if from_end else number
    try:
        return Every(**rule)
    except ValueError as error:
        told = _("A number is too large: a month has 31 days, of which 23 are working days, and an interval 100 years.")
        raise ValidationError({"rule": told}) from error


def _match(text: str) -> re.Match[str] | None:
    return next((found for form, _example in FORMS if (found := re.fullmatch(form, text.lower(), re.ASCII))), None)


def _rrule(text: str, zone: str, start: datetime | None, calendar: str | None) -> RRule:
    if start is None:
        raise ValidationError({"start": _("An RRULE counts from the start; fill in the first time.")})
    frequency = re.search(r"FREQ=(\w+)", text.upper())
    if frequency and frequency[1] not in FREQUENCIES:
        told = _("An RRULE has one of %(known)s. For hours, write it like: %(example)s")
        said = {"known": ", ".join(f"FREQ={name}" for name in FREQUENCIES), "example": "every 2 hours"}
        raise ValidationError({"rule": told % said})
    if "DTSTART" in text.upper():
        raise ValidationError({"rule": _("Leave DTSTART out: the RRULE counts from the start below.")})
    try:
        return RRule(text, start=start, zone=zone, calendar=calendar)
    except ValueError as error:
        told = _("%(rule)s is no RRULE (%(why)s). Write it like FREQ=WEEKLY;BYDAY=MO,TH, with UNTIL as a local time.")
        raise _refused(error, told, text) from error


def _refused(error: ValueError, told: str, text: str) -> ValidationError:
    """Return the error of a rule that a library reads, with what that says."""
    if isinstance(error.__cause__, ImportError):
        told = _("Cron expressions and RRULEs need pip install '%(extra)s' on the server; write words instead.")
    said = {"rule": short_repr(text), "why": error.__cause__, "extra": "django-delayq[recurring]"}
    return ValidationError({"rule": told % said})


def _not_understood(text: str) -> ValidationError:
    told = _("%(rule)s is not understood. Write it like one of these: %(examples)s.")
    examples = f"{_examples()}; {_CRON}; {_RRULE}"
    return ValidationError({"rule": told % {"rule": short_repr(text), "examples": examples}})


def _examples() -> str:
    return "; ".join(example for _form, example in FORMS)
