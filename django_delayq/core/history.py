"""Keep the history of a message: its earlier attempts, oldest first, as a JSON list that stays small. Pure functions.

It keeps the first attempt and the last 19, which show how the trouble began, and how it looks now.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from django_delayq.core import codec

NOTHING = "[]"
MOST = 20
MOST_BYTES = 65_536


class Ended(StrEnum):
    """How an attempt ended. An attempt that finished was the last one, and is in no history."""

    FINISHED = "finished"
    FAILED = "failed"
    SNOOZED = "snoozed"
    CRASHED = "crashed"  # the process that ran it died
    INTERRUPTED = "interrupted"  # by the stop of its worker
    LOST = "lost"  # its lease ran out: the worker died, or could not renew it
    CANCELLED = "cancelled"  # while it ran; the last one, like one that finished
    BURIED = "buried"  # and was rescued later


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One attempt that is over. `started` and `ended` are epoch ms; `started` is None if it never started.

    For an attempt that was lost or interrupted, `started` is when it was claimed, and `ended` is when its lease ended:
    nothing more exact is known.
    """

    attempt: int
    started: int | None
    ended: int
    worker: str
    outcome: Ended
    error: str = ""
    traceback: str = ""


def read(history: str) -> list[PastAttempt]:
    """Return the attempts, oldest first; an empty list if the history can't be read, because someone else wrote it."""
    if history == NOTHING:
        return []
    try:
        return codec.read(history, list[PastAttempt])
    except ValueError:
        return []


def changed(history: str, change: Callable[[PastAttempt], PastAttempt]) -> str:
    """Return the history with `change` applied to each attempt."""
    return codec.dumps([change(each) for each in read(history)]).decode()


def moved(history: str, by_ms: int) -> str:
    """Return the history with every time moved later by `by_ms`."""

    def later(past: PastAttempt) -> PastAttempt:
        started = None if past.started is None else past.started + by_ms
        return replace(past, started=started, ended=past.ended + by_ms)

    return changed(history, later)


def retold(history: str, retell: Callable[[str], str]) -> str:
    """Return the history with `retell` applied to each error and traceback."""
    return changed(history, lambda past: replace(past, error=retell(past.error), traceback=retell(past.traceback)))


def add(history: str, attempt: PastAttempt) -> str:
    """Return the history with one more attempt, cut down to `MOST` attempts and `MOST_BYTES`."""
    attempts = [*read(history), attempt]
    if len(attempts) > MOST:
        del attempts[1 : len(attempts) - MOST + 1]
    body = codec.dumps(attempts)
    for i in (*range(1, len(attempts)), 0):  # tracebacks take the most room; the first attempt's is dropped last
        if len(body) <= MOST_BYTES:
            break
        attempts[i] = replace(attempts[i], traceback="")
        body = codec.dumps(attempts)
    return body.decode()
