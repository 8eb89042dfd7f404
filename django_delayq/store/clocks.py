"""Two clocks: the database's decides, the broker's times the alarms.

Alarms carry waits, not instants, so that a difference shifts nothing.
"""

from django_delayq.durations import to_text
from django_delayq.texts import text as _

WARN_MS = 100


def skew(clock_ms: int, before_ms: int, after_ms: int) -> int:
    """How far a clock is at least ahead (negative: behind) of one that was read before and after it."""
    return clock_ms - min(max(clock_ms, before_ms), after_ms)


def in_words(skew_ms: int) -> str:
    """The broker's clock against the database's."""
    if not skew_ms:
        return "the broker's clock agrees with the database's"
    where = "ahead of" if skew_ms > 0 else "behind"
    return f"the broker's clock is {to_text(abs(skew_ms))} {where} the database's"


def warnings(skew_ms: int) -> list[str]:
    """What to mend above 100 ms."""
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
