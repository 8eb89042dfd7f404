"""One line of the table: a measured value against its bound."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """A measured value and whether it is within its bound."""

    what: str
    measured: str
    bound: str
    ok: bool
    detail: str = ""


def at_least(what: str, value: float, least: float, detail: str = "") -> Result:
    """Return the result for a value that must not be smaller than `least`."""
    return Result(what, f"{value:.2f}", f"at least {least:g}", value >= least, detail)


def at_most(what: str, value: float, most: float, unit: str, detail: str = "") -> Result:
    """Return the result for a value that must not be larger than `most`."""
    return Result(what, f"{value:.4g} {unit}", f"at most {most:g} {unit}", value <= most, detail)


def table(results: list[Result]) -> str:
    """Return the results as text, a line each."""
    rows = [("", "measured", "bound", "", ""), *((r.what, r.measured, r.bound, _verdict(r), r.detail) for r in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _verdict(result: Result) -> str:
    return "ok" if result.ok else "short"
