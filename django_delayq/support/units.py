"""Convert lengths of time ("30m", 90, timedelta) and sizes ("256KiB") from and to texts that people write and read."""

import math
import re
import reprlib
from datetime import timedelta
from decimal import Decimal

from django_delayq.support.translatable import text as _
from django_delayq.support.validation import short_repr

type_names = "seconds, a timedelta, or text such as '30m', '2h30m' or '7d'"
Duration = int | float | str | timedelta

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxlong = _shortener.maxother = 80

LONGEST_MS = 100 * 366 * 86_400_000
"""100 years, the longest delay, with every year taken as a leap year."""


def to_ms(value: Duration, name: str, *, least_ms: int = 0) -> int:
    """Return `value` in milliseconds, rounded up so that nothing starts early.

    Raises `TypeError` for a value that is no duration and `ValueError` for one that is shorter than `least_ms`, not
    finite or over 100 years; both name `name`, the value and the fix.
    """
    if type(value) is int:
        milliseconds = value * 1000
    elif isinstance(value, timedelta):
        milliseconds = -(value // timedelta(microseconds=-1000))  # exact: floats would lose microseconds
    elif isinstance(value, str):
        milliseconds = _parse(value, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"{name}={value!r} is not finite; give {type_names}.")
        milliseconds = _from_seconds(max(-1.0, min(value, LONGEST_MS)))  # a huge float would overflow
    else:
        raise TypeError(f"{name}={_shortener.repr(value)} is no length of time; give {type_names}.")
    if milliseconds < least_ms or (milliseconds == 0 and _is_negative(value)):
        least = to_text(least_ms) if least_ms else "0"
        raise ValueError(
            _(
                "%(name)s=%(value)s is too short; give %(least)s or more.",
                name=name,
                value=_shortener.repr(value),
                least=least,
            )
        )
    if milliseconds > LONGEST_MS:
        raise ValueError(_("%(name)s=%(value)s is over 100 years; give less.", name=name, value=_shortener.repr(value)))
    return milliseconds


def _parse(text: str, name: str) -> int:
    length = text.strip().removeprefix("-")
    parts = _PART.findall(length)
    if not parts or "".join(number + unit for number, unit in parts) != length:
        raise ValueError(
            _(
                "%(name)s=%(value)s is no length of time; write it like '500ms', '30m', '2h30m' or '7d'.",
                name=name,
                value=_shortener.repr(text),
            )
        )
    milliseconds = math.ceil(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))
    return -milliseconds if text.strip().startswith("-") else milliseconds


def _from_seconds(seconds: float) -> int:
    """Return seconds in ms, rounded up, unless the float is the nearest one to a whole ms: 1.1 s is 1100 ms."""
    nearest = round(seconds * 1000)
    return nearest if nearest / 1000 == seconds else math.ceil(seconds * 1000)


def _is_negative(value: Duration) -> bool:
    """Return whether `value` is below zero, which rounding up may have hidden."""
    return value < timedelta(0) if isinstance(value, timedelta) else not isinstance(value, str) and value < 0


def to_text(milliseconds: float) -> str:
    """Return a length of time for people, in its two largest units: 5400000 -> '1h30m'."""
    if round(milliseconds) < 1_000:
        return f"{milliseconds:.0f}ms"
    if (rounded := float(f"{milliseconds / 1_000:.3g}")) < 60:
        return f"{rounded:g}s"
    seconds = round(milliseconds / 1_000)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


_SIZES = {"B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_BYTES = {unit.lower(): size for unit, size in _SIZES.items()}
_SIZE = re.compile(rf"([0-9]{{1,15}}|[0-9]{{1,15}}\.[0-9]{{1,15}}(?=\s*[kmg]))\s*({'|'.join(_BYTES)}|)", re.IGNORECASE)


def to_bytes(value: object, name: str) -> int:
    """Return a size in bytes, rounded down. `value` is a number of bytes, or text such as "256KiB".

    Raises `ValueError`, which names `name`, the value and the fix.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{name}={short_repr(value)} is no size; give bytes, or text such as '256KiB' or '1.5GB' "
            f"({', '.join(_SIZES)})."
        )
    return int(Decimal(match[1]) * _BYTES[match[2].lower() or "b"])


def size_text(size: int) -> str:
    """Return a size for people, rounded down, in MiB or a smaller unit: 536870912 -> '512MiB'."""
    unit = next((unit for unit in ("MiB", "KiB") if size >= _SIZES[unit]), "B")
    return f"{size // _SIZES[unit]}{unit}"
