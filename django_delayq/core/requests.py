"""Define the values that backends take and return. Pure values; times are epoch milliseconds.

First come the values of sends, claims and limits: messages, alarms, leases, permits. Then the answers to queries and
maintenance, heartbeats and pauses. At the end are functions for batches of values.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from django_delayq.core.codec import Instant, Natural
from django_delayq.core.errors import DuplicateMessage
from django_delayq.core.lanes import queue_of, serves
from django_delayq.core.message import IdScope, OnConflict, State, WhileRunning, all_tags
from django_delayq.core.shares import Shares
from django_delayq.support.timestamps import from_ms
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import check_name, check_queue

T = TypeVar("T")

BATCH = 1_000
"""The most messages that one call of a broker takes or gives."""

LeaseId = tuple[str, int]
"""The proof of a lease: the id of the message, and the token of its claim."""

Pair = tuple[str, str]
"""A queue and a key. The messages of each pair wait in a set of their own."""


@dataclass(slots=True)
class Header:
    """The part of a message that says how to treat its data. A field that is `None` is left to the handler.

    `queue` is the lane of its queue for its priority: see lanes.py.
    """

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
    more_tags: tuple[str, ...] = ()  # the tags after the first, with a store
    version: int | None = None  # the version of the data; None is 1
    share: str | None = None  # the share of its handler that it belongs to (shares.py), with a store

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags that are known; `tag` is the first of them."""
        return all_tags(self.tag, self.more_tags)

    @property
    def has_own_policy(self) -> bool:
        """Return whether the header limits how often the message may start, or until when."""
        return self.at_most_once or self.max_attempts is not None or self.expires_ms is not None

    @property
    def expires_at_ms(self) -> int | None:
        """Return the epoch ms from which the message must not start; None if it never expires."""
        return None if self.expires_ms is None else self.scheduled_ms + self.expires_ms


@dataclass(frozen=True, slots=True)
class BuriedInfo:
    """A message that was buried by a worker that did not run it. Queue and key are '' where its header can't be read.

    A worker that lost its lease may have run it in part.
    """

    id: str
    queue: str
    key: str
    failures: int
    error: str


@dataclass(slots=True)
class NewMessage:
    """One message to enqueue. It is due after `delay_ms`, or at `at_ms` if that is given (a past time means now).

    Many messages may share one header, so a backend copies it before it changes it.
    """

    id: str
    header: Header
    body: bytes
    delay_ms: int = 0
    at_ms: int | None = None
    has_new_id: bool = False
    """Whether the id was generated for this message, so that no other can have it."""
    id_scope: IdScope = "waiting"
    """If it is "all", the message is not taken if one with its id has ended. Only a store can do that."""
    rule: str = ""
    """The rule that gave it `at_ms` (rules.py); '' if there is none, or no store to keep it."""
    max_wait_ms: int | None = None
    """If it replaces a message, it is due no later than this long after the first send of what waits under its id."""
    while_running: WhileRunning = "drop"
    """If it is "again", and a message with its id runs, it waits for the end of the run (core/kept.py)."""


@dataclass(slots=True)
class Enqueued:
    """The answer to an `enqueue`.

    `created` is True if the message is new. If it is False, the message that had the id already was kept or changed as
    `on_conflict` says, or it is `running` or has ended, at `ended_ms`, and was left as it is. If the send was `kept`
    until the run ends, `due_ms` is its own due time.
    """

    id: str
    due_ms: int
    created: bool
    running: bool = False
    ended_ms: int | None = None
    kept: bool = False


@dataclass(slots=True)
class Alarm:
    """A hint that the row `pk` may be due `wait_ms` from now."""

    queue: str
    key: str
    pk: str
    wait_ms: int = 0


@dataclass(slots=True)
class ClaimRequest:
    """A request for one (queue, key): at most `count` messages, of which `idle_slots` could start at once.

    A message whose header says `at_most_once` is given only if it could start at once. If it were leased to wait for a
    slot, and its worker died, it would be buried though it never started. `shares` is that of the handler, if its
    messages are shared (shares.py).
    """

    queue: str
    key: str
    count: int
    idle_slots: int = BATCH
    shares: Shares | None = None
    pair: Pair = field(init=False, repr=False, compare=False)  # made once: a claim looks at it several times

    def __post_init__(self) -> None:
        self.pair = self.queue, self.key


@dataclass(slots=True)
class Claimed:
    """One leased message. A `header` that can't be read (someone else wrote it) is None, and the message is buried.

    `unfit` says why the message could not be read, if the backend knows; it is '' if the message was read.
    """

    id: str
    token: int
    due_ms: int
    header: Header | None
    body: bytes
    failures: int = 0
    crashes: int = 0
    pk: str = ""  # the primary key of its row, with a store
    history: str = ""  # its earlier attempts (history.py), with a store
    claimed_ms: int = 0
    worker: str = ""  # the name of the worker that claimed it
    unfit: str = ""
    rule: str = ""  # the rule of its last send or reschedule (rules.py), with a store

    @property
    def share(self) -> str | None:
        """Return the share of the message (shares.py); None if it has none."""
        return self.header.share if self.header else None


@dataclass(slots=True)
class Claims:
    """The result of a claim, for the requested pairs of queue and key.

    - `next_due_ms`: when the next message that was not claimed is due; None if none is known.
    - `more_available`: whether more is due than was claimed.
    - `without_body`: ids without a message, because someone else removed it; the claim has dropped them.
    - `buried`: messages that the claim buried: they must not start twice, and their leases had run out.
    - `away`: why a part of the broker could not be asked; empty if all could.
    - `due`: pairs for which a timer has no alarms but knows that rows are due, each with the epoch ms since which they
      are due.
    """

    messages: list[Claimed]
    alarms: list[Alarm]
    now_ms: int
    next_due_ms: int | None
    more_available: bool = False
    without_body: list[str] = field(default_factory=list)
    buried: list[BuriedInfo] = field(default_factory=list)
    away: str = ""
    due: dict[Pair, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """The request of a leased message to start, if its handler has limits.

    It asks for one of the `most` permits of (key, value), which `token` then holds. It also asks for `starts` starts of
    (key, rate_value), each to be used within `within_us`; 0 means at once. No more than `burst` messages start at once,
    and then one each `interval_us`. None means that there is no such limit.
    """

    key: str
    value: str
    token: int
    most: int | None = None
    interval_us: int | None = None
    rate_value: str = ""
    burst: int = 1
    within_us: int = 0
    starts: int = 1


class Throttled(NamedTuple):
    """The refusal of a permit request: ask again after `wait_ms`.

    If `of_key` is True, every other request of the key would be refused too, whatever its value. `error` says why the
    limit could not be asked for; it is '' if the limit itself refused. `of_rate` says whether the request waits for the
    turn of a rate. `starts` is how many of its starts were granted; if it is not 0, the request has its permit too, and
    the refusal is about the other starts.
    """

    wait_ms: int
    of_key: bool
    error: str = ""
    of_rate: bool = False
    starts: int = 0


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
"""The counts that a backend keeps over all time, each named after what became of the messages that it counts."""

LEFT = ("finished", "cancelled", "purged", "dropped")
"""The totals of messages that are gone. "sent" is their sum plus the number of messages that are still there."""


NO_PROGRESS: Mapping[LeaseId, str] = {}
"""The progress to write with a renewal if no handler has reported any."""


class Action(NamedTuple):
    """The bulk action that a change is a part of, so that it can be undone: its name, and who acts ('' if unsaid)."""

    name: str
    by: str = ""


class PutBack(NamedTuple):
    """What an undo did with a page of messages: the primary keys of those put back, and how many were left.

    What another undo has looked at first is neither.
    """

    pks: set[int]
    left: int


class CancelRequest(NamedTuple):
    """The request to cancel a message that runs: who asked ('' if nobody said), and when."""

    by: str
    at_ms: int


@dataclass(slots=True)
class Info:
    """One message as the backend sees it now.

    `holder` (the worker's name) and `lease_end_ms` are set while it runs, `buried_ms` and `detail` (the traceback) once
    it is buried. `merged` and `again_ms` are those of `MessageInfo`. While it runs, `cancel_request` says who has asked
    to cancel it, and `progress` is what its handler last reported (message.py), as the last renewal of its lease wrote
    it.
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
    merged: int = 0
    again_ms: int | None = None
    cancel_request: CancelRequest | None = None
    progress: str = ""


class Waiting(NamedTuple):
    """One waiting message, as it is stored."""

    id: str
    due_ms: int
    header: Header
    body: bytes
    failures: int


class Place(NamedTuple):
    """A position in a wait set: the last entry that was read, and its number among the entries of its due time."""

    due_ms: int
    last: bytes = b""
    number: int = 0


Page = tuple[list[Waiting], Place | None]
"""Waiting messages, and where the next page begins; None at the end."""


@dataclass(frozen=True, slots=True)
class AlarmInfo:
    """One alarm as the broker sees it now.

    `due_ms` is set while it waits, `lease_end_ms` while it is leased. Both are set if it was scheduled again while it
    was leased. `now_ms` is the broker's time when it was read; a page of `AlarmIndex.alarms` leaves it None.
    """

    pk: str
    due_ms: int | None = None
    lease_end_ms: int | None = None
    now_ms: int | None = None


@dataclass(slots=True)
class SetCount:
    """How many messages and alarms of one (queue, key) wait.

    If `pending_capped` or `ready_capped` is True, there may be more than were counted.
    """

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
    """How many messages and alarms wait and run, how many messages failed, and the totals of messages over all time."""

    now_ms: int
    waiting: list[SetCount]
    running: int
    suspects: int
    error: int
    totals: dict[str, int] = field(default_factory=dict)  # by name, such as sent, finished, cancelled


@dataclass(slots=True)
class MaintenanceResult:
    """The result of one `maintain`.

    `reclaimed` counts leases that ran out, `dropped` failed messages that were trimmed. `without_body` has the ids of
    leases whose message was missing, because someone else removed it.
    """

    now_ms: int
    reclaimed: int = 0
    buried: list[BuriedInfo] = field(default_factory=list)
    without_body: list[str] = field(default_factory=list)
    dropped: int = 0
    suspects_due: int = 0
    next_lease_end_ms: int | None = None
    lost_record: str = ""  # why the broker may have lost its data (restarted, flushed); empty if nothing happened
    away: str = ""  # why a part of the broker could not be asked or takes nothing new; the other parts are well


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A running handler, and when it started."""

    id: str
    queue: str
    key: str
    started_ms: Instant


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """The slots of one executor of a worker: threads, child processes or tasks.

    At most `most` messages run in it at once, and of each key at most the number in `keys`.
    """

    most: Natural
    keys: dict[str, Natural]


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The identity of a process: its pid and its start time, by which another process on its `host` can find it."""

    host: str
    pid: Natural
    started: Natural


@dataclass(slots=True)
class WorkerInfo:
    """A worker's heartbeat. `seen_ms` is set by the broker.

    `runs` has the oldest of its running messages; `running` counts all that it holds. `processes` has its own process
    and its supervisor's, if it has one: once all of them are gone, only another worker can end its leases. `processes`
    is empty if the system can't identify a process, and in the heartbeat of an older version.
    """

    name: str
    queues: list[str]
    keys: list[str]
    running: Natural
    started_ms: Instant
    seen_ms: Instant = 0
    runs: list[RunInfo] = field(default_factory=list)
    executors: list[ExecutorInfo] = field(default_factory=list)
    processes: list[ProcessInfo] = field(default_factory=list)
    signature: str = ""
    """A signature of its name and `processes` (worker/takeover.py)."""


def is_asked_for(queue: str, key: str, workers: Iterable[WorkerInfo]) -> bool:
    """Return whether a live worker runs messages of this queue, or lane of one, and key."""
    return any(key in worker.keys and serves(worker.queues, queue) for worker in workers)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The result of one `take_over`: the messages that it buried, and whether leases are left for another call."""

    buried: list[BuriedInfo] = field(default_factory=list)
    left: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a queue, of a key in every queue (`queue` is None), or of a key in one queue: workers start nothing.

    It lasts until `until_ms`; if that is None, until it is resumed. `paused_ms` is set by the broker. Raises
    `TypeError` or `ValueError` for names that no queue or key can have.
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
        """Return a text for people that names the paused queue or key."""
        return in_words(self.queue, self.key)

    def holds(self, now_ms: int) -> bool:
        """Return whether the pause is in force."""
        return self.until_ms is None or self.until_ms > now_ms


class Heard(NamedTuple):
    """The facts that come with the answer to a heartbeat, so that a worker need not ask for them.

    `pauses` has the pauses in force, and `lanes` the lanes in use; None if workers notice every change of
    `pause_version`. `workers` has every live worker, also the sender of the heartbeat; None if the answer does not name
    them. `error` says why the broker has not taken the heartbeat, though the tables told the rest.
    """

    pauses: list[Pause] | None = None
    workers: list[WorkerInfo] | None = None
    lanes: Collection[str] | None = None
    error: Exception | None = None


def in_words(queue: str | None, key: str | None) -> str:
    """Return a text for people that names a queue, a key in every queue, or a key in one queue."""
    if key is None:
        return _("queue %(queue)r", queue=queue)
    if queue is None:
        return _("key %(key)r", key=key)
    return _("key %(key)r in queue %(queue)r", key=key, queue=queue)


def covering(pauses: Iterable[Pause], queue: str, key: str) -> list[Pause]:
    """Return the pauses that apply to messages of this queue and key. Those of a queue apply to all its lanes."""
    names = None, queue, queue_of(queue)
    return [pause for pause in pauses if pause.queue in names and pause.key in (None, key)]


@dataclass(slots=True)
class Audit:
    """The result of an audit: `differences` is empty if each message is in exactly one place and the totals agree.

    `notes` are about oddities that are allowed, but good to know.
    """

    totals: dict[str, int]
    places: dict[str, int]  # pending, ready, running, error
    differences: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ServerReport:
    """A broker's report for a worker's start: one line on durability, warnings, and problems that forbid starting.

    `now_ms` is the time by the server's clock; None for a timer without a clock. `is_away` says that the broker of a
    store does not answer, and that its workers start without it. `foreign` says what to do if that broker bears another
    store's mark; else it is "".
    """

    server: str
    durability: str
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    now_ms: int | None = None
    is_away: bool = False
    foreign: str = ""


# Batches


def earliest(*times: int | None) -> int | None:
    """Return the earliest of these times; None if all are None."""
    return min((time for time in times if time is not None), default=None)


def pages(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return the items in order, at most `size` on each page."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def in_order(positions: Iterable[Sequence[int]], answers: Iterable[Sequence[T]]) -> list[T]:
    """Join the answers to several parts of a list into one list, in the order of the whole.

    `positions` has for each part the positions of its items in the whole.
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
    """Return `enqueued`. If `on_conflict` is "raise" and ids were in use, raise `DuplicateMessage` naming them."""
    if on_conflict == "raise":
        refused = [answer for answer in enqueued if not answer.created]
        texts = []
        if waiting := [repr(answer.id) for answer in refused if answer.ended_ms is None]:
            texts.append(f"Waiting or running already: {', '.join(waiting)}.")
        if ended := [
            f"{answer.id!r} (at {from_ms(answer.ended_ms):%Y-%m-%d %H:%M:%S} UTC)"
            for answer in refused
            if answer.ended_ms is not None
        ]:
            texts.append(f"Ended already: {', '.join(ended)}.")
        if texts:
            raise DuplicateMessage(" ".join(texts))
    return enqueued
