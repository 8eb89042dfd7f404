"""Count what became of the messages, from what was promised and from the runs that the handlers wrote down."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from example_project.demo.promises import Promises
from example_project.shop.models import Run

UNTOLD = timedelta(seconds=1)
"""How long before its death a worker may have finished a run without the broker knowing.

It is generous: settlements are gathered for 50 ms.
"""

LATE_MS = 1000


@dataclass(frozen=True)
class Figures:
    """The figures that the demo prints. Lateness in milliseconds."""

    sent: int
    run: int
    cancelled: int
    retried: int
    taken_over: int
    error: int
    early: int
    lost: int
    doubled: int
    lateness_p50: float
    lateness_p95: float
    lateness_p99: float

    @property
    def is_kept(self) -> bool:
        """Return whether nothing was early, lost or doubled."""
        return self.early == self.lost == self.doubled == 0

    @property
    def is_only_late(self) -> bool:
        """Return whether nothing was wrong but that half of the runs began over a second late, as on a busy machine."""
        return self.is_kept and self.lateness_p50 > LATE_MS


def count(promises: Promises, runs: Sequence[Run], buried: Collection[str], killed_pid: int) -> Figures:
    """Compare what happened with what was promised.

    Early is by the clock of this machine, on which the demo's Redis runs too. Doubled is a handler that ran to its end
    twice. A run of the killed worker that it could not report, and the run of the worker that took over, count as one.
    An id of which nothing was promised may run often: each run that finished counts as a message.
    """
    of_killed = [run for run in runs if run.worker_pid == killed_pid]
    untold = [run for run in _untold(of_killed) if run.message_id in promises.due]
    finished = [run for run in runs if run.outcome == Run.Outcome.FINISHED]
    taken_over = {run.message_id for run in untold} & {run.message_id for run in finished if run not in untold}
    finishes = Counter(run.message_id for run in finished if run not in untold or run.message_id not in taken_over)
    unpromised = sum(number for id, number in finishes.items() if id not in promises.due)
    lateness = sorted(run.lateness.total_seconds() * 1000 for run in runs)
    return Figures(
        sent=len(promises.due) + unpromised,
        run=len(finishes.keys() & promises.due.keys()) + unpromised,
        cancelled=sum(stopped for _, stopped in promises.stopped),
        retried=len({(run.message_id, run.attempt) for run in runs if run.attempt > 1}),
        taken_over=len(taken_over),
        error=len(buried),
        early=sum(1 for run in runs if run.started_at < max(promises.due.get(run.message_id, run.due_at), run.due_at)),
        lost=_lost(promises, ended={*finishes, *buried}),
        doubled=sum(1 for id, finished in finishes.items() if finished > 1 and id in promises.due),
        lateness_p50=_percentile(lateness, 50),
        lateness_p95=_percentile(lateness, 95),
        lateness_p99=_percentile(lateness, 99),
    )


def _untold(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the killed worker whose end the broker may not know.

    They have no end, or one within `UNTOLD` before its death.
    """
    died_at = max((run.ended_at or run.started_at for run in runs), default=None)
    return [run for run in runs if run.ended_at is None or (died_at and run.ended_at > died_at - UNTOLD)]


def differences_to(figures: Figures, totals: Mapping[str, int]) -> list[str]:
    """Return where the broker's own totals differ from the demo's counts."""
    counted = {"sent": figures.sent, "finished": figures.run, "cancelled": figures.cancelled}
    return [
        f"the demo counted {number} {name}, the broker {totals.get(name, 0)}"
        for name, number in counted.items()
        if totals.get(name, 0) != number
    ]


def _lost(promises: Promises, ended: set[str]) -> int:
    """Return how many messages have no end. If some of a group were stopped, just as many must have no other end."""
    stoppable = {id for ids, _ in promises.stopped for id in ids}
    lost = len(promises.due.keys() - stoppable - ended)
    return lost + sum(abs(len(set(ids) - ended) - stopped) for ids, stopped in promises.stopped)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` of all don't exceed; 0 without any."""
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0
