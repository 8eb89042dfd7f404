"""`python -m tests.core.human_time_sweep`: human time at every change of the clocks of every zone, 1970 to 2100.

At each change some random rules are asked at random times around it, and compared with `clocks.py`: windows with a walk
minute by minute, local times with dateutil. Prints the numbers, and exits 1 if anything differs. RULES is how many at
each change, SEED what they are drawn by. It takes some minutes on a core.
"""

import random
import sys
from collections import Counter

from django_delayq.core.human_time import At, Window, due_in_window_ms
from tests.core.clocks import (
    Clocks,
    first_closed,
    first_open,
    instant,
    some_hours,
    some_later,
    sweep,
    text,
)

AROUND = 3 * 1440


def main() -> int:
    """Sweep, and return the exit code."""
    return sweep(3, compare)


def compare(zone: Clocks, change: float, choose: random.Random, counts: Counter[str]) -> list[str]:
    """Return what is wrong with windows and local times that are asked at one moment near a change."""
    now = change + choose.randrange(-AROUND, 120)
    return [
        *compare_windows(zone, change, now, choose, counts),
        *compare_at(zone, change, now, choose, counts),
    ]


def compare_windows(zone: Clocks, change: float, now: float, choose: random.Random, counts: Counter[str]) -> list[str]:
    """Return what differs of a message in a random window, or in two, and of one that is spread in it."""
    hours = [some_hours(choose, zone.local(change)) for _ in range(choose.choice((1, 1, 2)))]
    windows = [Window(*each.arguments, zone=zone.zone, calendar=each.calendar) for each in hours]
    spread = choose.randrange(1, 180)
    found, due = (_due(now, windows, minutes) for minutes in (0, spread))
    expected = min(first_open(each, zone, now) for each in hours)
    until = first_closed(hours, zone, expected, expected + spread)
    counts["windows"] += 1
    counts["early"] += (found < now) + (due < now)
    counts["outside"] += sum(not any(each.is_open(zone.local(at)) for each in hours) for at in (found, due))
    if found == expected <= due < until:
        return []
    return [f"{windows} at {instant(now)}: {found}, and not {expected}; spread by {spread}: {due}, to {until}"]


def _due(now: float, windows: list[Window], spread: int) -> float:
    return due_in_window_ms(int(now * 60_000), windows, spread * 60_000, str(now)) / 60_000


def compare_at(zone: Clocks, change: float, now: float, choose: random.Random, counts: Counter[str]) -> list[str]:
    """Return what differs of a random local time."""
    later = some_later(choose, zone.local(change))
    at = At(
        time=text(later.minute),
        zone=zone.zone,
        months=later.months,
        days=later.days,
        business_days=later.business_days,
        calendar=later.calendar,
    )
    found, expected = at.resolve(instant(now)), later.resolve(instant(now), zone.zone)
    counts["times"] += 1
    counts["early"] += found < instant(now)
    return [] if found == expected else [f"{at} at {instant(now)}: {found}, and not {expected}"]


if __name__ == "__main__":
    sys.exit(main())
