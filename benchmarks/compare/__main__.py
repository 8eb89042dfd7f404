"""`python -m benchmarks.compare`: run contenders and measures, and write tables and pictures into a directory."""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.compare import plots, report
from benchmarks.compare.contenders import BY_NAME
from benchmarks.compare.install import ROOT, NotInstalledError, driver, versions
from benchmarks.compare.measures import MEASURES, Sizes
from benchmarks.compare.report import Result
from benchmarks.compare.stage import FailedError, Stage, prepared, servers


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the tables. Return the exit code: 1 if nothing could be measured."""
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    contenders = [BY_NAME[name] for name in options.only]
    run = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    with servers() as private:
        ready: dict[str, tuple[Callable[[], Stage], str]] = {}
        for contender in contenders:
            try:
                fresh = prepared(private, contender, driver(contender.name))
                ready[contender.name] = (fresh, versions(contender.name))
            except (NotInstalledError, FailedError) as error:
                _tell(options.out, Result(run, "install", contender.name, error=str(error)))
        for measure in options.measures:
            for number in range(options.rounds):
                for name, (fresh, version) in ready.items():
                    figures, failure = _measured(measure, fresh, options.scale)
                    _tell(options.out, Result(f"{run} {number}", measure, name, figures, failure, version))
    sys.stdout.write(report.write(options.out))
    plots.write(options.out, report.read(options.out))
    return 0 if any(result.figures for result in report.read(options.out)) else 1


def _measured(measure: str, fresh: Callable[[], Stage], scale: float) -> tuple[dict[str, float], str]:
    """Return the figures of a measure, or none and why."""
    try:
        return MEASURES[measure](fresh, Sizes().scaled(scale)), ""
    except (FailedError, TimeoutError) as error:
        return {}, str(error)


def _tell(directory: Path, result: Result) -> None:
    report.append(directory, result)
    told = result.error or ", ".join(f"{name} {value:,.5g}" for name, value in result.figures.items())
    sys.stderr.write(f"{result.measure} {result.name}: {told}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument(
        *("-o", "--out"),
        type=Path,
        default=ROOT / "var" / "compare" / "out",
        help="the directory for results.jsonl, table.md and the pictures; what it has of earlier runs counts too",
    )
    parser.add_argument("--scale", type=float, default=1, help="0.1 makes everything ten times as small")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns")
    parser.add_argument("--only", nargs="+", choices=BY_NAME, default=list(BY_NAME), metavar="CONTENDER")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="MEASURE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
