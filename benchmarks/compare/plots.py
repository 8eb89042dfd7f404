"""Draw what was measured: a picture for each figure, with matplotlib (`pip install 'django-delayq[compare]'`)."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.compare.contenders import CONTENDERS
from benchmarks.compare.report import COLUMNS, Result, values

OURS, OTHERS = "#0c7c59", "#8d99ae"


def write(directory: Path, results: Sequence[Result]) -> list[Path]:
    """Write the pictures into a directory, and return their paths. Raises `ImportError` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for column in COLUMNS:
        bars = [(each, values(results, column, each)) for each in CONTENDERS]
        measured = [(each, median(found)) for each, found in reversed(bars) if found]
        if not measured:
            continue
        figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(measured) + 1.2), layout="constrained")
        drawn = axes.barh(
            [each.title for each, _ in measured],
            [value for _, value in measured],
            color=[OURS if each.name.startswith("delayq") else OTHERS for each, _ in measured],
        )
        axes.bar_label(drawn, [column.shape.format(value) for _, value in measured], padding=3)
        if column.is_ratio:
            axes.set_xscale("log")
        axes.margins(x=0.2)
        axes.set_title(column.title)
        path = directory / f"{column.measure}-{column.figure}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        written.append(path)
    return written
