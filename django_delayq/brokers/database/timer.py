"""Use rows as their own alarms: each process reads the rows of the next seconds, and sleeps until the first is due.

It writes nothing. A row that was read is only a hint, like every alarm: whether it is due is decided by its claim.
"""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from time import monotonic

from django.db import DatabaseError

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    ClaimRequest,
    Claims,
    MaintenanceResult,
    Pair,
    check_batch,
    earliest,
)
from django_delayq.brokers.database.notices import Listener, notify
from django_delayq.brokers.database.rows import PAIRS, look
from django_delayq.brokers.schedule import Schedule
from django_delayq.core.errors import DelayqError
from django_delayq.store.database import Database

WINDOW_MS = 5_000
"""How far ahead rows are read."""
LOOK_S, POLL_S = 2.0, 0.25
"""How often the rows are read: if commits notify this process of rows that are due soon, and if they don't."""
NOTICE_MS = 3_000
"""A commit notifies of rows that are due within this time. Rows that are due later are read in time anyway."""
ROWS = 5_000
"""The most rows that are read for all pairs at once. For more than a hundred pairs it is 50 for each."""


class _Known:
    """The rows of one (queue, key) that were read: when each is due, in ms of the monotonic clock."""

    def __init__(self) -> None:
        self.alarms: Schedule[str] = Schedule()
        self.lapsed: dict[str, int] = {}
        """The rows whose leases have run out, with their due times. They become alarms in `maintain`."""
        self.look_at_ms = 0
        self.is_full = False
        """Whether more rows than were read may be due within the window."""

    def looks_at_ms(self) -> float:
        """Return when to read the rows again: at once (0) if a full page is used up, because more may be due."""
        return 0 if self.is_full and not (self.alarms or self.lapsed) else self.look_at_ms

    def next_at_ms(self) -> float:
        """Return when the first row is due; infinity if there is none."""
        first = self.alarms.first()
        return math.inf if first is None else first

    def take(self, now_ms: int, most: int) -> list[str]:
        """Return at most `most` rows that are due, and forget them."""
        due = [pk for _, pk in self.alarms.due(now_ms, most)]
        for pk in due:
            self.alarms.drop(pk)
        return due


class DatabaseTimer:
    """The `Timer` (brokers/base.py) of a site without a server.

    Only one thread may call `take_due` and `wait`; any may call `schedule`, `drop` and `wake`.

    It has no window: it reads the rows, so no alarm is lost, and none is another store's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._known: defaultdict[Pair, _Known] = defaultdict(_Known)
        self._wanted: list[Pair] = []
        self._woken = False
        self._listener: Listener | None = None
        self.is_listening = False
        """Whether commits notify this process."""
        self._announced = 0
        self._ahead_ms = 0  # how far the database's clock was ahead of the monotonic one when rows were last read

    # Alarms

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        """Note rows that this process wrote, if it claims their pairs. Other processes read them from the table."""
        check_batch(alarms)
        with self._changed:
            now_ms = _now_ms()
            for alarm in alarms:
                pair = alarm.queue, alarm.key
                if pair in self._known and alarm.wait_ms <= WINDOW_MS:
                    self._known[pair].alarms.put_earlier(alarm.pk, _after(now_ms, alarm.wait_ms))
            self._changed.notify_all()

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)  # no need to drop them: they were forgotten when they were taken
        self.schedule(rearm)

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        counts: Counter[Pair] = Counter()
        for request in requests:
            if request.count > 0:
                counts[request.queue, request.key] += request.count
        self.listen()
        self._look_due(counts)
        with self._changed:
            now_ms = _now_ms()
            alarms: list[Alarm] = []
            self._wanted = []
            for pair, count in counts.items():
                taken = self._known[pair].take(now_ms, min(count, BATCH - len(alarms)))
                alarms += [Alarm(*pair, pk) for pk in taken]
                if len(taken) < count:
                    self._wanted.append(pair)  # a pair that got all that it asked for is not waited for
            next_at_ms = earliest(*(self._known[pair].alarms.first() for pair in counts))
            left = next_at_ms is not None and next_at_ms <= now_ms
            next_due_ms = None if next_at_ms is None else next_at_ms + self._ahead_ms
            return Claims([], alarms, now_ms + self._ahead_ms, next_due_ms, left)

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        self._look_due(pairs)
        with self._changed:
            now_ms = _now_ms()
            return [pair for pair in pairs if self._known[pair].next_at_ms() <= now_ms]

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        self._look_due(list(self._known))
        lapsed = 0
        with self._changed:
            for known in self._known.values():
                for pk in list(known.lapsed)[: BATCH - lapsed]:
                    known.alarms.put_earlier(pk, known.lapsed.pop(pk))
                    lapsed += 1
            return MaintenanceResult(_now_ms() + self._ahead_ms, lapsed)

    # Sleep

    def wait(self, timeout: float) -> bool:
        until_ms = _now_ms() + math.ceil(timeout * 1000)
        heard = self.pause_version
        while True:
            with self._changed:
                if self._must_wake(heard):
                    self._woken = False
                    return True
                next_ms = min([until_ms, *(self._known[pair].looks_at_ms() for pair in self._wanted)])
                next_ms = min([next_ms, *(self._known[pair].next_at_ms() for pair in self._wanted)])
                if (rest_ms := next_ms - _now_ms()) > 0:
                    self._changed.wait(rest_ms / 1000)
                    continue
            if _now_ms() >= until_ms:
                return False
            try:
                self._look_due(self._wanted)
            except (DelayqError, DatabaseError):
                return True  # the next claim raises it

    def _must_wake(self, heard: int) -> bool:
        now_ms = _now_ms()
        is_due = any(self._known[pair].next_at_ms() <= now_ms for pair in self._wanted)
        return is_due or self._woken or self.pause_version != heard

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget all rows, so that they are read again."""
        with self._changed:
            self._known = defaultdict(_Known, {pair: _Known() for pair in self._known})

    def close(self) -> None:
        """Stop listening, and end a running `wait`. The timer can be used again."""
        with self._changed:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.forget()
        self.wake()

    # Pauses

    @property
    def pause_version(self) -> int:
        """Return a number that grows with each notice of pauses; without notices, also with each second."""
        return self._announced if self.is_listening else self._announced + int(monotonic())

    def announce_pauses(self) -> None:
        self.hear(None)
        if self._database.notice:
            notify(self._database, self._database.alias)

    # Notices

    def listen(self) -> None:
        """Begin to listen for notices of commits, unless the database can't send any."""
        with self._changed:
            if self._listener is None and self._database.notice:
                self._listener = Listener(self._database, self.hear, self.note_listening)
                self._listener.start()

    def hear(self, pair: Pair | None) -> None:
        """Read the rows of a pair again at its next use; for None, note that pauses have changed."""
        with self._changed:
            if pair is None:
                self._announced += 1
            elif pair in self._known:
                self._known[pair].look_at_ms = 0
            self._changed.notify_all()

    def note_listening(self, is_listening: bool) -> None:
        """Note whether notices arrive. Read all rows again at their next use, because notices may have been missed."""
        with self._changed:
            self._announced += 1 + (int(monotonic()) if is_listening else 0)
            self.is_listening = is_listening
            for known in self._known.values():
                known.look_at_ms = 0
            self._changed.notify_all()

    # Reading rows

    def _look_due(self, pairs: Iterable[Pair]) -> None:
        """Read the rows of those pairs whose rows have not been read for long enough."""
        with self._changed:
            now_ms = _now_ms()
            asked = [pair for pair in pairs if self._known[pair].looks_at_ms() <= now_ms]
            before = {pair: {pk for _, pk in self._known[pair].alarms} for pair in asked}
            rest_s = LOOK_S if self.is_listening else POLL_S
            for pair in asked:  # set before reading, because a notice that comes meanwhile makes it earlier
                self._known[pair].look_at_ms = now_ms + int(rest_s * 1000)
        if not asked:
            return
        most = max(min(ROWS // len(asked), BATCH), PAIRS)
        try:
            with self._database.available():
                clock_ms, rows = look(self._database, asked, WINDOW_MS, most)
        except Exception:
            for pair in asked:
                self.hear(pair)
            raise
        with self._changed:
            told_ms = _now_ms()
            self._ahead_ms = clock_ms - told_ms
            for pair in asked:
                known = self._known[pair]
                found = rows.get(pair, [])
                for pk in before[pair]:  # alarms that were scheduled meanwhile stay
                    known.alarms.drop(pk)
                known.lapsed = {}
                for due_ms, row, has_lapsed in found:
                    at_ms = _after(told_ms, due_ms - clock_ms)
                    if has_lapsed:
                        known.lapsed[str(row)] = at_ms
                    else:
                        known.alarms.put_earlier(str(row), at_ms)
                known.is_full = len(found) >= most


def _now_ms() -> int:
    return int(monotonic() * 1000)


def _after(now_ms: int, wait_ms: int) -> int:
    """Return when a wait ends. It is up to 1 ms late, never early: a row that is not due would be claimed in vain."""
    return now_ms + wait_ms + (wait_ms > 0)
