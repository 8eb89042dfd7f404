"""What falls due in the next hours, held against what the workers are known to manage."""

from collections.abc import Mapping
from dataclasses import dataclass

HOUR_MS = 3_600_000
HOURS = 12


@dataclass(frozen=True, slots=True)
class Hour:
    """What falls due from `starts_ms` on, until the full hour.

    `drain_ms` is how long that and what is left of the hours before take at the highest rate that was measured; None
    where none was. `complete`: no more than `due` is known to fall due; else it is a part.
    """

    starts_ms: int
    due: int
    complete: bool
    drain_ms: int | None


def forecast(
    now_ms: int, ready: int, pending_by_hour: Mapping[int, int], known_until_ms: int | None, rate_per_s: float
) -> tuple[Hour, ...]:
    """The rest of this hour and the next ones. What is `ready` now counts to the first."""
    hours = []
    left = float(ready)
    for number in range(HOURS):
        full_ms = now_ms - now_ms % HOUR_MS + number * HOUR_MS
        ends_ms, starts_ms = full_ms + HOUR_MS, max(full_ms, now_ms)
        due = pending_by_hour.get(full_ms, 0)
        left += due
        drain_ms = round(left / rate_per_s * 1000) if rate_per_s else None
        hours.append(Hour(starts_ms, due, known_until_ms is None or known_until_ms >= ends_ms, drain_ms))
        left = max(left - rate_per_s * (ends_ms - starts_ms) / 1000, 0)
    return tuple(hours)
