"""Define a message as a handler sees it, as it is sent, and as a caller reads it back. Pure: no Django, no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

from django_delayq.core.errors import Cancelled, LeaseLost
from django_delayq.core.human_time import At, Windows
from django_delayq.core.occurrences import occurrence_of
from django_delayq.core.steps import step_of
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration
from django_delayq.support.validation import MAX_NAME, check_name, short_repr

T = TypeVar("T")


class State(StrEnum):
    """The states of a message. A `PENDING` message becomes `READY` just by becoming due."""

    NONE = "none"
    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    FAILED = "failed"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    GONE = "gone"


MOST_PROGRESS = MAX_NAME + 20
"""The most characters that `write_progress` returns."""


class Progress(NamedTuple):
    """How far a handler is: a fraction from 0 to 1, and a text for people."""

    fraction: float
    text: str = ""


def write_progress(fraction: float, text: str) -> str:
    """Return a progress as one text, for example "0.4 12 of 30". Raises `TypeError` or `ValueError`."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise TypeError(f"fraction={short_repr(fraction)} is {type(fraction).__name__}; give a number from 0 to 1.")
    if not 0 <= fraction <= 1:  # also refuses NaN
        raise ValueError(f"fraction={short_repr(fraction)} is not from 0 to 1.")
    return f"{fraction:.4g} {check_name(text, 'text') if text != '' else ''}".rstrip()


def read_progress(written: str) -> Progress | None:
    """Return the progress that `write_progress` wrote; None for "" and for what someone else wrote."""
    fraction, _, text = written.partition(" ")
    try:
        return Progress(float(fraction), text)
    except ValueError:
        return None


def progress_words(written: str) -> str:
    """Return a written progress for people, for example "40 %, 12 of 30"; '' if there is none."""
    progress = read_progress(written)
    if progress is None:
        return ""
    return f"{100 * progress.fraction:.3g} %" + (f", {progress.text}" if progress.text else "")


def _always_held() -> bool:
    return True


def _never_cancelled() -> bool:
    return False


def _forget_progress(written: str) -> None:
    """Do nothing: outside of a worker, nobody sees the progress."""


@dataclass(slots=True)
class Message(Generic[T]):
    """The argument of a handler.

    Times are epoch milliseconds by the authoritative clock; properties return them as datetimes. `worker` is the name
    of the worker that holds the message.
    """

    id: str
    key: str
    data: T
    due_ms: int
    sent_ms: int
    started_ms: int
    attempt: int = 1
    token: int = 0
    queue: str = "default"
    tag: str | None = None
    trace_id: str | None = None
    is_held: Callable[[], bool] = field(default=_always_held, repr=False, compare=False)
    worker: str = ""
    priority: int = 0
    more_tags: tuple[str, ...] = ()
    share: str | None = None
    _is_cancelled: Callable[[], bool] = field(default=_never_cancelled, repr=False, compare=False)
    _note_progress: Callable[[str], object] = field(default=_forget_progress, repr=False, compare=False)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags, as they were sent; `tag` is the first of them."""
        return all_tags(self.tag, self.more_tags)

    @property
    def cancelled(self) -> bool:
        """Return whether somebody has asked to cancel this message while it runs.

        A worker learns it with the next renewal of the lease: after at most a third of the lease, or 5 s.
        """
        return self._is_cancelled()

    @property
    def due_at(self) -> datetime:
        """Return when this attempt was due, in UTC."""
        return from_ms(self.due_ms)

    @property
    def sent_at(self) -> datetime:
        """Return when the message was sent, in UTC."""
        return from_ms(self.sent_ms)

    @property
    def occurrence(self) -> datetime | None:
        """Return which occurrence of its schedule this message is, in UTC; None if it is of no schedule.

        It is read from the id, so it is the same however late the message runs. A local time is the instant that it has
        by the time-zone database of this process; it is None if that lacks the zone.
        """
        found = occurrence_of(self.id)
        return None if found is None else found[1]

    @property
    def sequence(self) -> str | None:
        """Return the id with which the sequence of this message was started; None if it is of none.

        It is read from the id of the message.
        """
        found = step_of(self.id)
        return None if found is None else found.id

    @property
    def lateness(self) -> timedelta:
        """Return how long after its due time this attempt started; never negative."""
        return timedelta(milliseconds=self.started_ms - self.due_ms)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this worker still holds the message.

        Call it in a long handler before a step that must not be taken twice. It can only say what this process knows.
        To shut out late workers, pass `token` to the other system when the handler starts and with each step, and have
        it refuse a step with any token but the one that a start gave it last. Tokens are random: they have no order.
        """
        if not self.is_held():
            raise LeaseLost(f"Message {self.id!r} (key {self.key!r}) is no longer held: its lease was lost.")

    def ensure_not_cancelled(self) -> None:
        """Raise `Cancelled` if somebody has asked to cancel this message. An atomic handler's writes are rolled back.

        Call it in a long handler wherever it may stop. A handler that returns has finished, whatever was asked.
        """
        if self.cancelled:
            raise Cancelled(f"Message {self.id!r} (key {self.key!r}) is cancelled.")

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the handler is: a `fraction` from 0 to 1, and a `text` of at most 200 characters.

        This writes nothing: the latest one goes with the next renewal of the lease. Raises `TypeError` or `ValueError`.
        """
        self._note_progress(write_progress(fraction, text))


def all_tags(tag: str | None, more_tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first tag of a message, if it has one, and the others."""
    return () if tag is None else (tag, *more_tags)


Tags = str | Sequence[str]
"""The tag of a message, or several, as a list or tuple."""

OnConflict = Literal["keep", "replace", "earliest", "latest", "raise"]

WhileRunning = Literal["drop", "again"]
"""What becomes of a send while a message with its id runs: nothing, or it waits for the end of the run."""

IdScope = Literal["waiting", "all"]
"""The messages among which an id is unique: those that wait or run, or also those that have ended and are kept."""


class When(TypedDict, total=False):
    """The options of a handler's `prepare`: the ones of `send_delay_message`, except `using` and `on_commit`."""

    delay: Duration | None
    at: datetime | At | None
    window: Windows | None
    spread: Duration | None
    id: str | None
    on_conflict: OnConflict
    tag: Tags | None
    trace_id: str | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    expires: Duration | None
    timeout: Duration | None
    at_most_once: bool | None
    id_scope: IdScope | None
    max_wait: Duration | None
    while_running: WhileRunning


class WhenToSend(When, total=False):
    """The options of a handler's `send` and `asend`."""

    on_commit: bool


@dataclass(slots=True)
class Send:
    """One message to send, with the arguments of `send_delay_message`. `None` leaves a choice to the handler.

    The arguments are checked when it is sent, not when it is made.
    """

    key: str
    data: Any = None
    delay: Duration | None = None
    at: datetime | At | None = None
    id: str | None = None
    on_conflict: OnConflict = "keep"
    tag: Tags | None = None
    trace_id: str | None = None
    queue: str | None = None
    max_attempts: int | None = None
    expires: Duration | None = None
    timeout: Duration | None = None
    at_most_once: bool | None = None
    using: str | None = None
    priority: int | None = None
    id_scope: IdScope | None = None
    window: Windows | None = None
    spread: Duration | None = None
    max_wait: Duration | None = None
    while_running: WhileRunning = "drop"


@dataclass(slots=True)
class Sent:
    """The answer to a send.

    `created` is False if there was a message with this id already. `running` is True if that message runs now, so that
    the send left it unchanged. `kept` is True if the send then waits for the end of that run, because of
    `while_running="again"`: `due_ms` is when it is due, if the run has ended by then. `ended` is True if it has ended,
    and `id_scope="all"` kept the id from being used again. If the send waits for the commit of a transaction,
    `created`, `due_ms` and `due_at` are None, because nothing has been enqueued yet.
    """

    id: str
    due_ms: int | None
    created: bool | None
    running: bool = False
    ended: bool = False
    kept: bool = False

    @property
    def due_at(self) -> datetime | None:
        """Return when the message is due, in UTC, by the authoritative clock."""
        return None if self.due_ms is None else from_ms(self.due_ms)


@dataclass(slots=True)
class SentMany:
    """The answer to a bulk send, as counts: `accepted` messages, of which `created` are new.

    The others are not new: a message with the same id was there already. `running` is how many of these earlier
    messages run now, so that the send left them unchanged; of these sends, `kept` wait for the end of the run.
    """

    accepted: int = 0
    created: int = 0
    running: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message as it is now. Reading it changes nothing. Datetimes are in UTC.

    `data` has the type that the handler asks for if it fits that type. Otherwise it is plain values from JSON, or text
    if the body is no JSON. `merged` is how many sends were merged into it: each took the place of the one before, while
    it waited or was kept until a run ended. `again_at` is when the send is due that is kept until this run ends; None
    if there is none. `progress` and `cancelled_by` are of a message that runs: what its handler last reported, as the
    last renewal of its lease wrote it, and who asked to cancel it ('' if nobody said; None if nobody asked).
    """

    id: str
    key: str
    queue: str
    state: State
    data: Any
    due_at: datetime
    sent_at: datetime
    failures: int
    expires_at: datetime | None
    tag: str | None
    trace_id: str | None
    error: str
    holder: str
    lease_until: datetime | None
    priority: int = 0
    more_tags: tuple[str, ...] = ()
    merged: int = 0
    again_at: datetime | None = None
    progress: Progress | None = None
    cancelled_by: str | None = None
    share: str | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags, as they were sent; `tag` is the first of them."""
        return all_tags(self.tag, self.more_tags)
