"""Sizes as people write them ("256KiB", 4096), as whole bytes inside."""

import re

from django_delayq.values import shown

_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE = re.compile(rf"([0-9]{{1,15}})\s*({'|'.join(_UNITS)}|)")


def to_bytes(value: object, name: str) -> int:
    """`value` in bytes: a number of them, or text. Raises `ValueError`, which names `name`, the value and the fix."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{name}={shown(value)} is no size; give bytes, or text such as '256KiB' or '1MiB'.")
    return int(match[1]) * _UNITS[match[2]]


def to_text(size: int) -> str:
    """The reverse, for people: 536870912 -> '512MiB'. In whole MiB, rounded down."""
    return f"{size // _UNITS['MiB']}MiB"
