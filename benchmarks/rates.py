"""Ours against a floor: taken in turn, so that what else the machine does hits both alike."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast ours and the floor did the same work, in items a second, and the median ratio of the rounds."""

    ratio: float
    ours: float
    floor: float

    def __str__(self) -> str:
        return f"{self.ours:,.0f}/s against {self.floor:,.0f}/s"


def in_turn(ours: Callable[[], float], floor: Callable[[], float], items: int, turns: int = 1) -> Rates:
    """`ROUNDS` rounds of `turns` turns each. A call does `items` items and gives the seconds that they took."""
    rounds = [_round(ours, floor, turns) for _ in range(ROUNDS)]
    return Rates(
        ratio=median(floor_s / ours_s for ours_s, floor_s in rounds),
        ours=items * turns / median(ours_s for ours_s, _ in rounds),
        floor=items * turns / median(floor_s for _, floor_s in rounds),
    )


def _round(ours: Callable[[], float], floor: Callable[[], float], turns: int) -> tuple[float, float]:
    ours_s = floor_s = 0.0
    for _ in range(turns):
        floor_s += floor()
        ours_s += ours()
    return ours_s, floor_s
