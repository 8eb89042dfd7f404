"""What is told of each attempt: log lines, structured through `extra=`, and Django signals."""

import logging
from time import monotonic
from typing import Any

from django.dispatch import Signal

from django_delayq import signals
from django_delayq.brokers.base import FATAL_CRASHES, Settlement, Verb
from django_delayq.durations import to_text
from django_delayq.message import Message
from django_delayq.safe_logs import logger
from django_delayq.worker.lanes import Lease


class Outcome:
    """Tells how the attempts of one worker begin and end. Costs next to nothing while nobody listens."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def begun(self, lease: Lease, message: Message[Any]) -> None:
        """A handler is about to start."""
        if signals.message_started.receivers:
            signals.emit(signals.message_started, lease.lane.handler, **_start_facts(lease, message))

    async def abegun(self, lease: Lease, message: Message[Any]) -> None:
        """As `begun`, on an event loop."""
        if signals.message_started.receivers:
            await signals.aemit(signals.message_started, lease.lane.handler, **_start_facts(lease, message))

    def ended(
        self, lease: Lease, settlement: Settlement, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        """An attempt ended; `message` is None when it was not fit to start."""
        self._log_end(lease, settlement, message, exception)
        signal = _signal_of(lease, settlement)
        if signal.receivers:
            signals.emit(signal, lease.lane.handler, **_end_facts(lease, settlement, exception))

    async def aended(
        self, lease: Lease, settlement: Settlement, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        """As `ended`, on an event loop."""
        self._log_end(lease, settlement, message, exception)
        signal = _signal_of(lease, settlement)
        if signal.receivers:
            await signals.aemit(signal, lease.lane.handler, **_end_facts(lease, settlement, exception))

    def _log_end(
        self, lease: Lease, settlement: Settlement, message: Message[Any] | None, exception: BaseException | None
    ) -> None:
        match settlement.verb:
            case Verb.FINISH:
                if logger.isEnabledFor(logging.DEBUG):
                    self._log(logging.DEBUG, "finished", lease, message)
            case Verb.RETRY:
                text = f"failed, runs again in {to_text(settlement.delay_ms)}: {settlement.error}"
                self._log(logging.WARNING, text, lease, message)
            case Verb.SNOOZE:
                self._log(logging.INFO, f"snoozes for {to_text(settlement.delay_ms)}", lease, message)
            case Verb.CRASH if buries(lease, settlement):
                self._log(logging.ERROR, f"is buried: {settlement.error}", lease, message)
            case Verb.CRASH:
                self._log(logging.WARNING, f"counts a crash, runs again: {settlement.error}", lease, message)
            case Verb.BURY:
                self._log(logging.ERROR, f"is buried: {settlement.error}", lease, message, exception)

    def _log(
        self,
        level: int,
        text: str,
        lease: Lease,
        message: Message[Any] | None,
        exception: BaseException | None = None,
    ) -> None:
        identity = _identity(lease)
        extra = identity | {
            "token": lease.claimed.token,
            "duration_ms": _duration_ms(lease),
            "lateness_ms": message.started_ms - message.due_ms if message else None,
            "trace_id": message.trace_id if message else None,
            "worker": self._worker,
        }
        logger.log(level, "Message %r (%s) %s", identity["id"], identity["key"], text, exc_info=exception, extra=extra)


def _signal_of(lease: Lease, settlement: Settlement) -> Signal:
    if settlement.verb is Verb.FINISH:
        return signals.message_finished
    return signals.message_failed if buries(lease, settlement) else signals.message_retried


def buries(lease: Lease, settlement: Settlement) -> bool:
    """Whether nothing runs after it: the broker buries what crashed too often."""
    if settlement.verb is Verb.CRASH:
        return lease.claimed.crashes + 1 >= FATAL_CRASHES
    return settlement.verb is Verb.BURY


def _start_facts(lease: Lease, message: Message[Any]) -> dict[str, Any]:
    return _identity(lease) | {
        "using": lease.lane.handler.using,
        "lateness_ms": message.started_ms - message.due_ms,
    }


def _end_facts(lease: Lease, settlement: Settlement, exception: BaseException | None) -> dict[str, Any]:
    facts = _identity(lease) | {"using": lease.lane.handler.using}
    if buries(lease, settlement):
        return facts | {"error": settlement.error, "exception": exception}
    facts["duration_ms"] = _duration_ms(lease)
    if settlement.verb is Verb.FINISH:
        return facts
    return facts | {"delay_ms": settlement.delay_ms, "exception": exception}


def _identity(lease: Lease) -> dict[str, Any]:
    claimed = lease.claimed
    queue, key = (claimed.header.queue, claimed.header.key) if claimed.header else ("", "")
    return {"id": claimed.id, "key": key, "queue": queue, "attempt": claimed.failures + 1}


def _duration_ms(lease: Lease) -> float:
    return round((monotonic() - lease.started_at) * 1000, 3)
