"""Define a message as a handler sees it, as it is sent, and as a caller reads it back. Pure: no Django, no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, Literal, TypedDict, TypeVar

from django_delayq.core.errors import LeaseLost
from django_delayq.core.human_time import At, Windows
from django_delayq.core.occurrences import occurrence_of
from django_delayq.core.steps import step_of
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration

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


def _always_held() -> bool:
    return True


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

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags, as they were sent; `tag` is the first of them."""
        return all_tags(self.tag, self.more_tags)

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

        It is read from the id, so it stays the same whenever the message runs.
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
    if there is none.
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

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags, as they were sent; `tag` is the first of them."""
        return all_tags(self.tag, self.more_tags)
