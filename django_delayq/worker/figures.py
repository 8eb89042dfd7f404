"""Count how attempts end, and write the counts to the store: a row a minute for each queue and key."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from random import random
from secrets import randbits
from time import monotonic

from django.db import connections

from django_delayq.brokers.base import BuriedInfo, Transition
from django_delayq.core.figures import COUNTS, MINUTE_MS, count, count_buried, is_counted
from django_delayq.models import FigureRow
from django_delayq.store import figures
from django_delayq.store.database import Database
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import wall_clock_ms
from django_delayq.worker.outage_log import OutageLog
from django_delayq.worker.prefetch import Lease

SPREAD_S = 2.0
"""Workers write within this time after the end of a minute, not all at once."""
ROLL_UP_EVERY_S = 600.0
MOST_UNWRITTEN = 10_000
"""The most rows that are kept while the database is away; the oldest go first."""

_Place = tuple[int, str, str]
"""A minute in epoch ms, a queue and a key."""


class FigureWriter:
    """Counts in the threads that end attempts, and writes in one of its own, once the minute is over.

    A process that is killed loses what it has not written: about a minute. What the database does not take is written
    with the next minute. The primary keys are drawn here, so a row that was written after all, though the answer was
    lost, is not written twice.
    """

    def __init__(self, database: Database, worker: str, outage_log: OutageLog) -> None:
        self._database = database
        self._worker = worker
        self._outage_log = outage_log
        self._lock = threading.Lock()  # taken once for each batch of ends, never for a message
        self._counts: dict[_Place, list[int]] = defaultdict(partial(list[int], [0] * len(COUNTS)))
        self._clock_ms = wall_clock_ms() - monotonic() * 1000
        self._unwritten: list[FigureRow] = []
        self._roll_up_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_forever, name="delayq-figures", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Write what is counted, for at most `timeout` seconds, and end the thread."""
        self._closed.set()
        self._thread.join(timeout)

    def count(self, ended: Sequence[tuple[Lease, Transition]]) -> None:
        """Count the ends of leases that took effect, each in the minute in which its attempt ended."""
        with self._lock:
            counts = self._counts
            for lease, transition in ended:
                if is_counted(transition):
                    at_ms = lease.now_ms() if transition.ended_ms is None else transition.ended_ms
                    place = at_ms - at_ms % MINUTE_MS, transition.queue, transition.key
                    count(counts[place], transition, lease.claimed.due_ms)
            if ended:
                self._clock_ms = ended[-1][0].clock_ms

    def count_buried(self, buried: Iterable[BuriedInfo]) -> None:
        """Count messages that were buried without a start."""
        with self._lock:
            for info in buried:
                if info.key:
                    count_buried(self._counts[self._minute_ms(), info.queue, info.key])

    def write(self, before_ms: int | None = None) -> None:
        """Write what was counted in the minutes before this one, None for all. What is refused is kept."""
        self._unwritten += self._take(before_ms)
        if not self._unwritten:
            return
        try:
            with self._database.available():
                figures.write(self._database, self._unwritten)
                self._unwritten.clear()
                self._roll_up_due()
        except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
            self._outage_log.begin("figures", error)
            if len(self._unwritten) > MOST_UNWRITTEN:
                logger.warning("%d row(s) of figures are dropped.", len(self._unwritten) - MOST_UNWRITTEN)
                del self._unwritten[:-MOST_UNWRITTEN]
        else:
            self._outage_log.end("figures")

    def _write_forever(self) -> None:
        while not self._closed.wait(self._left_s()):
            self._write_and_close(self._minute_ms())
        self._write_and_close(None)

    def _write_and_close(self, before_ms: int | None) -> None:
        try:
            self.write(before_ms)
        finally:
            connections.close_all()  # for the rest of the minute it would be idle

    def _left_s(self) -> float:
        return (MINUTE_MS - self._now_ms() % MINUTE_MS) / 1000 + random() * SPREAD_S

    def _minute_ms(self) -> int:
        now_ms = self._now_ms()
        return now_ms - now_ms % MINUTE_MS

    def _now_ms(self) -> int:
        """Return the time of the authoritative clock, as the last lease had it."""
        return int(self._clock_ms + monotonic() * 1000)

    def _take(self, before_ms: int | None) -> list[FigureRow]:
        with self._lock:
            over = [place for place in self._counts if before_ms is None or place[0] < before_ms]
            taken = [(place, self._counts.pop(place)) for place in over]
        return [
            FigureRow(
                id=randbits(63),
                alias=self._database.alias,
                period=FigureRow.Period.MINUTE,
                at=at_ms,
                queue=queue,
                key=key,
                worker=self._worker,
                **dict(zip(COUNTS, counts, strict=True)),
            )
            for (at_ms, queue, key), counts in taken
        ]

    def _roll_up_due(self) -> None:
        """Roll up a page, and prune a page, now and then, on any worker: two that do so at once share the rows."""
        if monotonic() >= self._roll_up_at:
            now_ms = self._database.now_ms()
            pages = figures.roll_up(self._database, now_ms), figures.prune(self._database, now_ms)
            self._roll_up_at = 0.0 if any(pages) else monotonic() + ROLL_UP_EVERY_S
