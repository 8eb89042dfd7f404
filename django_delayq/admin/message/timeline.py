"""The attempts of a message, one after another: how long each was waited for, how long it took, how it ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _, gettext_lazy

from django_delayq.admin.lists.columns import between, exact, is_abandoned, is_running
from django_delayq.core.history import Ended, PastAttempt, read
from django_delayq.models import ErrorMessage, FinishMessage, MessageRow, ReadyMessage
from django_delayq.support.timestamps import from_ms

_OUTCOMES = {
    Ended.FAILED: gettext_lazy("failed"),
    Ended.SNOOZED: gettext_lazy("snoozed"),
    Ended.CRASHED: gettext_lazy("its process died"),
    Ended.INTERRUPTED: gettext_lazy("interrupted by the stop of its worker"),
    Ended.LOST: gettext_lazy("its lease ran out"),
    Ended.BURIED: gettext_lazy("failed for good, and was run again"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt as the page shows it. `waited` is the time from the end of the previous attempt, or from the send.

    The traceback of the attempt that buried a message is not here: the page begins with it.
    """

    number: int
    started: Any
    waited: str
    took: str
    worker: str
    outcome: Any
    error: str = ""
    traceback: str = ""


def timeline(row: MessageRow) -> list[Step]:
    """Return its attempts, oldest first, including the last.

    If there were very many, some in the middle are not kept.
    """
    steps, before = [], row.sent_at
    for past in read(row.history):
        steps.append(_past_step(past, before))
        before = from_ms(past.ended)
    steps.extend(_last_step(row, before))
    return steps


def _past_step(past: PastAttempt, before: datetime) -> Step:
    started = None if past.started is None else from_ms(past.started)
    waited, took = _lengths(before, started, from_ms(past.ended))
    outcome = _OUTCOMES[past.outcome]
    return Step(past.attempt, _started(started), waited, took, past.worker, outcome, past.error, past.traceback)


def _last_step(row: MessageRow, before: datetime) -> Iterator[Step]:
    if isinstance(row, ReadyMessage):
        if is_running(row):
            waited, took = _lengths(before, row.started_at, None)
            outcome = _OUTCOMES[Ended.LOST] if is_abandoned(row) else _("runs")
            yield Step(row.failures + 1, _started(row.started_at), waited, took, row.worker, outcome)
    elif isinstance(row, ErrorMessage):
        waited, took = _lengths(before, row.started_at, row.ended_at)
        outcome, number = _("failed for good"), max(row.failures, 1)
        yield Step(number, _started(row.started_at), waited, took, row.worker, outcome, row.error)
    elif isinstance(row, FinishMessage):
        waited, took = _lengths(before, row.started_at, row.ended_at)
        outcome = row.get_outcome_display()
        yield Step(row.failures + 1, _started(row.started_at), waited, took, row.worker, outcome)


def _started(moment: datetime | None) -> Any:
    return "-" if moment is None else exact(moment)


def _lengths(before: datetime, started: datetime | None, ended: datetime | None) -> tuple[str, str]:
    """Return how long it waited, and how long it took; "-" for what is not known."""
    if started is None:
        return "-", "-"
    return between(before, started), "-" if ended is None else between(started, ended)
