"""Write numbers, lengths of time and moments for people."""

from collections.abc import Iterable, Sequence

from django.utils import timezone
from django.utils.formats import number_format, time_format
from django.utils.safestring import SafeString
from django.utils.translation import pgettext

from django_delayq.admin.lists.columns import instant
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text

LEAST = 0.01
"""The lowest rate that is shown: a lower one is shown as less than this."""

NAMED = 10
"""The most names that a sentence lists."""


def number(value: float | None, *, capped: bool = False) -> str:
    """Return the number with separators of thousands. `capped` adds a `+`, because there may be more."""
    if value is None:
        return "–"
    if 0 < value < LEAST:
        return f"< {number_format(LEAST, 2)}"
    shown = number_format(value, 0 if value == int(value) else 2, use_l10n=True, force_grouping=True)
    return f"{shown}{'+' if capped else ''}"


def length(milliseconds: int | None) -> str:
    """Return the length of time in its two largest units, such as 1h30m."""
    return "–" if milliseconds is None else to_text(milliseconds)


def moment(milliseconds: int | None) -> str | SafeString:
    """Return the moment in the viewer's zone, to the minute."""
    try:
        return "–" if milliseconds is None else instant(from_ms(milliseconds))
    except (OverflowError, ValueError):  # someone else wrote it
        return str(milliseconds)


def time_of_day(milliseconds: int) -> str:
    """Return the time of day in the viewer's zone, to the minute."""
    return time_format(timezone.localtime(from_ms(milliseconds)), "TIME_FORMAT")


def listed(names: Iterable[str]) -> str:
    """Join the names by the comma of the page's language: Chinese has its own."""
    return pgettext("between names", ", ").join(names)


def some(names: Sequence[str]) -> str:
    """Return the first `NAMED` names, joined."""
    return listed(names[:NAMED]) + ("…" if len(names) > NAMED else "")
