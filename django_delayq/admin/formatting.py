"""Write numbers, lengths of time and moments for people."""

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format, number_format, time_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, pgettext

from django_delayq.core.lanes import split_lane
from django_delayq.models import MessageRow
from django_delayq.support.sanitize import lines
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import to_text

LEAST = 0.01
"""The lowest rate that is shown: a lower one is shown as less than this."""

NAMED = 10
"""The most names that a sentence lists."""


def number(value: float | None, *, capped: bool = False) -> str:
    """Return the number with thousands separators. `capped` adds a `+`, because there may be more."""
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


def visible(text: str) -> str:
    """Return text from outside with escapes for characters that hide text, or change the order in which it is shown."""
    return text if text.isprintable() else lines(text)


def queue_words(lane: str) -> str:
    """Return the queue of a lane, and the priority if it is another than 0."""
    queue, priority = split_lane(lane)
    told = {"queue": queue, "priority": priority}
    return _("%(queue)s, priority %(priority)d") % told if priority else queue


def visibly(row: MessageRow) -> MessageRow:
    """Return a copy of a row for display, with its names and errors changed by `visible`."""
    shown = copy(row)
    for name in ("message_id", "queue", "key", "tag", "trace_id", "worker", "error", "detail", "fingerprint"):
        text = vars(row).get(name)  # a list defers some of them, and not every table has all
        if text:
            setattr(shown, name, visible(text))
    return shown


def listed(names: Iterable[str]) -> str:
    """Join names with the comma of the page's language: Chinese has its own."""
    return pgettext("between names", ", ").join(names)


def some(names: Sequence[str]) -> str:
    """Return the first `NAMED` names, joined."""
    return listed(names[:NAMED]) + ("…" if len(names) > NAMED else "")


def instant(moment: datetime | None) -> str | SafeString:
    """Show a moment in the viewer's zone, to the minute. The title has it to the ms, in that zone and in UTC."""
    return "-" if moment is None else _time(moment, date_format(timezone.localtime(moment), "DATETIME_FORMAT"))


def exact(moment: datetime) -> SafeString:
    """Show a moment in the viewer's zone, to the second, with the zone. The title is that of `instant`."""
    local = timezone.localtime(moment)
    return _time(moment, f"{date_format(local, 'DATE_FORMAT')} {local:%H:%M:%S} {_zone(local)}")


def _time(moment: datetime, shown: str) -> SafeString:
    local, utc = timezone.localtime(moment), moment.astimezone(UTC)
    instants = f"{_to_ms(local)} {_zone(local)}", in_utc(moment)
    title = " = ".join(dict.fromkeys(instants))
    datetime_ = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return format_html('<time datetime="{}" title="{}">{}</time>', datetime_, title, shown)


def in_utc(moment: datetime) -> str:
    """Return the moment to the millisecond, in UTC."""
    return f"{_to_ms(moment.astimezone(UTC))} UTC"


def _to_ms(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def _zone(local: datetime) -> str:
    """Return the offset from UTC, such as UTC+08:00.

    Names of zones are not the same everywhere, and some are ambiguous.
    """
    offset = local.strftime("%z")
    sign = offset[0].replace("-", "\N{MINUS SIGN}")  # a line may break after a hyphen
    return "UTC" if offset == "+0000" else f"UTC{sign}{offset[1:3]}:{offset[3:5]}"


def between(start: datetime, end: datetime) -> str:
    """Return the time from one moment to the other in its two largest units, such as 1h30m."""
    return to_text(abs((end - start).total_seconds()) * 1000)


def now_utc() -> datetime:
    """Return this machine's time, aware whatever USE_TZ says.

    It is only for display and for filters, also those of a background job: moves go by the database's clock.
    """
    return datetime.now(UTC)
