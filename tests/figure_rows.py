"""Rows of figures as workers write them."""

from secrets import randbits

from django_delayq.core.figures import COUNTS, MINUTE_MS
from django_delayq.core.transitions import SettleAction, Transition
from django_delayq.models import FigureRow
from django_delayq.worker.figures import count


def write_figures(
    database: str,
    at_ms: int,
    action: SettleAction = SettleAction.FINISH,
    *,
    queue: str = "default",
    key: str = "k",
    number: int = 1,
    late_ms: int = 0,
    ran_ms: int = 0,
    period: str = FigureRow.Period.NEW,
    alias: str = "default",
) -> None:
    """A worker has counted attempts that ended so in this minute."""
    end = Transition("id", 1, queue, key, action, started_ms=late_ms, ended_ms=late_ms + ran_ms)
    counts = [0] * len(COUNTS)
    for _ in range(number):
        count(counts, end, 0)
    of = dict(zip(COUNTS, counts, strict=True))
    FigureRow(
        id=randbits(63), alias=alias, period=period, at=at_ms - at_ms % MINUTE_MS, queue=queue, key=key, **of
    ).save(using=database, force_insert=True)
