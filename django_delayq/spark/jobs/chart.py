"""A forecast as a picture: an SVG that any browser opens, with a bar for each hour."""

from collections.abc import Mapping
from html import escape

from django_delayq.message import from_ms

_WIDTH, _HEIGHT, _FOOT = 960, 240, 24
_HOUR_MS = 3_600_000


def svg(hours: Mapping[int, int], title: str) -> str:
    """Counts by the hour (its begin in epoch ms), those without any too."""
    first, last = (min(hours), max(hours)) if hours else (0, 0)
    number = (last - first) // _HOUR_MS + 1
    width = _WIDTH / number
    highest = max(hours.values(), default=1)
    bars = []
    for hour, count in hours.items():
        height = max(_HEIGHT * count / highest, 1)
        x = (hour - first) // _HOUR_MS * width
        told = f"{from_ms(hour):%Y-%m-%d %H:%M} UTC: {count}"
        bars.append(
            f'<rect x="{x:.2f}" y="{_HEIGHT - height:.2f}" width="{max(width * 0.9, 0.5):.2f}" height="{height:.2f}">'
            f"<title>{told}</title></rect>"
        )
    ends = f"{from_ms(first):%Y-%m-%d %H:%M}", f"{from_ms(last + _HOUR_MS):%Y-%m-%d %H:%M} UTC"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title><g fill="#417690">{"".join(bars)}</g>'
        f'<text x="0" y="{_HEIGHT + 16}">{ends[0]}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{ends[1]}</text>'
        f'<text x="{_WIDTH}" y="12" text-anchor="end">at most {highest} an hour</text></svg>\n'
    )
