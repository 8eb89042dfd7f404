"""Numbers, lengths of time and moments as a person reads them on a page."""

from collections.abc import Iterable, Sequence

from django.utils import timezone
from django.utils.formats import number_format, time_format
from django.utils.safestring import SafeString
from django.utils.translation import pgettext

from django_delayq.admin.columns import instant
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text

LEAST = 0.01
"""A rate that is lower is only told as such."""

NAMED = 10
"""So many names are listed in a sentence."""


def number(value: float | None, *, capped: bool = False, about: bool = False) -> str:
    """With its thousands apart; `capped`: there may be more."""
    if value is None:
        return "–"
    if 0 < value < LEAST:
        return f"< {number_format(LEAST, 2)}"
    shown = number_format(value, 0 if value == int(value) else 2, use_l10n=True, force_grouping=True)
    return f"{'≈ ' if about else ''}{shown}{'+' if capped else ''}"


def length(milliseconds: int | None) -> str:
    """The two largest units: 1h30m."""
    return "–" if milliseconds is None else to_text(milliseconds)


def moment(milliseconds: int | None) -> str | SafeString:
    """In the viewer's zone."""
    try:
        return "–" if milliseconds is None else instant(from_ms(milliseconds))
    except (OverflowError, ValueError):  # someone else wrote it
        return str(milliseconds)


def time_of_day(milliseconds: int) -> str:
    """In the viewer's zone, to the minute."""
    return time_format(timezone.localtime(from_ms(milliseconds)), "TIME_FORMAT")


def listed(names: Iterable[str]) -> str:
    """One after another, as the language of the page does it: Chinese has a comma of its own for that."""
    return pgettext("between names", ", ").join(names)


def some(names: Sequence[str]) -> str:
    """The first `NAMED`, listed."""
    return listed(names[:NAMED]) + ("…" if len(names) > NAMED else "")
