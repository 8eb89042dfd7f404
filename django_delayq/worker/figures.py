"""Count how attempts end, and write the counts to the store: a row a minute for each queue and key."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from random import random
from secrets import randbits
from time import monotonic, time

from django.db import connections

from django_delayq.brokers.base import BuriedInfo, Transition
from django_delayq.core.figures import (
    BOUNDS_MS,
    BURIED,
    COUNTS,
    FAILED,
    FINISHED,
    LATE,
    LATE_MS,
    MINUTE_MS,
    MOST_PAIRS,
    OTHERS,
    RAN,
    RAN_MS,
    RETRIED,
    SNOOZED,
)
from django_delayq.core.requests import Pair
from django_delayq.core.transitions import SettleAction
from django_delayq.models import FigureRow
from django_delayq.store import figures
from django_delayq.store.database import Database
from django_delayq.support.logging import logger
from django_delayq.worker.leases import Lease
from django_delayq.worker.logs import OutageLog

SPREAD_S = 2.0
"""Workers write at a random time within this many seconds after the end of a minute, so not all at once."""
MOST_UNWRITTEN = 10_000
"""The most rows that are kept while the database is away; the oldest are dropped first."""

_FINISH = SettleAction.FINISH
_FAILURES = {SettleAction.RETRY: RETRIED, SettleAction.CRASH: RETRIED, SettleAction.BURY: BURIED}
_ENDS = {_FINISH: FINISHED, SettleAction.SNOOZE: SNOOZED, **_FAILURES}
"""The position in `COUNTS` of the count that each action increases.

A release or an interrupt ends no attempt, and a lapse has no worker to count it.
"""

_Place = tuple[int, str, str]
"""A minute in epoch ms, a queue and a key."""


class FigureWriter:
    """The counts of one process, which other threads add to and its own thread writes each minute.

    A process that is killed loses what it has not written: about a minute. Rows that the database does not take are
    written with the next minute. Their primary keys are drawn here, so a row is not written twice if only the answer
    was lost.
    """

    def __init__(self, database: Database, outage_log: OutageLog) -> None:
        self._database = database
        self._outage_log = outage_log
        self._lock = threading.Lock()  # taken once for each batch of ends, never for a message
        self._counts: dict[_Place, list[int]] = {}
        self._named: set[Pair] = set()
        self._clock_ms = (time() - monotonic()) * 1000
        self._unwritten: list[FigureRow] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_forever, name="delayq-figures", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Write what is counted, for at most `timeout` seconds, and end the thread."""
        self._closed.set()
        self._thread.join(timeout)

    def count(self, ended: Sequence[tuple[Lease, Transition]]) -> None:
        """Count settlements that took effect, each in the minute in which its attempt ended."""
        with self._lock:
            for lease, transition in ended:
                if is_counted(transition):
                    at_ms = lease.now_ms() if transition.ended_ms is None else transition.ended_ms
                    place = at_ms - at_ms % MINUTE_MS, transition.queue, transition.key
                    count(self._counts.get(place) or self._counts_of(place), transition, lease.claimed.due_ms)
            if ended:
                self._clock_ms = ended[-1][0].clock_ms

    def count_buried(self, buried: Iterable[BuriedInfo]) -> None:
        """Count messages that were buried by a worker that did not run them."""
        with self._lock:
            for info in buried:
                if info.key:
                    count_buried(self._counts_of((self._minute_ms(), info.queue, info.key)))

    def write(self, before_ms: int | None = None) -> None:
        """Write the counts of minutes before `before_ms`, or all if it is None. Keep what the database refuses."""
        self._unwritten += self._take(before_ms)
        if not self._unwritten:
            return
        try:
            with self._database.available():
                figures.write(self._database, self._unwritten)
                self._unwritten.clear()
                figures.roll_up(self._database, self._now_ms())
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin("figures", error)
            if len(self._unwritten) > MOST_UNWRITTEN:
                logger.warning("%d row(s) of figures are dropped.", len(self._unwritten) - MOST_UNWRITTEN)
                del self._unwritten[:-MOST_UNWRITTEN]
        else:
            self._outage_log.end("figures")

    def _write_forever(self) -> None:
        while not self._closed.wait(self._until_write_s()):
            self._write_and_close(self._minute_ms())
        self._write_and_close(None)

    def _write_and_close(self, before_ms: int | None) -> None:
        try:
            self.write(before_ms)
        finally:
            connections.close_all()  # it would be idle for the rest of the minute

    def _until_write_s(self) -> float:
        return (MINUTE_MS - self._now_ms() % MINUTE_MS) / 1000 + random() * SPREAD_S

    def _minute_ms(self) -> int:
        now_ms = self._now_ms()
        return now_ms - now_ms % MINUTE_MS

    def _now_ms(self) -> int:
        """Return the time of the authoritative clock, reckoned from the last lease that was counted."""
        return int(self._clock_ms + monotonic() * 1000)

    def _counts_of(self, place: _Place) -> list[int]:
        """Return the counts of a minute, queue and key, for adding to them.

        Pairs beyond `MOST_PAIRS` share the counts of `OTHERS`.
        """
        at_ms, queue, key = place
        pair = queue, key
        if len(self._named) < MOST_PAIRS:
            self._named.add(pair)
        return self._counts.setdefault((at_ms, *(pair if pair in self._named else OTHERS)), [0] * len(COUNTS))

    def _take(self, before_ms: int | None) -> list[FigureRow]:
        with self._lock:
            over = [place for place in self._counts if before_ms is None or place[0] < before_ms]
            taken = [(place, self._counts.pop(place)) for place in over]
            self._named = {(queue, key) for _, queue, key in over} - {OTHERS}  # so a busy one keeps its name
        return [
            FigureRow(
                id=randbits(63),
                alias=self._database.alias,
                period=FigureRow.Period.NEW,
                at=at_ms,
                queue=queue,
                key=key,
                **dict(zip(COUNTS, counts, strict=True)),
            )
            for (at_ms, queue, key), counts in taken
        ]


def is_counted(transition: Transition) -> bool:
    """Return whether `count` takes a transition: it ends an attempt or buries the message, and its key is known."""
    return (transition.action is _FINISH or transition.action in _ENDS) and transition.key != ""


def count(counts: list[int], transition: Transition, due_ms: int) -> None:
    """Add the transition of a message that was due at `due_ms`. If no attempt started, add at most that it ended."""
    action, started_ms, ended_ms = transition.action, transition.started_ms, transition.ended_ms
    if action is _FINISH:  # most actions are, and looking one up in a dict takes longer than all the rest
        counts[FINISHED] += 1
    elif started_ms is not None:
        counts[_ENDS[action]] += 1
        counts[FAILED] += action in _FAILURES
    elif action is SettleAction.BURY:
        counts[BURIED] += 1
    if started_ms is None or ended_ms is None:
        return
    ran_ms = ended_ms - started_ms
    if ran_ms > 0:
        counts[RAN_MS] += ran_ms
    counts[RAN + bisect_left(BOUNDS_MS, ran_ms)] += 1
    late_ms = started_ms - due_ms
    if late_ms > 0:
        counts[LATE_MS] += late_ms
    counts[LATE + bisect_left(BOUNDS_MS, late_ms)] += 1


def count_buried(counts: list[int]) -> None:
    """Add a message that was buried by a worker that did not run it."""
    counts[BURIED] += 1
