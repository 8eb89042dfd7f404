"""One attempt as a pipeline: Claimed -> Message -> the handler runs -> Settlement. No threads, no broker.

The shape follows Oban's executor: small functions, each with one reason to end the attempt.
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from django_delayq import codec
from django_delayq.attempts import is_at_most_once, max_attempts
from django_delayq.brokers.base import Claimed, Settlement, Verb
from django_delayq.durations import to_text
from django_delayq.errors import Bury, DataMismatch, Retry, Snooze
from django_delayq.handlers import Handler
from django_delayq.message import Message
from django_delayq.retry import Exponential, backoff_ms
from django_delayq.store.database import Database
from django_delayq.values import MAX_NAME
from django_delayq.worker import failure
from django_delayq.worker.exactly_once import run_and_finish, staying_in_it
from django_delayq.worker.forked import ended_outside
from django_delayq.worker.left_open import EndLeftOpen, aleaving_nothing_open, end_left_open, leaving_nothing_open


def begin(
    claimed: Claimed, handler: Handler[Any, Any], started_ms: int, is_held: Callable[[], bool]
) -> Message[Any] | Settlement:
    """The message to run, or how its lease ends when it must not start."""
    header = claimed.header
    if header is None:
        return bury_foreign(claimed)
    if is_at_most_once(claimed.header, handler) and (claimed.crashes or claimed.failures):
        return _bury(claimed, "at_most_once: it was handed out before, and may have run in part")
    most = max_attempts(header, handler)
    if most is not None and claimed.failures >= most:  # its last end could not be written, or max_attempts was lowered
        return _bury(claimed, f"it has failed {claimed.failures} times, and max_attempts is {most}")
    if header.expires_ms is not None and header.scheduled_ms + header.expires_ms <= started_ms:
        return _bury(claimed, f"expired {to_text(started_ms - header.scheduled_ms - header.expires_ms)} ago")
    try:
        data = codec.decode_data(claimed.body, handler.data_type)
        if handler.limits is not None and handler.limits.concurrency_key is not None:
            handler.limits.value_of(codec.loads(claimed.body))
    except DataMismatch as mismatch:
        settlement = _bury(claimed, failure.line(mismatch))
        settlement.fingerprint = failure.fingerprint(mismatch.with_traceback(None), handler.func)
        return settlement
    return Message(
        claimed.id,
        header.key,
        data,
        claimed.due_ms,
        header.sent_ms,
        started_ms,
        claimed.failures + 1,
        claimed.token,
        header.queue,
        header.tag,
        header.trace_id,
        is_held,
    )


def run_sync(
    claimed: Claimed, handler: Handler[Any, Any], message: Message[Any], database: str
) -> BaseException | None:
    """Run a handler in this thread and give what it raised; an async one gets an event loop of its own.

    Where it is atomic and its message is a row, that has ended when nothing was raised.

    Nothing that a handler raises may end its thread.
    """
    try:
        if handler.is_async:
            asyncio.run(_acall(handler, message, sync_to_async(end_left_open)))
        elif not handler.atomic:
            _call(handler, message)
        elif claimed.pk:
            store = Database(handler.using, database)
            run_and_finish(partial(_call, handler, message), message, int(claimed.pk), store)
        else:
            with leaving_nothing_open(), transaction.atomic(using=database), staying_in_it(database):
                _call(handler, message)
    except BaseException as exception:  # noqa: BLE001 - SystemExit in a handler fails its message, not the worker
        return exception
    return None


def _call(handler: Handler[Any, Any], message: Message[Any]) -> None:
    with leaving_nothing_open(), ended_outside():
        returned = handler.func(message)
    # What a plain function hands on of an async one has not run: it must not count as finished.
    if returned is None or not inspect.isawaitable(returned):
        return
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError("The handler is no async function, and returned an awaitable that nobody awaits; write async def.")


async def _acall(handler: Handler[Any, Any], message: Message[Any], end_left_open: EndLeftOpen) -> None:
    async with aleaving_nothing_open(end_left_open):
        with ended_outside():
            await handler.func(message)


async def run_async(
    handler: Handler[Any, Any], message: Message[Any], end_left_open: EndLeftOpen
) -> BaseException | None:
    """As `run_sync`, for async handlers on a running event loop. A cancelled one gives its `CancelledError`."""
    try:
        await _acall(handler, message, end_left_open)
    except BaseException as exception:  # noqa: BLE001 - as above
        return exception
    return None


def settle_for(
    claimed: Claimed, handler: Handler[Any, Any], exception: BaseException | None, started_ms: int, now_ms: int
) -> Settlement:
    """How the lease of an attempt ends that started then and now raised `exception`, or nothing."""
    settlement = _end_for(claimed, handler, exception, now_ms)
    settlement.started_ms, settlement.ended_ms = started_ms, now_ms
    return settlement


def _end_for(claimed: Claimed, handler: Handler[Any, Any], exception: BaseException | None, now_ms: int) -> Settlement:
    if exception is None:
        settlement = _end(claimed, Verb.FINISH)
        settlement.finished_pk = claimed.pk if handler.atomic else ""
        return settlement
    if isinstance(exception, Bury):
        return _bury_failed(claimed, handler, failure.line(exception), exception)
    if isinstance(exception, Snooze):
        return _snooze(claimed, handler, exception)
    return _fail(claimed, handler, exception, now_ms)


def crash(claimed: Claimed, handler: Handler[Any, Any], death: str, started_ms: int) -> Settlement:
    """How the lease of a message ends whose process died."""
    if is_at_most_once(claimed.header, handler):
        settlement = _bury(claimed, f"{death}; at_most_once: it may have run in part")
    else:
        settlement = _end(claimed, Verb.CRASH, error=death)
    settlement.started_ms = started_ms
    return settlement


def bury_foreign(claimed: Claimed) -> Settlement:
    """The end of what someone else wrote under our names."""
    return _bury(claimed, "its header can't be read, or is not of the set it lay in: not written by django-delayq")


def release(claimed: Claimed, delay_ms: int = 0) -> Settlement:
    """Give back what was not started, for a while where a limit has refused it."""
    return _end(claimed, Verb.RELEASE, delay_ms)


def interrupt(claimed: Claimed, handler: Handler[Any, Any], started_ms: int | None) -> Settlement:
    """The end of what runs while its worker stops: it runs again soon, or never when it must not start twice."""
    if is_at_most_once(claimed.header, handler):
        settlement = _bury(claimed, "at_most_once: interrupted by the stop of its worker; it may have run in part")
    else:
        settlement = _end(claimed, Verb.INTERRUPT)
    settlement.started_ms = started_ms
    return settlement


def in_ascii(settlement: Settlement) -> Settlement:
    """Return the same end with escapes for what not every database can keep in its texts."""
    return replace(
        settlement,
        error=failure.to_ascii(settlement.error),
        detail=failure.to_ascii(settlement.detail),
        fingerprint=failure.to_ascii(settlement.fingerprint)[:MAX_NAME],
    )


def in_place_of(
    settlement: Settlement, claimed: Claimed, handler: Handler[Any, Any], refusal: Exception
) -> list[Settlement]:
    """Return what to try, in this order, in place of an end that is refused for good: the attempt has failed.

    After its last attempt the message is buried. Before that, or where not even that can be written, it waits longer
    each time, and `begin` starts it no more than it may.
    """
    if settlement.finished_pk or settlement.verb in (Verb.RELEASE, Verb.INTERRUPT):
        return []  # it has ended, or no attempt has
    number = claimed.failures + 1
    kind = f"its {settlement.verb.value} is refused"
    why = failure.to_ascii(f"{kind}: {failure.first_line(refusal)}")
    error = f"{settlement.error} ({why})" if settlement.error else why
    wait_ms = backoff_ms(Exponential(), number, refusal)
    retry = replace(settlement, verb=Verb.RETRY, delay_ms=wait_ms, error=error, detail="", fingerprint="")
    most = max_attempts(claimed.header, handler)
    if most is None or number < most:
        return [retry]
    bury = replace(retry, verb=Verb.BURY, delay_ms=0, detail=error, fingerprint=kind, failed=True)
    return [bury, retry]


def _snooze(claimed: Claimed, handler: Handler[Any, Any], snooze: Snooze) -> Settlement:
    if is_at_most_once(claimed.header, handler):
        return _bury(claimed, "asked to snooze, but at_most_once never starts a second time")
    return _end(claimed, Verb.SNOOZE, snooze.delay_ms)


def _fail(claimed: Claimed, handler: Handler[Any, Any], exception: BaseException, now_ms: int) -> Settlement:
    error = failure.line(exception)
    attempt = claimed.failures + 1
    most = max_attempts(claimed.header, handler)
    if most is not None and attempt >= most:
        return _bury_failed(claimed, handler, error, exception)
    given = exception.delay_ms if isinstance(exception, Retry) else None
    delay_ms = failure.wait_ms(handler, attempt, exception) if given is None else given
    expires_at_ms = claimed.header.expires_at_ms if claimed.header else None
    if expires_at_ms is not None and now_ms + delay_ms >= expires_at_ms:
        return _bury_failed(claimed, handler, f"{error} (the next try would be after it expires)", exception)
    settlement = _end(claimed, Verb.RETRY, delay_ms, error)
    settlement.detail = failure.traceback_of(exception, handler.func)
    return settlement


def _bury(claimed: Claimed, error: str) -> Settlement:
    return _end(claimed, Verb.BURY, error=error)


def _bury_failed(claimed: Claimed, handler: Handler[Any, Any], error: str, exception: BaseException) -> Settlement:
    settlement = _end(claimed, Verb.BURY, error=error)
    settlement.detail, settlement.failed = failure.traceback_of(exception, handler.func), True
    settlement.fingerprint = failure.fingerprint(exception, handler.func)
    return settlement


def _end(claimed: Claimed, verb: Verb, delay_ms: int = 0, error: str = "") -> Settlement:
    queue, key = (claimed.header.queue, claimed.header.key) if claimed.header else ("", "")
    return Settlement(claimed.id, claimed.token, verb, queue, key, delay_ms, error)
