"""What a message carries beside its data, and what looking in gives. Times are epoch milliseconds."""

from dataclasses import dataclass, field

from django_delayq.message import State

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
"""What is counted over all time, by move."""

LEFT = ("finished", "cancelled", "purged", "dropped")
"""The totals of what is in no place any more: sent = what is in a place + these."""


@dataclass(slots=True)
class Header:
    """What travels with the data, and says how to treat it. `None` leaves it to the handler."""

    queue: str
    key: str
    at_most_once: bool = False
    expires_ms: int | None = None  # a length: the message expires that long after `scheduled_ms`
    max_attempts: int | None = None
    timeout_ms: int | None = None
    tag: str | None = None
    trace_id: str | None = None
    sent_ms: int = 0  # set by the broker when it takes the message
    scheduled_ms: int = 0  # the due time as sent or rescheduled, before any retry

    @property
    def expires_at_ms(self) -> int | None:
        """The instant from which the message must not start."""
        return None if self.expires_ms is None else self.scheduled_ms + self.expires_ms


@dataclass(slots=True)
class Info:
    """One message as the broker sees it now. `holder` and `lease_end_ms` while it runs, `detail` when buried."""

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
    """One alarm as the broker sees it now. It waits, runs, or, put again while it runs, does both."""

    pk: str
    due_ms: int | None = None
    lease_end_ms: int | None = None


@dataclass(slots=True)
class SetCount:
    """What waits for one (queue, key), alarms too."""

    queue: str
    key: str
    pending: int
    ready: int
    next_due_ms: int | None


@dataclass(slots=True)
class Counts:
    """Every figure in one look. Alarms count among what waits and runs; the totals are of messages only."""

    now_ms: int
    waiting: list[SetCount]
    running: int
    suspects: int
    error: int
    totals: dict[str, int] = field(default_factory=dict)  # sent, finished, cancelled, purged, dropped, retried, …


@dataclass(slots=True)
class WorkerInfo:
    """A worker's heartbeat. `seen_ms` is set by the broker."""

    name: str
    queues: list[str]
    keys: list[str]
    running: int
    started_ms: int
    seen_ms: int = 0


@dataclass(slots=True)
class Audit:
    """The totals held against the sets: `differences` is empty when each message is in exactly one place."""

    totals: dict[str, int]
    places: dict[str, int]  # pending, ready, running, error
    differences: list[str]


@dataclass(slots=True)
class ServerReport:
    """What the worker says at start: one line on durability, warnings, and problems that forbid starting."""

    server: str
    durability: str
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
