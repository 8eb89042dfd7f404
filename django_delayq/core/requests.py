"""The values that backends take and give. Pure values.

First what goes to a backend and comes from its claims: messages, alarms, leases, permits. Then the answers to queries
and maintenance, heartbeats and pauses. At the end, what is done with batches of any of these. Times are epoch
milliseconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from django_delayq.core.errors import DuplicateMessage
from django_delayq.core.message import OnConflict, State
from django_delayq.support.texts import text as _
from django_delayq.support.validation import check_name, check_queue

T = TypeVar("T")

BATCH = 1_000
"""The most messages that one call of a broker takes or gives."""

LeaseId = tuple[str, int]
"""The proof of a lease: the id of the message, and the token of its claim."""

Pair = tuple[str, str]
"""A queue and a key: messages wait in one set for each such pair."""


@dataclass(slots=True)
class Header:
    """The part of a message that says how to treat its data. A field that is `None` is left to the handler."""

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
    def has_own_policy(self) -> bool:
        """Return whether it says itself how often the message may start, or until when."""
        return self.at_most_once or self.max_attempts is not None or self.expires_ms is not None

    @property
    def expires_at_ms(self) -> int | None:
        """Return the instant from which the message must not start."""
        return None if self.expires_ms is None else self.scheduled_ms + self.expires_ms


@dataclass(frozen=True, slots=True)
class BuriedInfo:
    """A message that was buried without having been run. Queue and key are '' where its header can't be read."""

    id: str
    queue: str
    key: str
    failures: int
    error: str


@dataclass(slots=True)
class NewMessage:
    """One message to take. Due after `delay_ms`, or at `at_ms` (the past means now) when that is given.

    Many share one header: a broker copies it before it writes into it.
    """

    id: str
    header: Header
    body: bytes
    delay_ms: int = 0
    at_ms: int | None = None
    has_new_id: bool = False
    """Whether the id was made up for this message, so that no other can have it."""


@dataclass(slots=True)
class Enqueued:
    """The answer to an `enqueue`.

    `created` tells that the message is new. Otherwise the one that was there already was kept or changed, or is
    `running`.
    """

    id: str
    due_ms: int
    created: bool
    running: bool = False


@dataclass(slots=True)
class Alarm:
    """A hint that the row `pk` may be due `wait_ms` from now."""

    queue: str
    key: str
    pk: str
    wait_ms: int = 0


@dataclass(slots=True)
class ClaimRequest:
    """A request for one (queue, key): at most `count` messages, of which `idle_slots` would start at once.

    A message whose header says `at_most_once` is given only among those: if it were leased to wait, and its worker
    died, it would be buried though it had never started.
    """

    queue: str
    key: str
    count: int
    idle_slots: int = BATCH

    @property
    def pair(self) -> Pair:
        """Return its queue and key."""
        return self.queue, self.key


@dataclass(slots=True)
class Claimed:
    """One leased message. `header` is None when it can't be read (someone else wrote it): bury it."""

    id: str
    token: int
    due_ms: int
    header: Header | None
    body: bytes
    failures: int = 0
    crashes: int = 0
    pk: str = ""  # of its row, where a store has it
    history: str = ""  # its earlier attempts (history.py), where a store keeps them
    claimed_ms: int = 0
    worker: str = ""  # that claimed it


@dataclass(slots=True)
class Claims:
    """The result of a claim. `more_available` tells that something due was left behind in a requested (queue, key).

    `orphans` are ids that waited there without a message, because someone else removed it; they are gone now too.
    `buried` are messages that must not start twice, and whose leases it found to have run out. `away` says why a part
    of the broker could not be asked.
    """

    messages: list[Claimed]
    alarms: list[Alarm]
    now_ms: int
    next_due_ms: int | None
    more_available: bool = False
    orphans: list[str] = field(default_factory=list)
    buried: list[BuriedInfo] = field(default_factory=list)
    away: str = ""


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """A leased message's request to start, where its handler has limits.

    It asks for one of the `most` permits of (key, value), and for a turn, because the starts of the key are at least
    `interval_us` apart. None means that there is no such limit. A permit is held under the message's `token`. A request
    with `held` is never refused.
    """

    key: str
    value: str
    token: int
    most: int | None = None
    interval_us: int | None = None
    held: bool = False
    """Whether its message runs already. Then it counts even where the keeper of the limits has forgotten it."""


class Throttled(NamedTuple):
    """The refusal of a permit request: ask again after `wait_ms`.

    With `of_key` every other request of the key would be refused too, whatever its value.
    """

    wait_ms: int
    of_key: bool


# Answers to queries and maintenance, heartbeats and pauses


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


# Batches


def earliest(*times: int | None) -> int | None:
    """Return the earliest of these times, None where there are none."""
    return min((time for time in times if time is not None), default=None)


def pages(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return the items in order, at most `size` on each page."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_order(positions: Iterable[Sequence[int]], answers: Iterable[Sequence[T]]) -> list[T]:
    """Join the answers of several parts into one list, in the order of the whole.

    `positions` has, for each part, the positions in the whole that it answers for.
    """
    by_position = {
        i: answer for own, given in zip(positions, answers, strict=True) for i, answer in zip(own, given, strict=True)
    }
    return [by_position[i] for i in range(len(by_position))]


def check_batch(batch: Sequence[object]) -> None:
    """Raise `ValueError` for a batch that is larger than one call takes."""
    if len(batch) > BATCH:
        raise ValueError(f"{len(batch)} in one call; give at most {BATCH}.")


def refuse_duplicates(enqueued: list[Enqueued], on_conflict: OnConflict) -> list[Enqueued]:
    """Return `enqueued`; where `on_conflict` is "raise", raise `DuplicateMessage` with the ids that were there."""
    if on_conflict == "raise":
        refused = [answer.id for answer in enqueued if not answer.created]
        if refused:
            raise DuplicateMessage(f"Waiting or running already: {', '.join(map(repr, refused))}.")
    return enqueued
