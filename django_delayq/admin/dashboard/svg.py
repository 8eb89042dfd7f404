"""Draw charts as SVG in the page, without a script. Colours come from the style sheet (`.delayq-chart`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

BAR = 10
"""The width of a bar and its gap, in units of the drawing, which is stretched to the space that it has."""
HEIGHT = 100


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, the tooltip of its bar, and a class for the style sheet."""

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
