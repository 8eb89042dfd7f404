"""Use rows as their own alarms: each process reads the due times of the next seconds, and sleeps until the first.

This is the timer of the database alone, and of every store while its broker is away.

It writes nothing. A due time that was read is only a hint, like every alarm: once it has come, the pair is claimed from
the table, and there each row goes to one claim.

Workers take turns: each has its *shift* of time, and claims at once what falls due in it. When its own next shift
begins, it looks for what fell due in the shifts of others: that is claimed already, unless they are busy or dead.
"""

import math
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic

from django.db import DatabaseError

from django_delayq.brokers.base import (
    BATCH,
    Alarm,
    ClaimRequest,
    Claims,
    MaintenanceResult,
    Pair,
    WorkerInfo,
    check_batch,
)
from django_delayq.core.errors import DelayqError
from django_delayq.core.lanes import serves
from django_delayq.store.database import Database
from django_delayq.store.due_times import Found, read_due_times
from django_delayq.store.notices import AT_ONCE, AT_ONCE_MS, PAUSES, SOON, WORKERS, Listener, notify

WINDOW_MS = 5_000
"""How far ahead due times are read."""
LOOK_S, POLL_S, LOOK_REST_FACTOR = 2.0, 0.25, 4
"""The seconds between two looks at due times: `LOOK_S` if commits notify this process, else `POLL_S`.

After a slow look, the gap is `LOOK_REST_FACTOR` times its length. While another session keeps a transaction open, a
look reads the index entries of all rows that have ended since that transaction began.
"""
NOTICE_MS = 3_000
"""A commit notifies of rows that are due within this time. Rows that are due later are read in time anyway."""
ROWS, LEAST_ROWS = 5_000, 50
"""The most rows that one look reads, divided among the pairs; but each pair gets at least `LEAST_ROWS` of them."""
SHIFT_MS, GRACE_MS = 100, 20
"""The length of a shift. For at least `GRACE_MS` after a due time, only the worker whose shift it is claims the row."""
LEFT_MS = 200
"""If a look finds a row due for this long, the worker of its shift is busy or dead: until the next look all help."""
KNOWN_MS = 10_000
"""How long the list of live workers is used before it is read again, if notices tell of workers that come and go."""


class _Known:
    """What is known of one (queue, key): when something falls due, in order, and which leases end soon or have ended.

    All times are in ms of the monotonic clock.
    """

    def __init__(self) -> None:
        self.times: list[int] = []
        """The times at which something is due."""
        self.leased: dict[str, int] = {}
        """The rows whose leases end soon, each with its end. A worker that is alive renews before then."""
        self.lapsed: dict[str, int] = {}
        """The rows whose leases `maintain` saw end, each with its end. The next `take` returns them."""
        self.look_at_ms: float = 0
        self.reads_to_ms = math.inf
        """The last due time that was read, if more rows than were read may be due within the window."""
        self.is_left = False
        """Whether workers had left rows of their shifts unclaimed at the last look."""

    def looks_at_ms(self) -> float:
        """Return when to read the due times again: at `look_at_ms`, or at `reads_to_ms` if that is earlier."""
        return min(self.look_at_ms, self.reads_to_ms)

    def add(self, time_ms: int) -> None:
        """Note that something is due at that time."""
        at = bisect_right(self.times, time_ms)
        if not at or self.times[at - 1] != time_ms:
            self.times.insert(at, time_ms)

    def first_ms(self) -> int | None:
        """Return the first time at which something is due; None if nothing is known to be."""
        return min([*self.times[:1], *self.lapsed.values()], default=None)

    def end_leases(self, now_ms: int, most: int) -> int:
        """Let the rows whose leases have ended be claimed, `most` at most, and return how many."""
        ended = [pk for pk, end_ms in self.leased.items() if end_ms <= now_ms][:most]
        for pk in ended:
            self.lapsed[pk] = self.leased.pop(pk)
        return len(ended)

    def take(self, now_ms: int, most: int) -> list[str]:
        """Forget the due times up to now, and return the pks of rows whose leases have ended, `most` at most."""
        del self.times[: bisect_right(self.times, now_ms)]
        lapsed = list(self.lapsed)[:most]
        for pk in lapsed:
            del self.lapsed[pk]
        return lapsed


class DatabaseTimer:
    """The `Timer` (brokers/base.py) that reads the rows: with the database alone, and in degraded mode.

    Only one thread may call `take_due` and `wait`; any may call `schedule`, `drop` and `wake`.

    It has no window, because the rows are its alarms. So no alarm is lost, and none is another store's.
    """

    def __init__(self, database: Database, read_workers: Callable[[], list[WorkerInfo]] = list) -> None:
        self._database = database
        self._read_workers = read_workers
        self._changed = threading.Condition()
        self._known: defaultdict[Pair, _Known] = defaultdict(_Known)
        self._wanted: list[Pair] = []
        self._woken = False
        self._listener: Listener | None = None
        self.is_listening = False
        """Whether commits notify this process."""
        self._announced = 0
        self._ahead_ms = 0  # by how much the database's clock was ahead of the monotonic one at the last look
        self._name = ""
        self._workers: Sequence[WorkerInfo] = ()
        self._workers_known_until_ms = 0
        self._has_stale_workers = False

    # Alarms

    def schedule(self, alarms: Sequence[Alarm], *, within_s: float = 2.0) -> None:
        """Note rows that this process wrote, if it claims their pairs. Other processes read them from the table."""
        check_batch(alarms)
        with self._changed:
            now_ms = _now_ms()
            for alarm in alarms:
                pair = alarm.queue, alarm.key
                if pair in self._known and alarm.wait_ms <= WINDOW_MS:
                    self._known[pair].add(_after(now_ms, alarm.wait_ms))
            self._changed.notify_all()

    def drop(self, alarms: Sequence[Alarm], rearm: Sequence[Alarm] = ()) -> None:
        check_batch(alarms)  # no need to drop them: they were forgotten when they were taken
        self.schedule(rearm)

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        """Return in `due` the pairs to claim from the table, and as alarms the rows whose leases have ended."""
        self._name = worker
        counts: Counter[Pair] = Counter()
        for request in requests:
            counts[request.pair] += request.count
        pairs = [pair for pair, count in counts.items() if count > 0]
        self.listen()
        self._look_due(pairs, lease_ms)
        with self._changed:
            now_ms = _now_ms()
            self._wanted = pairs
            due = [pair for pair in pairs if self._wakes_at_ms(pair) <= now_ms]
            alarms: list[Alarm] = []
            since: dict[Pair, int] = {}
            for pair in due:
                since[pair] = min([*self._known[pair].times[:1], now_ms]) + self._ahead_ms
                most = min(counts[pair], BATCH - len(alarms))
                alarms += [Alarm(*pair, pk) for pk in self._known[pair].take(now_ms, most)]
            next_ms = min((self._wakes_at_ms(pair) for pair in pairs), default=math.inf)
            next_due_ms = None if next_ms == math.inf else int(next_ms) + self._ahead_ms
            return Claims([], alarms, now_ms + self._ahead_ms, next_due_ms, due=since)

    def due_pairs(self, pairs: Collection[Pair]) -> Collection[Pair]:
        self._look_due(pairs)
        with self._changed:
            now_ms = _now_ms()
            return [pair for pair in pairs if self._wakes_at_ms(pair) <= now_ms]

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Have the next claim take rows whose leases have ended.

        If a worker has come or gone, also read which workers share the shifts.
        """
        if self._has_stale_workers:
            self._has_stale_workers = False
            self.note_workers(self._read_workers())
        self._look_due(list(self._known), lease_ms)
        with self._changed:
            now_ms = _now_ms()
            result = MaintenanceResult(now_ms + self._ahead_ms)
            for known in self._known.values():
                result.reclaimed += known.end_leases(now_ms, BATCH - result.reclaimed)
            ends = [end_ms for known in self._known.values() for end_ms in known.leased.values()]
            result.next_lease_end_ms = min(ends) + self._ahead_ms if ends else None
            return result

    # Shifts

    def note_workers(self, workers: Sequence[WorkerInfo]) -> None:
        """Note which workers are alive: those that serve a pair share its shifts."""
        self._workers = sorted(workers, key=lambda each: each.name)
        self._workers_known_until_ms = _now_ms() + KNOWN_MS

    def known_workers(self) -> list[WorkerInfo] | None:
        """Return the live workers if they were read lately and no notice told of a change since; else None."""
        is_known = self.is_listening and not self._has_stale_workers and _now_ms() < self._workers_known_until_ms
        return list(self._workers) if is_known else None

    def _wakes_at_ms(self, pair: Pair) -> float:
        """Return when to claim a pair: when its first row falls due, if that is in this worker's shift.

        If it is in another worker's shift, return when this worker's next one begins; but at most `GRACE_MS` after the
        due time, if the last look found rows that workers had left unclaimed. If nothing is known to fall due, return
        infinity.
        """
        known = self._known[pair]
        first_ms = known.first_ms()
        if first_ms is None:
            return math.inf
        wakes_at_ms = self._in_own_shift(pair, first_ms)
        return min(wakes_at_ms, first_ms + GRACE_MS) if known.is_left else wakes_at_ms

    def _in_own_shift(self, pair: Pair, first_ms: int) -> int:
        """Return `first_ms` if it is in this worker's shift of the pair, else when this worker's next shift begins.

        In the second case, return a time at least `GRACE_MS` after `first_ms`. If this worker is not known to share
        the pair with others, every time is in its shift.
        """
        names = [one.name for one in self._workers if pair[1] in one.keys and serves(one.queues, pair[0])]
        if len(names) < 2 or self._name not in names:
            return first_ms
        shift_number, into_ms = divmod(first_ms + self._ahead_ms, SHIFT_MS)
        shifts = (names.index(self._name) - shift_number) % len(names)
        return max(first_ms - into_ms + shifts * SHIFT_MS, first_ms + GRACE_MS) if shifts else first_ms

    # Sleep

    def wait(self, timeout: float) -> bool:
        until_ms = _now_ms() + math.ceil(timeout * 1000)
        heard = self.pause_version
        while True:
            with self._changed:
                now_ms = _now_ms()
                wakes_at_ms = min(map(self._wakes_at_ms, self._wanted), default=math.inf)
                if wakes_at_ms <= now_ms or self._woken or self.pause_version != heard:
                    self._woken = False
                    return True
                looks_at_ms = min((self._known[pair].looks_at_ms() for pair in self._wanted), default=math.inf)
                if (rest_ms := min(until_ms, wakes_at_ms, looks_at_ms) - now_ms) > 0:
                    self._changed.wait(rest_ms / 1000)
                    continue
            if _now_ms() >= until_ms:
                return False
            try:
                self._look_due(self._wanted)
            except (DelayqError, DatabaseError):
                return True  # the next claim raises it

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget all times, so that they are read again."""
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
        """Tell all processes that pauses have changed. See `Heartbeats`."""
        self.hear_pauses()
        if self._database.notice:
            notify(self._database, PAUSES)

    # Notices

    def announce_workers(self) -> None:
        """Have all workers read which workers are alive.

        Where no notice can be sent, each reads that with its next heartbeat.
        """
        if self._database.notice:
            notify(self._database, WORKERS)

    def listen(self) -> None:
        """Begin to listen for notices of commits, unless the database can't send any."""
        with self._changed:
            if self._listener is None and self._database.notice:
                self._listener = Listener(self._database, self.hear, self.note_listening)
                self._listener.start()

    def hear(self, about: Sequence[str]) -> None:
        """Take in one notice: of a row that is due, or of a change of the pauses or the workers."""
        match about:
            case [queue, key, due_ms]:
                self.hear_row((queue, key), int(due_ms))
            case [what] if what == PAUSES:
                self.hear_pauses()
            case [what] if what == WORKERS:
                self._has_stale_workers = True

    def hear_row(self, pair: Pair, due_ms: int) -> None:
        """Note that a row of a pair falls due at `due_ms`, or that many rows of it are due `AT_ONCE` or `SOON`.

        Rows that are due at once are claimed without a look. Rows that are due soon are read by all workers in turn,
        each in its own shift, because the notice doesn't say when each of them is due.
        """
        with self._changed:
            known = self._known.get(pair)
            if known is None:
                return
            now_ms = _now_ms()
            if due_ms == SOON:
                known.look_at_ms = min(known.look_at_ms, self._in_own_shift(pair, now_ms))
            elif due_ms == AT_ONCE:
                known.add(now_ms + AT_ONCE_MS)
            else:
                known.add(max(due_ms - self._ahead_ms, now_ms))
            self._changed.notify_all()

    def hear_pauses(self) -> None:
        """Note that pauses have changed."""
        with self._changed:
            self._announced += 1
            self._changed.notify_all()

    def note_listening(self, is_listening: bool) -> None:
        """Note whether notices arrive. Read all rows again at their next use, because notices may have been missed."""
        with self._changed:
            self._announced += 1 + (int(monotonic()) if is_listening else 0)
            self.is_listening, self._has_stale_workers = is_listening, True
            self._read_again(self._known)
            self._changed.notify_all()

    # Reading rows

    def _read_again(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self._known[pair].look_at_ms = 0

    def _look_due(self, pairs: Iterable[Pair], lease_ms: int = 0) -> None:
        """Read the due times of the pairs whose time to be read again (`looks_at_ms`) has come."""
        with self._changed:
            now_ms = _now_ms()
            asked = [pair for pair in pairs if self._known[pair].looks_at_ms() <= now_ms]
            before = {pair: list(self._known[pair].times) for pair in asked}
            rest_ms = int((LOOK_S if self.is_listening else POLL_S) * 1000)
            for pair in asked:  # set before reading, because a notice that comes meanwhile makes it earlier
                self._known[pair].look_at_ms, self._known[pair].reads_to_ms = now_ms + rest_ms, math.inf
        if not asked:
            return
        most = max(min(ROWS // len(asked), BATCH), LEAST_ROWS)
        try:
            with self._database.available():
                clock_ms, rows = read_due_times(self._database, asked, WINDOW_MS, min(rest_ms, lease_ms // 3), most)
        except Exception:
            with self._changed:
                self._read_again(asked)
            raise
        with self._changed:
            told_ms = _now_ms()
            self._ahead_ms = clock_ms - told_ms
            long_rest_ms = (told_ms - now_ms) * LOOK_REST_FACTOR
            for pair in asked:
                if long_rest_ms > rest_ms:
                    self._known[pair].look_at_ms = told_ms + long_rest_ms
                self._take_in(self._known[pair], before[pair], rows.get(pair, []), told_ms, most)

    def _take_in(self, known: _Known, before: Collection[int], found: Sequence[Found], told_ms: int, most: int) -> None:
        """Replace the due times that were known before the look with the ones that it found.

        Keep what was scheduled meanwhile.
        """
        known.times = sorted(set(known.times).difference(before))
        known.leased = {}
        known.is_left = False
        for at_ms, pk, is_leased in found:
            time_ms = _after(told_ms, at_ms - self._ahead_ms - told_ms)
            if is_leased and str(pk) not in known.lapsed:
                known.leased[str(pk)] = time_ms
            elif is_leased:
                continue
            else:
                known.add(time_ms)
                known.is_left |= time_ms < told_ms - LEFT_MS
        if len(found) >= most:
            known.reads_to_ms = max(known.times, default=known.look_at_ms)


def _now_ms() -> int:
    return int(monotonic() * 1000)


def _after(now_ms: int, wait_ms: int) -> int:
    """Return when a wait ends, up to 1 ms late.

    It is never early, because a claim of a row that is not due is in vain.
    """
    return now_ms + wait_ms + (wait_ms > 0)
