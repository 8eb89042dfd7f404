"""Turn the fields of a crontab of Celery into a rule."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django_delayq.core.recurrence import Cron, RRule, Rule
from django_delayq.support.validation import short_repr


class _Field(NamedTuple):
    """A field of a crontab: its column, its least number, how many there are, and the names that stand for them."""

    column: str
    least: int
    size: int
    names: str = ""


_WEEKDAYS, _MONTHS = "sun mon tue wed thu fri sat", "jan feb mar apr may jun jul aug sep oct nov dec"
_FIELDS = (
    _Field("minute", 0, 60),
    _Field("hour", 0, 24),
    _Field("day_of_month", 1, 31),
    _Field("month_of_year", 1, 12, _MONTHS),
    _Field("day_of_week", 0, 7, _WEEKDAYS),
)
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_START = datetime(2020, 1, 1)
"""The first local time of a rule of RFC 5545. It is always the same, so that a second import finds the same rule."""


def crontab_rule(crontab: Mapping[str, Any]) -> Rule:
    """Return the rule of a crontab of Celery, which is the columns of its row. Raises `ValueError` for a wrong field.

    Celery wants the day of the month and the weekday both, where a cron expression wants either, if neither begins with
    `*`. Then it is a rule of RFC 5545, which wants both too.
    """
    zone = crontab["timezone"] or "UTC"
    numbers, texts = zip(*(_read(field, crontab[field.column]) for field in _FIELDS), strict=True)
    if texts[2].startswith("*") or texts[4].startswith("*"):
        return Cron(" ".join(texts), zone=zone)
    minutes, hours, days, months, weekdays = (",".join(map(str, sorted(each))) for each in numbers)
    by_day = ",".join(_WEEKDAYS.split()[int(day)][:2].upper() for day in weekdays.split(","))
    by_month = "" if texts[3] == "*" else f"BYMONTH={months};"
    text = f"FREQ=MONTHLY;{by_month}BYMONTHDAY={days};BYDAY={by_day};BYHOUR={hours};BYMINUTE={minutes};BYSECOND=0"
    return RRule(text, start=_START, zone=zone)


def _read(field: _Field, text: str) -> tuple[set[int], str]:
    """Return the numbers of a field, and the field as a cron expression has it."""
    numbers: set[int] = set()
    parts = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip().lower())
        if match is None or (match[1] and match[3] and not match[2]) or match[3] == "0":
            raise _wrong(field, text)
        first, last = (None if each is None else _number(field, each, text) for each in match.group(1, 2))
        end = field.least + field.size
        found = list(range(field.least, end))
        if first is not None:
            last = first if last is None else last
            found = [*range(first, last + 1)] or [*range(first, end), *range(field.least, last + 1)]
        step = int(match[3] or 1)
        numbers.update(found[::step])
        if first is None or last is None:
            parts.append("*" if step == 1 else f"*/{step}")
        elif first > last:  # no cron expression goes round
            parts += map(str, found[::step])
        elif first == last:  # with a step, a cron expression would go on from it
            parts.append(str(first))
        else:
            parts.append(f"{first}-{last}" + ("" if step == 1 else f"/{step}"))
    return numbers, "*" if len(numbers) == field.size else ",".join(parts)


def _number(field: _Field, word: str, text: str) -> int:
    names = field.names.split()
    if word[:3] in names:
        return names.index(word[:3]) + field.least
    if not word.isdigit() or not field.least <= int(word) < field.least + field.size + (field.column == "day_of_week"):
        raise _wrong(field, text)
    return int(word) % 7 if field.column == "day_of_week" else int(word)  # its 7 is Sunday too


def _wrong(field: _Field, text: str) -> ValueError:
    return ValueError(
        f"{field.column}={short_repr(text)} is no field of a crontab; write numbers from {field.least} to "
        f"{field.least + field.size - 1}, as in '1,5', '1-5' or '*/5'."
    )
