"""Let one tracer, such as that of `django_delayq.otel`, follow sends and attempts.

A tracer is called at the beginning and at the end of each, in the thread or task that does the work, so it can make its
span the current one of a handler. It can also mark messages before they are sent. Signals can do neither. What a tracer
raises is logged, and harms nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from django_delayq.core.errors import Stopped
from django_delayq.core.message import Message
from django_delayq.core.requests import Header, NewMessage
from django_delayq.support.logging import logger


class Traced(Protocol):
    """The part of a handler that a tracer sees."""

    @property
    def using(self) -> str:
        """Return the alias."""

    @property
    def func(self) -> Callable[..., Any]:
        """Return the site's function."""


class Span(Protocol):
    """A send or an attempt that goes on."""

    def end(self, error: BaseException | None) -> None:
        """Note that it is over, and what it raised."""


class Tracer(Protocol):
    """A follower of sends and attempts."""

    def sending(self, using: str, messages: Sequence[NewMessage]) -> Span:
        """Note that messages are about to be sent to an alias. It may `mark` them."""

    def running(self, handler: Traced, message: Message[Any]) -> Span:
        """Note that a handler is about to run."""


class Followed:
    """A send or an attempt, whose end the tracer learns once. As a context manager it ends with the block."""

    def __init__(self, begin: Callable[[], Span] | None) -> None:
        self._span = None if begin is None else _guarded(begin)

    def end(self, error: BaseException | None = None) -> None:
        """Let the tracer know that it is over, and what it raised. It is no error that a handler was not called."""
        if self._span is not None:
            span, self._span = self._span, None
            _guarded(partial(span.end, None if isinstance(error, Stopped) else error))

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        self.end(error)


UNFOLLOWED = nullcontext()
"""The block of a send or attempt that no tracer follows, at no cost."""
tracer: Tracer | None = None
"""The tracer of this process; None if it has none."""


def use(new: Tracer | None) -> None:
    """Have a tracer follow each send and attempt of this process, in place of the one before."""
    global tracer
    tracer = new


def sending(using: str, messages: Sequence[NewMessage]) -> Followed:
    """Begin to follow a send of messages to an alias."""
    return Followed(None if tracer is None else partial(tracer.sending, using, messages))


def running(handler: Traced, message: Message[Any]) -> Followed:
    """Begin to follow an attempt."""
    return Followed(None if tracer is None else partial(tracer.running, handler, message))


def mark(messages: Sequence[NewMessage], trace_id: str) -> None:
    """Give a trace id to the messages that have none of their own.

    Those that shared a header share the new one too: a bulk insert writes each header once.
    """
    marked: dict[int, Header] = {}
    for message in messages:
        header = message.header
        if header.trace_id is None:
            message.header = marked.get(id(header)) or marked.setdefault(id(header), replace(header, trace_id=trace_id))


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        logger.exception("The tracer failed; what it followed goes on.")
        return None
