"""The plan of a round, drawn from the seed before it begins: which faults, when, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.places import Place

FIRST_S = 2.0
"""The first faults come when the workers have begun."""
SHORT_S = 4.0
LONG_S = 18.0
"""Longer than a few leases, and than it takes until workers go on without Redis."""


@dataclass(frozen=True)
class Step:
    """One fault, so many seconds after the begin of the round, or when the one before it is over."""

    at: float
    fault: Fault
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:.1f} s {self.fault.name} ({self.seconds:.1f} s)"


@dataclass(frozen=True)
class Plan:
    """What a round is drawn from."""

    seed: int
    number: int
    place: str
    seconds: float
    only: Sequence[str] = ()
    """The names of the faults to draw from; none stands for all."""
    longest_s: float = 8.0
    """The longest delay of a message."""

    def draw(self, what: str) -> Random:
        """Return a source of chance of one's own: what one draws changes nothing for others."""
        return Random(f"{self.seed} {self.number} {self.place} {what}")

    def steps(self, place: Place) -> dict[str, list[Step]]:
        """Return the faults, in order, of each of what they hit."""
        return {
            hit: list(self._steps(hit, faults, place))
            for hit, faults in FAULTS.items()
            if hit != "redis" or place.nodes
        }

    def _steps(self, hit: str, faults: Sequence[Fault], place: Place) -> list[Step]:
        draw, steps = self.draw(hit), []
        possible = [fault for fault in faults if fault.at(place) and (not self.only or fault.name in self.only)]
        rest_s = draw.choice([1, 4, 10])  # some rounds are calm enough to see that nothing is late
        at = FIRST_S + draw.uniform(0, rest_s)
        while possible and at < self.seconds:
            step = Step(at, draw.choice(possible), draw.uniform(0.5, draw.choice([SHORT_S, LONG_S])))
            steps.append(step)
            at += step.seconds + draw.uniform(0.5, 2 * rest_s)
        return steps
