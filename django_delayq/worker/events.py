"""Report each attempt, and each message that is over without one here: by log lines with `extra=`, and by signals."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from django_delayq import signals
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BuriedInfo
from django_delayq.core.errors import Retry
from django_delayq.core.lanes import queue_of
from django_delayq.core.message import Message
from django_delayq.core.transitions import SettleAction, Transition, describe
from django_delayq.support.logging import TRACEBACK, logger
from django_delayq.worker.leases import Lease

_LEVELS = {
    SettleAction.FINISH: logging.DEBUG,
    SettleAction.RETRY: logging.WARNING,
    SettleAction.SNOOZE: logging.INFO,
    SettleAction.CRASH: logging.WARNING,
    SettleAction.RELEASE: logging.WARNING,  # it was not started: this code can't read it
    SettleAction.BURY: logging.ERROR,
    SettleAction.CANCEL: logging.INFO,
}
_SIGNALS = {
    SettleAction.FINISH: signals.message_finished,
    SettleAction.BURY: signals.message_failed,
    SettleAction.CANCEL: signals.message_cancelled,
}
"""The signal of an action; every other action has `message_retried`, and a release none."""


class AttemptEvents:
    """The log lines and signals of one worker's attempts. They cost next to nothing while nobody listens."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def starting(self, lease: Lease, deadline: float = 0.0) -> None:
        """Note that a message is about to start.

        If `deadline` is not 0, the handler must end by then, and only the end of the process can stop it.
        """

    def settling(self, lease: Lease, transition: Transition) -> None:
        """Note how a lease ends, before that is logged, signalled or settled."""

    def begun(self, lease: Lease, message: Message[Any]) -> None:
        """Report that a handler is about to start."""
        if signals.message_started.receivers:
            signals.emit(signals.message_started, lease.handler, **_start_facts(lease, message))

    async def abegun(self, lease: Lease, message: Message[Any]) -> None:
        """Do what `begun` does, on an event loop."""
        if signals.message_started.receivers:
            await signals.aemit(signals.message_started, lease.handler, **_start_facts(lease, message))

    def ended(
        self, lease: Lease, transition: Transition, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        """Report that an attempt ended. `message` is None if the attempt never started, or did not end by itself."""
        self.settling(lease, transition)
        self._log_end(lease, transition, message, exception)
        signal = _SIGNALS.get(transition.action, signals.message_retried)
        if signal.receivers and transition.action is not SettleAction.RELEASE:
            signals.emit(signal, lease.handler, **_end_facts(lease, transition, exception))

    async def aended(
        self, lease: Lease, transition: Transition, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        """Do what `ended` does, on an event loop."""
        self.settling(lease, transition)
        self._log_end(lease, transition, message, exception)
        signal = _SIGNALS.get(transition.action, signals.message_retried)
        if signal.receivers and transition.action is not SettleAction.RELEASE:
            await signals.aemit(signal, lease.handler, **_end_facts(lease, transition, exception))

    def _log_end(
        self, lease: Lease, transition: Transition, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        level = _LEVELS[transition.action]
        is_stopped_step = transition.action is SettleAction.RELEASE and not transition.error
        if logger.isEnabledFor(level) and not is_stopped_step:
            is_failure = transition.action in (SettleAction.RETRY, SettleAction.BURY)
            shown = exception if is_failure and not _is_expected(exception) else None
            self._log(level, describe(transition), lease, message, shown, transition.detail)

    def _log(
        self,
        level: int,
        text: str,
        lease: Lease,
        message: Message[Any] | None,
        exception: BaseException | None = None,
        traceback: str = "",
    ) -> None:
        identity = _identity(lease)
        extra = identity | {
            "token": lease.claimed.token,
            "duration_ms": _duration_ms(lease),
            "lateness_ms": message.started_ms - message.due_ms if message else None,
            "trace_id": message.trace_id if message else None,
            "worker": self._worker,
            TRACEBACK: traceback,
        }
        logger.log(level, "Message %r (%s) %s", identity["id"], identity["key"], text, exc_info=exception, extra=extra)


class UnstartedEvents:
    """The log lines and signals of messages that were buried without running here, or are gone.

    Each message gets a log line with its id. A buried one also emits the signal `message_failed`.
    """

    def __init__(
        self,
        using: str,
        worker: str,
        handlers: Mapping[str, Handler[Any, Any]],
        count: Callable[[Sequence[BuriedInfo]], None] | None = None,
    ) -> None:
        self._using = using
        self._worker = worker
        self._handlers = handlers
        self._count = count

    def report(self, buried: Sequence[BuriedInfo], without_body: Iterable[str] = ()) -> None:
        """Report each message, and count the buried ones. `without_body` has the ids of messages that are gone.

        Each call reports and counts what it is given, so the caller must pass each message only once.
        """
        if self._count is not None:
            self._count(buried)
        for info in buried:
            self._report_buried(info)
        for id in without_body:
            logger.error(
                "Message %r is gone: it was due or running here, and someone else removed its body.",
                id, extra={"id": id, "worker": self._worker},
            )  # fmt: skip

    def _report_buried(self, info: BuriedInfo) -> None:
        identity = {"id": info.id, "key": info.key, "queue": queue_of(info.queue), "attempt": info.failures + 1}
        logger.error(
            "Message %r (%s) failed for good: %s",
            info.id,
            info.key,
            info.error,
            extra=identity | {"worker": self._worker},
        )
        signals.emit(
            signals.message_failed,
            self._handlers.get(info.key),
            **identity,
            using=self._using,
            error=info.error,
            exception=None,
        )


def _start_facts(lease: Lease, message: Message[Any]) -> dict[str, Any]:
    return _identity(lease) | {
        "using": lease.handler.using,
        "lateness_ms": message.started_ms - message.due_ms,
    }


def _end_facts(lease: Lease, transition: Transition, exception: BaseException | None) -> dict[str, Any]:
    facts = _identity(lease) | {"using": lease.handler.using}
    if transition.action is SettleAction.BURY:
        return facts | {"error": transition.error, "exception": exception}
    facts["duration_ms"] = _duration_ms(lease)
    if transition.action is SettleAction.FINISH:
        return facts
    if transition.action is SettleAction.CANCEL:
        return facts | {"error": transition.error}
    return facts | {"delay_ms": transition.delay_ms or 0, "exception": exception}


def _is_expected(exception: BaseException | None) -> bool:
    """Return whether it is a `Retry` that the handler raised for no error of its own."""
    return isinstance(exception, Retry) and exception.__cause__ is None and exception.__context__ is None


def _identity(lease: Lease) -> dict[str, Any]:
    claimed = lease.claimed
    queue, key = (queue_of(claimed.header.queue), claimed.header.key) if claimed.header else ("", "")
    return {"id": claimed.id, "key": key, "queue": queue, "attempt": claimed.failures + 1}


def _duration_ms(lease: Lease) -> float:
    return round((monotonic() - lease.started_at) * 1000, 3)
