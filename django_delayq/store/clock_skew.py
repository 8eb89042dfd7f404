"""Two clocks: the database's decides, the broker's times the alarms.

Alarms carry waits, not instants, so that a difference shifts nothing. A third, the monotonic clock of this machine,
tells when the first one jumps: then leases seem to have run out whose holders are alive.
"""

import math
from time import monotonic

from django_delayq.support.logging import logger
from django_delayq.support.texts import text as _
from django_delayq.support.units import to_text

WARN_MS = 100
JUMP = 0.1
"""The part of a lease by which the clock may be off before it counts as a jump.

A holder has far more of its lease left.
"""
RENEWED_S = 7.5
"""The time, or half a lease if less, in which a living worker has renewed: it does so after a third of one, or 5 s."""
LEAST_GAP_S = 2.0
"""A worker looks once a second."""


class ClockMonitor:
    """Compares how much time passes at the database and here, and tells when leases that ran out may be reclaimed.

    They are left alone for the length of a lease after the database's clock jumped ahead: a worker that is alive renews
    meanwhile, by the new time. Nor are they reclaimed at once after half a lease without a look, or after the database
    took no writes: nobody could renew.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._seen: tuple[int, float, float] | None = None  # what it said, and when it was asked and had told
        self._reclaims_from = 0.0

    def start(self, lease_ms: int) -> None:
        """Hold reclaiming off until every living worker has had time to renew: earlier jumps are not known here."""
        self._hold_off(min(lease_ms / 2000, RENEWED_S))

    def wait_for_writes(self) -> None:
        """Let nothing be reclaimed until `take_writes`: the database answers, but nobody can renew."""
        self._reclaims_from = math.inf

    @property
    def waits_for_writes(self) -> bool:
        """Return whether the database took no writes when it was last asked to."""
        return self._reclaims_from == math.inf

    def take_writes(self, lease_ms: int) -> None:
        """Hold reclaiming off until every living worker has had time to renew: the database takes writes again."""
        self._reclaims_from = 0.0
        self.start(lease_ms)

    def hear(self, now_ms: int, asked_at: float, lease_ms: int) -> int:
        """Note the time that the database told, and return for how many ms nothing may be reclaimed yet.

        `asked_at` is when it was asked, by the monotonic clock.
        """
        told_at = monotonic()
        if self._seen is not None:
            seen_ms, seen_asked_at, seen_told_at = self._seen
            least_s, most_s = asked_at - seen_told_at, told_at - seen_asked_at
            jump_ms = skew(now_ms, seen_ms + int(least_s * 1000), seen_ms + int(most_s * 1000))
            if abs(jump_ms) > lease_ms * JUMP:
                self._note_jump(jump_ms, lease_ms)
            if most_s > max(lease_ms / 2000, LEAST_GAP_S):
                self.start(lease_ms)
        self._seen = now_ms, asked_at, told_at
        return max(int(min(self._reclaims_from - told_at, lease_ms / 1000) * 1000), 0)

    def _note_jump(self, jump_ms: int, lease_ms: int) -> None:
        if jump_ms < 0:
            logger.warning(
                "The clock of database %r went back by %s: what waits, and what dead workers held, is later by that.",
                self._using, to_text(-jump_ms),
            )  # fmt: skip
            return
        self._hold_off(lease_ms / 1000)
        logger.warning(
            "The clock of database %r jumped ahead by %s, or this machine stood still: no lease is taken over for %s, "
            "so that workers that are alive can renew theirs first.",
            self._using, to_text(jump_ms), to_text(lease_ms),
        )  # fmt: skip

    def _hold_off(self, seconds: float) -> None:
        self._reclaims_from = max(self._reclaims_from, monotonic() + seconds)


def skew(clock_ms: int, before_ms: int, after_ms: int) -> int:
    """Return how far a clock is at least ahead (negative: behind) of one that was read before and after it."""
    return clock_ms - min(max(clock_ms, before_ms), after_ms)


def in_words(skew_ms: int) -> str:
    """Return the difference between the broker's clock and the database's, in words."""
    if not skew_ms:
        return "the broker's clock agrees with the database's"
    where = "ahead of" if skew_ms > 0 else "behind"
    return f"the broker's clock is {to_text(abs(skew_ms))} {where} the database's"


def warnings(skew_ms: int) -> list[str]:
    """Return the warning about a skew above 100 ms, or none."""
    if abs(skew_ms) <= WARN_MS:
        return []
    skew = to_text(abs(skew_ms))
    if skew_ms > 0:
        return [
            _(
                "The broker's clock is %(skew)s ahead of the database's, which decides: nothing is early or lost, "
                "but keep both on time (NTP).",
                skew=skew,
            )
        ]
    return [
        _(
            "The broker's clock is %(skew)s behind the database's, which decides: nothing is early or lost, "
            "but keep both on time (NTP).",
            skew=skew,
        )
    ]
