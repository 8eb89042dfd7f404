"""Measure our work against a floor (the rawest way to do it), in turns, so that other load affects both alike."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast we and the floor did the same work in each round, in items a second."""

    ours: list[float]
    floor: list[float]

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of our rate to the floor's, for each round."""
        return [ours / floor for ours, floor in zip(self.ours, self.floor, strict=True)]

    @property
    def ratio(self) -> float:
        """Return the median of `ratios`."""
        return median(self.ratios)

    @property
    def rounds(self) -> str:
        """Return the ratios as text."""
        return "rounds " + " ".join(f"{ratio:.2f}" for ratio in self.ratios)

    def __str__(self) -> str:
        return f"{median(self.ours):,.0f}/s against {median(self.floor):,.0f}/s; {self.rounds}"


def in_turn(ours: Callable[[], float], floor: Callable[[], float], items: int, turns: int = 1) -> Rates:
    """Run `ROUNDS` rounds. In each, call `floor` and `ours` alternately, `turns` times each.

    Each call handles `items` items, and returns the seconds that it took.
    """
    rounds = [_round(ours, floor, turns) for _ in range(ROUNDS)]
    ours_s, floor_s = zip(*rounds, strict=True)
    return Rates([items * turns / seconds for seconds in ours_s], [items * turns / seconds for seconds in floor_s])


def _round(ours: Callable[[], float], floor: Callable[[], float], turns: int) -> tuple[float, float]:
    ours_s = floor_s = 0.0
    for _ in range(turns):
        floor_s += floor()
        ours_s += ours()
    return ours_s, floor_s
