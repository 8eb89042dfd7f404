"""Draw a forecast with a bar for each hour, as an SVG that any browser opens, or as a PNG to be mailed."""

from collections.abc import Callable, Iterator, Mapping
from html import escape
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from django_delayq.support.timestamps import HOUR_MS, from_ms

_WIDTH, _HEIGHT, _FOOT = 960, 240, 24
_COLOR = "#417690"
_FONT_SIZE = 12


class _Bar(NamedTuple):
    hour: int
    number: int
    x: float
    width: float
    height: float


def an_hour(number: int) -> str:
    """Return a number of messages as a rate in words."""
    return f"{number} an hour"


def svg(hours: Mapping[int, int], title: str, words: Callable[[int], str] = an_hour) -> str:
    """Draw a bar for each hour of `hours`, which has numbers by the start of the hour in epoch ms.

    Hours without a number stay empty. A bar's tooltip is its number in `words`.
    """
    bars = [
        f'<rect x="{bar.x:.2f}" y="{_HEIGHT - bar.height:.2f}" width="{bar.width:.2f}" height="{bar.height:.2f}">'
        f"<title>{_at(bar.hour)} UTC: {words(bar.number)}</title></rect>"
        for bar in _bars(hours)
    ]
    start, end = _ends(hours)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img" '
        f'font-family="sans-serif" font-size="{_FONT_SIZE}"><title>{escape(title)}</title>'
        f'<g fill="{_COLOR}">{"".join(bars)}</g>'
        f'<text x="0" y="{_HEIGHT + 16}">{start}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{end}</text>'
        f'<text x="{_WIDTH}" y="12" text-anchor="end">at most {words(_highest(hours))}</text></svg>\n'
    )


def png(hours: Mapping[int, int]) -> bytes:
    """Draw the bars of `svg` as a PNG."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT + _FOOT), "white")
    draw = ImageDraw.Draw(image)
    for bar in _bars(hours):
        draw.rectangle((bar.x, _HEIGHT - bar.height, bar.x + max(bar.width - 1, 0), _HEIGHT - 1), fill=_COLOR)
    start, end = _ends(hours)
    font = ImageFont.load_default(_FONT_SIZE)
    for text, place, anchor in (
        (start, (0, _HEIGHT + 4), "la"),
        (end, (_WIDTH, _HEIGHT + 4), "ra"),
        (f"at most {an_hour(_highest(hours))}", (_WIDTH, 2), "ra"),
    ):
        draw.text(place, text, fill="black", font=font, anchor=anchor)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _bars(hours: Mapping[int, int]) -> Iterator[_Bar]:
    first, last = _span(hours)
    width = _WIDTH / ((last - first) // HOUR_MS + 1)
    highest = max(_highest(hours), 1)
    for hour, count in hours.items():
        x = (hour - first) // HOUR_MS * width
        yield _Bar(hour, count, x, max(width * 0.9, 0.5), max(_HEIGHT * count / highest, 1 if count else 0))


def _highest(hours: Mapping[int, int]) -> int:
    return max(hours.values(), default=0)


def _ends(hours: Mapping[int, int]) -> tuple[str, str]:
    """Return the times where the picture begins and ends."""
    first, last = _span(hours)
    return _at(first), f"{_at(last + HOUR_MS)} UTC"


def _span(hours: Mapping[int, int]) -> tuple[int, int]:
    return (min(hours), max(hours)) if hours else (0, 0)


def _at(ms: int) -> str:
    return f"{from_ms(ms):%Y-%m-%d %H:%M}"
