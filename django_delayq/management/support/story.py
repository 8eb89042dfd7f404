"""Write the facts on a message that only a store has: its attempts, its row, and its alarm."""

from collections.abc import Iterator, Sequence
from typing import Any

from django_delayq.brokers.base import AlarmInfo
from django_delayq.core.history import PastAttempt
from django_delayq.core.message import State
from django_delayq.management.support.times import instant, to_words
from django_delayq.monitor import Explanation
from django_delayq.store.history import MOST_ROWS, MessageFacts
from django_delayq.support.units import to_text


def story_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the facts as lines for people; none without a store."""
    story, now_ms = explanation.story, explanation.now_ms
    if story is None:
        return
    if story.running_since_ms is not None:
        yield f"runs since: {to_words(story.running_since_ms, now_ms)}"
    if story.ended_ms is not None and story.info.buried_ms is None:
        yield f"ended: {to_words(story.ended_ms, now_ms)}"
    if story.fingerprint:
        yield f"fingerprint: {story.fingerprint}"
    yield f"row: {story.pk}, {_rows(story)}"
    yield f"alarm: {_alarm(story, explanation.alarms, now_ms)}"
    yield f"attempts: {len(story.attempts) or 'none is over'}"
    for attempt in story.attempts:
        yield from _attempt_lines(attempt, now_ms)


def story_shape(explanation: Explanation) -> dict[str, Any] | None:
    """Return the documented JSON shape; None without a store."""
    story = explanation.story
    if story is None:
        return None
    return {
        "pk": story.pk,
        "rows": story.rows,
        **instant("running_since", story.running_since_ms),
        **instant("ended", story.ended_ms),
        "fingerprint": story.fingerprint,
        "alarms": None if explanation.alarms is None else [_alarm_shape(alarm) for alarm in explanation.alarms],
        "attempts": [_attempt_shape(attempt) for attempt in story.attempts],
    }


def _rows(story: MessageFacts) -> str:
    if story.rows <= 1:
        return "the only one of this id"
    return f"the newest of {story.rows}{' or more' if story.rows == MOST_ROWS else ''} of this id"


def _alarm(story: MessageFacts, alarms: Sequence[AlarmInfo] | None, now_ms: int) -> str:
    if alarms is None:
        return "not known, the broker is away or can't be asked"
    for alarm in alarms:
        if alarm.lease_end_ms is not None:
            return f"claimed, it rings again {to_words(alarm.lease_end_ms, now_ms)} unless it is dropped"
        return f"rings {to_words(alarm.due_ms, now_ms)}"
    if story.info.state in (State.PENDING, State.READY):
        return "none; it gets one some seconds before it is due, and none if it is overdue"
    return "none"


def _attempt_lines(attempt: PastAttempt, now_ms: int) -> Iterator[str]:
    took = "never started" if attempt.started is None else f"took {to_text(max(attempt.ended - attempt.started, 0))}"
    error = f": {attempt.error}" if attempt.error else ""
    worker = attempt.worker or "no worker"
    yield f"  {attempt.attempt} {attempt.outcome} {to_words(attempt.ended, now_ms)}, {took}, {worker}{error}"
    for line in attempt.traceback.splitlines():
        yield f"    {line}"


def _alarm_shape(alarm: AlarmInfo) -> dict[str, Any]:
    return {**instant("due", alarm.due_ms), **instant("lease_end", alarm.lease_end_ms)}


def _attempt_shape(attempt: PastAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "outcome": str(attempt.outcome),
        **instant("started", attempt.started),
        **instant("ended", attempt.ended),
        "worker": attempt.worker,
        "error": attempt.error,
        "traceback": attempt.traceback,
    }
