"""Sizes as people write them ("256KiB", "1.5GB", 4096), as whole bytes inside."""

import re
from decimal import Decimal

from django_delayq.values import shown

_UNITS = {"B": 1, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_BYTES = {unit.lower(): size for unit, size in _UNITS.items()}
_SIZE = re.compile(rf"([0-9]{{1,15}}|[0-9]{{1,15}}\.[0-9]{{1,15}}(?=\s*[kmg]))\s*({'|'.join(_BYTES)}|)", re.IGNORECASE)


def to_bytes(value: object, name: str) -> int:
    """`value` in bytes, rounded down: a number of them, or text. Raises `ValueError`, which names `name`, the value and
    the fix."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"{name}={shown(value)} is no size; give bytes, or text such as '256KiB' or '1.5GB' ({', '.join(_UNITS)})."
        )
    return int(Decimal(match[1]) * _BYTES[match[2].lower() or "b"])


def to_text(size: int) -> str:
    """The reverse, for people: 536870912 -> '512MiB'. Rounded down, in MiB or what is less."""
    unit = next((unit for unit in ("MiB", "KiB") if size >= _UNITS[unit]), "B")
    return f"{size // _UNITS[unit]}{unit}"
