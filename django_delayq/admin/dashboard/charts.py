"""Draw the charts of the dashboard as SVG, without a script. The tooltip of each bar has its number.

Beside each chart is a table: the forecast's has the same numbers, the others have figures of the whole span of time.
Colours come from the style sheet (`.delayq-chart`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_delayq.admin.dashboard.sections import drain_of, due_of
from django_delayq.admin.formatting import length, number, time_of_day
from django_delayq.monitor import Hour, Status, Throughput
from django_delayq.support.timestamps import HOUR_MS

BAR = 10
"""The width of a bar and its gap, in units of the drawing, which is stretched to the space that it has."""
HEIGHT = 100


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of a chart, with the tooltip of its bar (`title`) and a CSS class (`kind`)."""

    value: float
    title: str
    kind: str = ""


def bars(all_bars: Sequence[Bar], label: str) -> SafeString:
    """Draw a bar for each value. A screen reader reads out `label`."""
    highest = max((bar.value for bar in all_bars), default=0) or 1
    drawn = format_html_join(
        "",
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        (_rectangle(number, bar, highest) for number, bar in enumerate(all_bars) if bar.value > 0),
    )
    return format_html(
        '<svg class="delayq-chart" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>',
        label,
        len(all_bars) * BAR,
        HEIGHT,
        drawn,
    )


def _rectangle(number: int, bar: Bar, highest: float) -> tuple[object, ...]:
    height = max(round(HEIGHT * bar.value / highest), 1)
    return bar.kind, number * BAR + 1, HEIGHT - height, BAR - 2, height, bar.title


def throughput(span: Throughput | None, label: str) -> SafeString | None:
    """Draw how many messages finished in each part of a span, oldest first."""
    return None if span is None else _parts(span, span.parts, label, _("%(ago)s ago: %(number)s finished"), "")


def failures(span: Throughput | None, label: str) -> SafeString | None:
    """Draw how many attempts failed in each part of a span, oldest first; None if none did."""
    if span is None or not any(span.failed_parts):
        return None
    return _parts(span, span.failed_parts, label, _("%(ago)s ago: %(number)s failed"), "delayq-over")


def _parts(span: Throughput, parts: Sequence[int], label: str, title: str, kind: str) -> SafeString:
    all_ago_ms = range(len(parts) * span.part_ms, 0, -span.part_ms)
    drawn = [
        Bar(part, title % {"ago": length(ago_ms), "number": number(part)}, kind)
        for ago_ms, part in zip(all_ago_ms, parts, strict=True)
    ]
    top = _("%(number)s at most") % {"number": number(max(parts, default=0))}
    return format_html('<p class="delayq-axis" aria-hidden="true"><span>{}</span></p>{}', top, bars(drawn, label))


def forecast(seen: Status) -> SafeString | None:
    """Draw how many messages fall due in each of the next hours."""
    if not seen.forecast:
        return None
    return bars([_hour(hour) for hour in seen.forecast], _("Messages that fall due, by the hour"))


def forecast_numbers(seen: Status) -> list[str]:
    """Return what stands over each bar of `forecast`: how many messages fall due."""
    return [due_of(hour) if hour.due else "" for hour in seen.forecast]


def forecast_axis(seen: Status) -> list[str]:
    """Return the times at which every third bar of `forecast` begins."""
    return [time_of_day(hour.starts_ms) for hour in seen.forecast[::3]]


def _hour(hour: Hour) -> Bar:
    told = {"hour": time_of_day(hour.starts_ms), "number": due_of(hour)}
    if hour.drain.ms is None:
        return Bar(hour.due, _("from %(hour)s: %(number)s due") % told, "delayq-over" if hour.drain.unserved else "")
    title = _("from %(hour)s: %(number)s due, %(time)s to drain") % {**told, "time": drain_of(hour)}
    return Bar(hour.due, title, "delayq-over" if hour.drain.ms > HOUR_MS else "")
