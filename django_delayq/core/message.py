"""The message as a handler sees it, and the states that a message can be in. Pure values: no Django, no I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from django_delayq.core.errors import LeaseLost
from django_delayq.support.timestamps import from_ms

T = TypeVar("T")


class State(StrEnum):
    """The states of a message. `PENDING` and `READY` are told apart by time alone."""

    NONE = "none"
    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    ERROR = "error"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    GONE = "gone"


def _always_held() -> bool:
    return True


@dataclass(slots=True)
class Message(Generic[T]):
    """The argument of a handler.

    Times are epoch milliseconds by the authoritative clock; properties give them as datetimes.
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

    @property
    def due_at(self) -> datetime:
        """Return when this attempt was due, in UTC."""
        return from_ms(self.due_ms)

    @property
    def sent_at(self) -> datetime:
        """Return when the message was sent, in UTC."""
        return from_ms(self.sent_ms)

    @property
    def lateness(self) -> timedelta:
        """Return how long after its due time this attempt started; never negative."""
        return timedelta(milliseconds=self.started_ms - self.due_ms)

    def ensure_held(self) -> None:
        """Return while this worker still holds the message; raise `LeaseLost` otherwise.

        For long handlers, before a step that must not be taken twice. It tells what this process knows; `token` lets
        another system refuse for certain a worker that is late.
        """
        if not self.is_held():
            raise LeaseLost(f"Message {self.id!r} (key {self.key!r}) is no longer held: its lease was lost.")
