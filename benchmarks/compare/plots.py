"""Draw what was measured as SVG: a picture for each figure, which follows the dark mode of its reader."""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from statistics import median

from benchmarks.compare.contenders import CONTENDERS, Contender
from benchmarks.compare.report import COLUMNS, Column, Result, values

WIDTH, TOP, ROW, BOTTOM = 760, 56, 24, 34
FROM, TO = 250, 640
"""Where the axis begins and ends. Names stand before it, and each figure beside its dot."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #111827 } .end { text-anchor: end } .mid { text-anchor: middle }
.page { fill: #ffffff } .grid { stroke: #d1d5db } .ours { fill: #0c7c59; stroke: #0c7c59 }
.other { fill: #6b7280; stroke: #6b7280 }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .page { fill: #161b22 } .grid { stroke: #374151 } .ours { fill: #34d399; stroke: #34d399 }
.other { fill: #9ca3af; stroke: #9ca3af }
}"""

Measured = Sequence[tuple[Contender, list[float]]]


def write(directory: Path, results: Sequence[Result]) -> list[Path]:
    """Write the pictures into a directory, and return their paths. What was 0 or less is in the table alone."""
    written = []
    for column in COLUMNS:
        found = [(each, values(results, column, each)) for each in CONTENDERS]
        measured = [(each, figures) for each, figures in found if figures]
        if measured and all(figure > 0 for _, figures in measured for figure in figures):
            path = directory / f"{column.measure}-{column.figure}.svg"
            path.write_text(_picture(column, measured))
            written.append(path)
    return written


def _picture(column: Column, measured: Measured) -> str:
    """Return a dot for the median of each contender, on a line from its lowest to its highest round."""
    height = TOP + ROW * len(measured) + BOTTOM
    powers = _powers([figure for _, figures in measured for figure in figures])

    def x(figure: float) -> float:
        return FROM + (TO - FROM) * (log10(figure) - powers[0]) / (powers[-1] - powers[0])

    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<title>{escape(column.title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
            f'<text x="{WIDTH / 2}" y="30" class="mid" font-weight="600">{escape(column.title)}</text>',
            *(_grid_line(column, 10.0**power, x(10.0**power), height) for power in powers),
            *(_row(column, row, each, figures, x) for row, (each, figures) in enumerate(measured)),
            "</svg>\n",
        ]
    )


def _powers(figures: Sequence[float]) -> range:
    """Return the powers of ten, two at least, between which the logarithmic axis shows these figures."""
    first = floor(log10(min(figures)))
    return range(first, max(ceil(log10(max(figures))), first + 1) + 1)


def _grid_line(column: Column, figure: float, x: float, height: int) -> str:
    label = escape(column.shape.format(figure))
    line = f'<path class="grid" d="M{x:.0f} {TOP - 8}V{height - BOTTOM}"/>'
    return f'{line}<text x="{x:.0f}" y="{height - 14}" class="mid">{label}</text>'


def _row(column: Column, row: int, each: Contender, figures: list[float], x: Callable[[float], float]) -> str:
    y = TOP + ROW * row + 6
    kind = "ours" if each.name.startswith("delayq") else "other"
    lowest, middle, highest = (x(of(figures)) for of in (min, median, max))
    return "\n".join(
        [
            f'<text x="{FROM - 12}" y="{y + 4}" class="end">{escape(each.title)}</text>',
            f'<path class="{kind}" stroke-width="3" d="M{lowest:.1f} {y}H{highest:.1f}"/>',
            f'<circle class="{kind}" cx="{middle:.1f}" cy="{y}" r="5"/>',
            f'<text x="{highest + 12:.1f}" y="{y + 4}">{escape(column.shape.format(median(figures)))}</text>',
        ]
    )
