"""Write what was measured as tables in Markdown. Each figure is the median of the rounds, as a ratio to ours."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.compare.contenders import BY_NAME, CONTENDERS, Contender

RESULTS, TABLE = "results.jsonl", "table.md"


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one measure of one contender in one round, or why there are none."""

    round: str
    measure: str
    name: str
    figures: dict[str, float] = field(default_factory=dict)
    error: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the table: a ratio to ours, unless `is_ratio` is False, and the figure itself."""

    measure: str
    figure: str
    title: str
    shape: str
    is_ratio: bool = True


COLUMNS = (
    Column("send", "per_s", "sends one at a time", "{:,.0f}/s"),
    Column("bulk", "per_s", "sends in bulk", "{:,.0f}/s"),
    Column("drain", "per_s", "drain", "{:,.0f}/s"),
    Column("lateness", "p50_ms", "lateness p50", "{:,.1f} ms"),
    Column("lateness", "p99_ms", "lateness p99", "{:,.1f} ms"),
    Column("lateness", "early", "early", "{:,.0f}", is_ratio=False),
    Column("memory", "server_bytes", "server, a waiting message", "{:,.0f} bytes"),
    Column("memory", "worker_mib", "worker, all that wait", "{:+z,.1f} MiB", is_ratio=False),
    Column("kill", "lost", "SIGKILL: not run again", "{:,.0f}", is_ratio=False),
    Column("kill", "doubled", "ended twice", "{:,.0f}", is_ratio=False),
    Column("kill", "again_s", "all had ended after", "{:,.1f} s", is_ratio=False),
)


TABLES = (("send", "bulk", "drain"), ("lateness", "memory"), ("kill",))
"""The measures of each table: all in one would be too wide for a page."""


def append(directory: Path, result: Result) -> None:
    """Add a result to those of this directory."""
    with (directory / RESULTS).open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(directory: Path) -> list[Result]:
    """Return all results of a directory."""
    path = directory / RESULTS
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def values(results: Sequence[Result], column: Column, contender: Contender) -> list[float]:
    """Return a figure of a contender, for each round that has it."""
    return [
        result.figures[column.figure]
        for result in results
        if (result.name, result.measure) == (contender.name, column.measure) and column.figure in result.figures
    ]


def ratio(results: Sequence[Result], column: Column, contender: Contender) -> float | None:
    """Return the median of the ratios to ours, each within one round, or None if there is none."""
    by_round = {result.round: result for result in results if _is_of(result, column, contender.beside)}
    ratios = [
        result.figures[column.figure] / by_round[result.round].figures[column.figure]
        for result in results
        if _is_of(result, column, contender.name)
        and result.round in by_round
        and by_round[result.round].figures[column.figure]
    ]
    return median(ratios) if ratios else None


def text(results: Sequence[Result]) -> str:
    """Return the tables in Markdown, the contenders on Redis first, with what could not be measured below them."""
    shown = [contender for contender in CONTENDERS if any(result.name == contender.name for result in results)]
    tables = [_table(results, measures, shown) for measures in TABLES]
    return "\n".join([*filter(None, tables), *_notes(results, shown)]) + "\n"


def write(directory: Path) -> str:
    """Write the tables of all results of a directory into it, and return them."""
    written = text(read(directory))
    (directory / TABLE).write_text(written)
    return written


def _table(results: Sequence[Result], measures: Sequence[str], shown: Sequence[Contender]) -> str:
    """Return the table of these measures, or an empty string if none of them was taken."""
    asked = [column for column in COLUMNS if column.measure in measures]
    columns = [column for column in asked if any(values(results, column, contender) for contender in shown)]
    if not columns:
        return ""
    lines = [
        "| | on | " + " | ".join(column.title for column in columns) + " |",
        "|" + "---|" * (len(columns) + 2),
    ]
    for contender in shown:
        cells = " | ".join(_cell(results, column, contender) for column in columns)
        lines.append(f"| {contender.title} | {contender.on} | {cells} |")
    return "\n".join(lines) + "\n"


def _is_of(result: Result, column: Column, name: str) -> bool:
    return (result.name, result.measure) == (name, column.measure) and column.figure in result.figures


def _cell(results: Sequence[Result], column: Column, contender: Contender) -> str:
    """Return the median, and how far the rounds are from each other: by half in percent, or as lowest and highest."""
    found = values(results, column, contender)
    if not found:
        return "–"
    lowest, measured, highest = (column.shape.format(of(found)) for of in (min, median, max))
    if not column.is_ratio:
        return measured if lowest == highest else f"{measured} ({lowest} to {highest})"
    middle = median(found)  # 0 where all ended in the millisecond in which the first one did
    if middle and (half := round(50 * (max(found) - min(found)) / middle)):
        measured += f" ±{half} %"
    times = ratio(results, column, contender)
    return measured if times is None else f"{times:.2g} ({measured})" if times < 100 else f"{times:,.0f} ({measured})"


def _notes(results: Sequence[Result], shown: Sequence[Contender]) -> list[str]:
    """Return a line for each contender: its version, its setting, and what failed."""
    lines = []
    for contender in shown:
        own = [result for result in results if result.name == contender.name]
        version = next((result.version for result in own if result.version), "")
        errors = sorted({f"{result.measure}: {result.error}" for result in own if result.error})
        failed = "".join(f" **Not measured**, {error}." for error in errors)
        beside = "" if contender.beside == contender.name else f" Ratios to {BY_NAME[contender.beside].title}."
        lines.append(f"- {' '.join(filter(None, [contender.title, version]))}: {contender.setting}.{beside}{failed}")
    return lines
