"""The values of queries, maintenance, heartbeats and pauses. Times are epoch milliseconds."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from django_delayq.core.message import State
from django_delayq.core.requests import BuriedInfo, Header, Pair
from django_delayq.support.texts import text as _
from django_delayq.support.validation import check_name, check_queue

TOTALS = (
    "sent",
    "finished",
    "cancelled",
    "purged",
    "dropped",
    "retried",
    "snoozed",
    "released",
    "reclaimed",
    "buried",
    "rescued",
)
"""The totals that are counted over all time, by transition."""

LEFT = ("finished", "cancelled", "purged", "dropped")
"""The totals of messages that are in no place any more: sent = those in a place + these."""


@dataclass(slots=True)
class Info:
    """One message as the broker sees it now.

    `holder` (the worker's name) and `lease_end_ms` are set while it runs, `buried_ms` and `detail` once it is buried.
    """

    id: str
    state: State
    due_ms: int
    header: Header
    body: bytes
    failures: int = 0
    crashes: int = 0
    error: str = ""
    detail: str = ""
    holder: str = ""
    lease_end_ms: int | None = None
    buried_ms: int | None = None
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class AlarmInfo:
    """One alarm as the broker sees it now.

    `due_ms` is set while it waits, `lease_end_ms` while it is leased. Both are set if it was scheduled again while it
    was leased. `now_ms` is the broker's time at the look, if the look was for single pks.
    """

    pk: str
    due_ms: int | None = None
    lease_end_ms: int | None = None
    now_ms: int | None = None


@dataclass(slots=True)
class SetCount:
    """The messages and alarms that wait for one (queue, key). `…_capped`: there may be more than were counted."""

    queue: str
    key: str
    pending: int
    ready: int
    next_due_ms: int | None
    pending_capped: bool = False
    ready_capped: bool = False

    @property
    def pair(self) -> Pair:
        """Return its queue and key."""
        return self.queue, self.key


@dataclass(slots=True)
class Counts:
    """All figures at once. Alarms count among what waits and runs; the totals are of messages only."""

    now_ms: int
    waiting: list[SetCount]
    running: int
    suspects: int
    error: int
    totals: dict[str, int] = field(default_factory=dict)  # sent, finished, cancelled, purged, dropped, retried, …


@dataclass(slots=True)
class MaintenanceResult:
    """The result of one `maintain`. `dropped` counts errors; `orphans` are ids whose leases had no message."""

    now_ms: int
    reclaimed: int = 0
    buried: list[BuriedInfo] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    dropped: int = 0
    suspects_due: int = 0
    next_lease_end_ms: int | None = None
    lost_record: str = ""  # why what the broker held may be gone (restarted, flushed); empty when nothing happened
    away: str = ""  # why a part of the broker could not be asked, or takes nothing new; the others were, and do


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A running handler, and when it started."""

    id: str
    queue: str
    key: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Slots of a worker that are alike: threads, child processes or tasks.

    `most` run at once, and of each key at most as many as `keys` says.
    """

    most: int
    keys: dict[str, int]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that another one can look for: its number and its start, as they count on its `host`."""

    host: str
    pid: int
    started: int


@dataclass(slots=True)
class WorkerInfo:
    """A worker's heartbeat. `seen_ms` is set by the broker.

    `runs` are the oldest of its running messages; `running` counts all that it holds. `processes` are its own process
    and its supervisor's, if it has one: once all of them are gone, nobody ends its leases. It is empty where the system
    can't tell, and in the heartbeat of an older version.
    """

    name: str
    queues: list[str]
    keys: list[str]
    running: int
    started_ms: int
    seen_ms: int = 0
    runs: list[RunInfo] = field(default_factory=list)
    executors: list[ExecutorInfo] = field(default_factory=list)
    processes: list[ProcessInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The result of one `take_over`: the messages that were buried, and whether to call again for leases `left`."""

    buried: list[BuriedInfo] = field(default_factory=list)
    left: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue, a key in every queue (`queue` is None), or a key in one queue, of which workers start nothing.

    It lasts until `until_ms`, or else until it is resumed. `paused_ms` is set by the broker. Raises `TypeError` or
    `ValueError` for names that no queue or key can have.
    """

    queue: str | None
    key: str | None
    reason: str
    until_ms: int | None = None
    paused_ms: int = 0

    def __post_init__(self) -> None:
        if self.queue is None and self.key is None:
            raise ValueError(_("queue=None and key=None name nothing to pause; give one of them, or both."))
        if self.queue is not None:
            check_queue(self.queue)
        if self.key is not None:
            check_name(self.key, "key")
        check_name(self.reason, "reason")

    @property
    def names(self) -> str:
        """Return in words what is paused."""
        return in_words(self.queue, self.key)

    def holds(self, now_ms: int) -> bool:
        """Return whether the pause is in force."""
        return self.until_ms is None or self.until_ms > now_ms


def in_words(queue: str | None, key: str | None) -> str:
    """Return in words a queue, a key in every queue, or a key in one queue."""
    if key is None:
        return _("queue %(queue)r", queue=queue)
    if queue is None:
        return _("key %(key)r", key=key)
    return _("key %(key)r in queue %(queue)r", key=key, queue=queue)


def covering(pauses: Iterable[Pause], queue: str, key: str) -> list[Pause]:
    """Return the pauses that apply to messages of this queue and key."""
    return [pause for pause in pauses if pause.queue in (None, queue) and pause.key in (None, key)]


@dataclass(slots=True)
class Audit:
    """The totals compared with the sets: `differences` is empty when each message is in exactly one place.

    `notes` tell of oddities that are allowed, but good to know.
    """

    totals: dict[str, int]
    places: dict[str, int]  # pending, ready, running, error
    differences: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ServerReport:
    """A broker's report for a worker's start: one line on durability, warnings, and problems that forbid starting.

    `now_ms` is the server's clock, None for a timer without one.
    """

    server: str
    durability: str
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    now_ms: int | None = None
