"""Keep messages and alarms in places. Each message is in exactly one. No code here knows a clock or the broker."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import merge

from django_delayq.brokers.base import CancelRequest, Header, earliest
from django_delayq.brokers.schedule import Schedule
from django_delayq.core.kept import Kept
from django_delayq.core.transitions import SUSPECT_CRASHES

SetName = tuple[str, str]  # queue, key
AlarmName = tuple[str, str, str]  # queue, key, pk


@dataclass(slots=True)
class Entry:
    """One message. While `token` is not 0, the worker `holder` has leased it.

    `first_ms` is when it was sent first, if a send has replaced it since. `again` is kept until its run ends.
    """

    id: str
    header: Header
    body: bytes
    due_ms: int = 0
    failures: int = 0
    crashes: int = 0
    error: str = ""
    token: int = 0
    holder: str = ""
    interrupted: bool = False
    first_ms: int | None = None
    merged: int = 0
    again: Kept | None = None
    cancel_request: CancelRequest | None = None
    progress: str = ""

    @property
    def set_name(self) -> SetName:
        return self.header.queue, self.header.key


@dataclass(slots=True)
class Buried:
    """One buried message."""

    entry: Entry
    buried_ms: int
    detail: str


@dataclass(slots=True)
class Places:
    """Each message and alarm in its place (waiting, suspect, running, buried), and totals of all messages so far."""

    entries: dict[str, Entry] = field(default_factory=dict)  # all that wait or run
    waiting: defaultdict[SetName, Schedule[str]] = field(default_factory=lambda: defaultdict(Schedule[str]))
    suspects: Schedule[str] = field(default_factory=Schedule)
    running: Schedule[str] = field(default_factory=Schedule)
    buried: dict[tuple[str, int], Buried] = field(default_factory=dict)  # by id and last token, oldest first
    alarms: defaultdict[SetName, Schedule[str]] = field(default_factory=lambda: defaultdict(Schedule[str]))
    running_alarms: Schedule[AlarmName] = field(default_factory=Schedule)
    totals: Counter[str] = field(default_factory=Counter)

    def put_waiting(self, entry: Entry, due_ms: int) -> None:
        """Move the message to the waiting ones, or to the suspects if it is one. It is due at `due_ms`."""
        self.take_out(entry)
        entry.due_ms = due_ms
        self.entries[entry.id] = entry
        if entry.crashes >= SUSPECT_CRASHES:
            self.suspects.put(entry.id, due_ms)
        else:
            self.waiting[entry.set_name].put(entry.id, due_ms)

    def put_running(self, entry: Entry, token: int, holder: str, lease_end_ms: int) -> None:
        """Move the message to the running ones, with a lease."""
        self.take_out(entry)
        entry.token = token
        entry.holder = holder
        self.entries[entry.id] = entry
        self.running.put(entry.id, lease_end_ms)

    def put_buried(self, entry: Entry, buried_ms: int, error: str, detail: str) -> None:
        """Move the message to the buried ones, so that its id is free again."""
        token = entry.token
        self.take_out(entry)
        entry.error = error
        self.buried[entry.id, token] = Buried(entry, buried_ms, detail)

    def take_out(self, entry: Entry) -> None:
        """Remove the message from its place, and end its lease."""
        self.entries.pop(entry.id, None)
        self.waiting[entry.set_name].drop(entry.id)
        self.suspects.drop(entry.id)
        self.running.drop(entry.id)
        entry.token = 0
        entry.holder = ""
        entry.interrupted = False
        entry.cancel_request = None
        entry.progress = ""

    def find_waiting(self, id: str) -> Entry | None:
        entry = self.entries.get(id)
        return entry if entry and not entry.token else None

    def find_held(self, id: str, token: int) -> Entry | None:
        entry = self.entries.get(id)
        return entry if entry and token and entry.token == token else None

    def find_buried(self, id: str) -> list[tuple[str, int]]:
        """Return the keys in `buried` of the messages with this id, oldest first."""
        return [name for name in self.buried if name[0] == id]

    def due(self, name: SetName, now_ms: int, most: int) -> list[tuple[int, str, bool]]:
        """Return at most `most` due messages and alarms of a set, earliest first: (due time, id or pk, is an alarm)."""
        messages = ((due, id, False) for due, id in self.waiting[name].due(now_ms, most))
        alarms = ((due, pk, True) for due, pk in self.alarms[name].due(now_ms, most))
        return list(merge(messages, alarms))[: max(most, 0)]

    def next_due(self, name: SetName) -> int | None:
        """Return the earliest due time of a set; None if it is empty."""
        return earliest(self.waiting[name].first(), self.alarms[name].first())
