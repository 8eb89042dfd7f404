"""One attempt as a pipeline: Claimed -> Message -> the handler runs -> Transition. No threads, no broker.

The shape follows Oban's executor: small functions, each with one reason to end the attempt.
"""

import asyncio
import inspect
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from django_delayq import tracing
from django_delayq.api.handlers import Handler, later_version
from django_delayq.brokers import get_backend
from django_delayq.core import history, transitions
from django_delayq.core.errors import Bury, DataMismatch, Retry, RunAgain, Snooze, Stopped, StoreUnavailable
from django_delayq.core.human_time import Windows, due_in_window_ms
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import Message, State
from django_delayq.core.requests import Claimed
from django_delayq.core.retry import Exponential, backoff_ms
from django_delayq.core.steps import step_of
from django_delayq.core.transitions import Again, Failure, Policy, Span, Transition, is_at_most_once, max_attempts
from django_delayq.support.logging import logger
from django_delayq.support.validation import MAX_NAME
from django_delayq.worker import failure
from django_delayq.worker.leases import Lease
from django_delayq.worker.transactions import (
    EndLeftOpen,
    LeavingNothingOpen,
    aleaving_nothing_open,
    end_left_open,
    run_and_finish,
    staying_in_it,
)

LATER_VERSION_MS = 60_000
"""How long a message whose data is of a later version than this code knows is left to workers with other code."""
_forks = 0
"""How many forks lie between the process that imported this module and this one.

Comparing this number costs less than asking for the process id.
"""
FORKED = (
    b"A process that a handler forked has left the handler, and is ended. "
    b"End it there with os._exit(), or start it with multiprocessing or subprocess.\n"
)


def begin_leased(lease: Lease) -> Message[Any] | Transition:
    """Return the message of a lease to run, or the transition that ends the lease if it must not start."""
    return _begin_leased(lease, begin)


def begin_lease_looked(lease: Lease) -> Message[Any] | Transition:
    """Do what `begin_leased` does, without a look whether a sequence was stopped: the caller looks."""
    return _begin_leased(lease, begin_looked)


def _begin_leased(lease: Lease, begin: Callable[..., Message[Any] | Transition]) -> Message[Any] | Transition:
    if lease.cancel_request is not None:
        return transitions.cancel(lease.claimed, lease.cancel_request)
    begun = begin(lease.claimed, lease.handler, lease.now_ms(), lease.check_held)
    if isinstance(begun, Message):
        begun._is_cancelled, begun._note_progress = lease.is_cancelled, lease.note_progress
    return begun


def unless_cancelled(lease: Lease, transition: Transition) -> Transition:
    """Return the transition, or the one that cancels the message, if somebody has asked for that and it yields."""
    if lease.cancel_request is None or not transition.yields_to_cancel:
        return transition
    return transitions.cancel(lease.claimed, lease.cancel_request, Span(transition.started_ms, transition.ended_ms))


def begin(
    claimed: Claimed, handler: Handler[Any, Any], started_ms: int, is_held: Callable[[], bool]
) -> Message[Any] | Transition:
    """Return the message to run, or the transition that ends its lease if it must not start."""
    if stopped_among([claimed], handler):
        return transitions.release(claimed)  # which cancels it
    return begin_looked(claimed, handler, started_ms, is_held)


def begin_looked(
    claimed: Claimed, handler: Handler[Any, Any], started_ms: int, is_held: Callable[[], bool]
) -> Message[Any] | Transition:
    """Do what `begin` does, without a look whether a sequence was stopped: the caller looks."""
    header = claimed.header
    if header is None:
        return bury_foreign(claimed)
    refused = transitions.refuse(claimed, policy_of(claimed, handler), started_ms)
    if refused is not None:
        return refused
    if header.version is not None and header.version > handler.version:
        return _leave_to_later_code(claimed, later_version(header.version, handler.version))
    try:
        data = handler.accepted(claimed.body, header.version)
    except DataMismatch as mismatch:
        fingerprint = failure.fingerprint(mismatch.with_traceback(None), handler.func)
        return transitions.bury(claimed, Failure(failure.line(mismatch), fingerprint=fingerprint))
    queue, priority = split_lane(header.queue)
    return Message(
        claimed.id,
        header.key,
        data,
        claimed.due_ms,
        header.sent_ms,
        started_ms,
        claimed.failures + 1,
        claimed.token,
        queue,
        header.tag,
        header.trace_id,
        is_held,
        claimed.worker,
        priority,
        header.more_tags,
        header.share,
    )


def _leave_to_later_code(claimed: Claimed, why: str) -> Transition:
    """Return the transition of a message that only later code can read: it counts no attempt, and waits for that."""
    transition = transitions.release(claimed, LATER_VERSION_MS)
    transition.error = str(why)  # a statement that carries JSON can't write a Text
    return transition


def needs_look(claimed: Claimed) -> bool:
    """Return whether `begin` may ask the database whether a message may start: it may be a step of a sequence."""
    return "@" in claimed.id and bool(claimed.pk) and step_of(claimed.id) is not None


def stopped_among(claimed: Iterable[Claimed], handler: Handler[Any, Any]) -> Collection[str]:
    """Return the ids of those that are steps of sequences which were stopped after the claim, so they must not start.

    While the database does not answer, none of the steps may: they are released, and claimed again.
    """
    ids = [one.id for one in claimed if needs_look(one)]
    store = get_backend(handler.using).store if ids else None
    try:
        return store.stopped_among(ids) if store else ()
    except StoreUnavailable:
        return ids


def check_not_stopped(claimed: Iterable[Claimed], handler: Handler[Any, Any]) -> None:
    """Raise `Stopped` if one of these must not start. All of them are released then, and the others start again.

    This is the last look before the call. Since the first one a transaction may have waited for a lock, a receiver of
    `message_started` may have taken its time, and a batch takes a while to begin.
    """
    if stopped_among(claimed, handler):
        raise Stopped(
            "Its sequence, or that of another of its batch, was stopped before it started, or can't be asked."
        )


async def acheck_not_stopped(claimed: Collection[Claimed], handler: Handler[Any, Any]) -> None:
    """Do what `check_not_stopped` does, from async code."""
    if any(map(needs_look, claimed)):
        await sync_to_async(check_not_stopped)(claimed, handler)


def run_sync(
    claimed: Claimed, handler: Handler[Any, Any], message: Message[Any], database: str
) -> BaseException | None:
    """Run a handler in this thread, and return the exception that it raised, or None.

    An async handler gets an event loop of its own. If an atomic handler raises nothing and its message is a row, the
    row is finished in the same transaction. Nothing that a handler raises may end its thread.
    """
    try:
        if not handler.atomic:  # else this is asked within its transaction
            check_not_stopped([claimed], handler)
        with tracing.running(handler, message) if tracing.tracer else tracing.UNFOLLOWED:
            if handler.is_async:
                asyncio.run(acall(handler, message, sync_to_async(end_left_open)))
            elif not handler.atomic:
                call(handler, message)
            elif claimed.pk and (store := get_backend(handler.using).store):
                run = partial(_call_unless_stopped, claimed, handler, message)
                run_and_finish(run, message, int(claimed.pk), store)
            else:
                with LeavingNothingOpen(), transaction.atomic(using=database), staying_in_it(database):
                    call(handler, message)
    except BaseException as exception:  # noqa: BLE001 - SystemExit in a handler fails its message, not the worker
        return exception
    return None


def _call_unless_stopped(claimed: Claimed, handler: Handler[Any, Any], message: Message[Any]) -> None:
    check_not_stopped([claimed], handler)
    call(handler, message)


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _end_fork() -> None:
    """End this process, because a handler forked it and it has left the handler: it would act as a second worker."""
    with suppress(OSError):
        os.write(2, FORKED)
    os._exit(1)


def call(handler: Handler[Any, Any], argument: Message[Any] | list[Message[Any]]) -> Any:
    """Call a sync handler with what it takes, and return what it returned."""
    forks = _forks
    with LeavingNothingOpen():
        try:
            returned = handler.func(argument)  # type: ignore[arg-type]  # as in `Handler.__call__`
        finally:
            if _forks != forks:
                _end_fork()
    # A coroutine that a plain function returns has not run: it must not count as finished.
    if returned is None or not inspect.isawaitable(returned):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError("The handler is no async function, and returned an awaitable that nobody awaits; write async def.")


async def run_async(
    handler: Handler[Any, Any], message: Message[Any], end_left_open: EndLeftOpen
) -> BaseException | None:
    """Run an async handler on the running event loop, and return the exception that it raised, or None.

    For a handler that was cancelled, return its `CancelledError`. The caller has the tracer follow the attempt, because
    it knows why the handler was cancelled.
    """
    try:
        await acall(handler, message, end_left_open)
    except BaseException as exception:  # noqa: BLE001 - as above
        return exception
    return None


async def acall(
    handler: Handler[Any, Any], argument: Message[Any] | list[Message[Any]], end_left_open: EndLeftOpen
) -> Any:
    """Call an async handler with what it takes, and return what it returned."""
    async with aleaving_nothing_open(end_left_open):
        forks = _forks
        try:
            return await handler.func(argument)  # type: ignore[arg-type]  # as in `Handler.__call__`
        finally:
            if _forks != forks:
                _end_fork()


def after(
    claimed: Claimed, handler: Handler[Any, Any], exception: BaseException | None, started_ms: int, now_ms: int
) -> Transition:
    """Return the transition of a message after its attempt. `exception` is what the attempt raised; None if nothing."""
    span = Span(started_ms, now_ms)
    if isinstance(exception, Stopped):
        return transitions.release(claimed)
    if exception is None:
        return transitions.finish(claimed, span, is_written=handler.atomic and bool(claimed.pk))
    if isinstance(exception, Snooze):
        asked = Again(exception.delay_from(now_ms) or 0, exception.at_ms)
        delay_ms, at_ms = in_window(asked, claimed, handler, exception, now_ms)
        return transitions.snooze(claimed, delay_ms, policy_of(claimed, handler), span, at_ms=at_ms)
    failed = Failure(failure.line(exception), failure.traceback_of(exception, handler.func))
    if isinstance(exception, Bury):
        transition = transitions.bury(claimed, failed, span, failed=True)
    else:
        again = partial(_retry_at, claimed, handler, exception, now_ms)
        transition = transitions.fail(claimed, failed, policy_of(claimed, handler), span, again)
    if transition.state is State.FAILED or not isinstance(
        exception, Retry
    ):  # a `Retry` that waits again is no surprise
        transition.fingerprint = failure.fingerprint(exception, handler.func)
    return transition


def policy_of(claimed: Claimed, handler: Handler[Any, Any]) -> Policy:
    """Return how many times a message may be tried, whether it may start again, and until when it may start."""
    header = claimed.header
    if header is None or not header.has_own_policy:
        return handler.policy
    return Policy(is_at_most_once(header, handler), max_attempts(header, handler), header.expires_at_ms)


def bury_foreign(claimed: Claimed) -> Transition:
    """Return the transition that buries a message that can't be read or that django-delayq did not write."""
    reason = claimed.unfit or "its header can't be read, or is not of the set it lay in: not written by django-delayq"
    return transitions.bury(claimed, Failure(reason))


def interrupted_settlement(lease: Lease, what: str) -> Transition | None:
    """Return the transition for a handler that was stopped, or told to stop, because its lease is no longer held.

    If nobody has taken the message meanwhile, it runs again soon, and nothing is counted. Return None if another worker
    has it. Return None for an at-most-once message too: its lease lapses, and maintenance buries it. `what` says in the
    log line what was done to the handler.
    """
    claimed, handler = lease.claimed, lease.handler
    logger.warning(
        "Message %r (%s): %s, and %s.",
        claimed.id, handler.key, _why(lease), what,
        extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
    )  # fmt: skip
    if lease.lost or is_at_most_once(claimed.header, handler):
        return None
    policy = policy_of(claimed, handler)
    return transitions.interrupt(claimed, policy, Span(lease.ms_of(lease.started_at)))


def _why(lease: Lease) -> str:
    if lease.interrupted:
        return "its worker stops"
    return "its lease was lost" if lease.lost else "its lease could not be renewed in time"


def in_ascii(transition: Transition) -> Transition:
    """Return the transition with non-ASCII characters in its texts escaped: some databases can't store them all."""
    return replace(
        transition,
        error=None if transition.error is None else failure.to_ascii(transition.error),
        detail=failure.to_ascii(transition.detail),
        fingerprint=failure.to_ascii(transition.fingerprint)[:MAX_NAME],
        history=None if transition.history is None else history.retold(transition.history, failure.to_ascii),
    )


def in_place_of(
    transition: Transition, claimed: Claimed, handler: Handler[Any, Any], refusal: Exception
) -> list[Transition]:
    """Return the transitions to try, in this order, in place of one that is rejected for good."""
    why = failure.to_ascii(failure.first_line(refusal))

    def wait_ms(attempt: int) -> int:  # longer each time, whatever the handler says: the cause may last
        return backoff_ms(Exponential(), attempt, refusal)

    return transitions.in_place_of(transition, claimed, policy_of(claimed, handler), why, wait_ms)


def _retry_at(
    claimed: Claimed, handler: Handler[Any, Any], exception: BaseException, now_ms: int, attempt: int
) -> Again:
    at_ms = exception.at_ms if isinstance(exception, Retry) else None
    asked = Again(retry_delay_ms(handler, exception, now_ms, attempt), at_ms)
    return in_window(asked, claimed, handler, exception, now_ms)


def in_window(
    asked: Again, claimed: Claimed, handler: Handler[Any, Any], exception: BaseException, now_ms: int
) -> Again:
    """Return when a message runs again that asks for `asked`: when the window that holds for it opens, if it is closed.

    A window of no use, such as one whose calendar raises, is logged and left out: the message must run again.
    """
    try:
        window, spread_ms = _window_of(claimed, handler, exception)
        if window is None:
            return asked
        asked_ms = now_ms + asked.delay_ms
        due_ms = due_in_window_ms(asked_ms, window, 0, claimed.id)
        if due_ms != asked_ms:  # else a retry after seconds would be spread too
            due_ms = due_in_window_ms(due_ms, window, spread_ms, claimed.id)
    except BaseException as wrong:  # noqa: BLE001 - a calendar is the site's code
        logger.warning(
            "The window of message %r (%s) is of no use (%s); it runs again in or out of it.",
            claimed.id,
            handler.key,
            failure.line(wrong),
            extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
        )
        return asked
    return Again(due_ms - now_ms, due_ms)


def _window_of(claimed: Claimed, handler: Handler[Any, Any], exception: BaseException) -> tuple[Windows | None, int]:
    """Return the window that holds for a message that runs again, and over how many ms after its opening to spread.

    It is that of the exception, or else of the message, or else of its handler.
    """
    if isinstance(exception, RunAgain) and exception.window != "own":
        return exception.window, 0
    if claimed.rule:
        from django_delayq.core.rules import decode  # late: most messages have none

        rule = decode(claimed.rule)
        if rule.windows:
            return rule.windows, rule.spread_ms
    return handler.window, 0


def retry_delay_ms(handler: Handler[Any, Any], exception: BaseException, now_ms: int, attempt: int) -> int:
    """Return the milliseconds until the next attempt: what `Retry` names, or else what the handler's backoff says."""
    named_ms = exception.delay_from(now_ms) if isinstance(exception, Retry) else None
    if named_ms is not None:
        return named_ms
    try:
        return backoff_ms(handler.backoff, attempt, exception)
    except BaseException as wrong:  # noqa: BLE001 - a backoff function is the site's code
        logger.error(
            "The backoff of %s is of no use (%s); waiting as Exponential() says.",
            handler.key,
            failure.line(wrong),
            extra={"key": handler.key, "attempt": attempt},
        )
        return backoff_ms(Exponential(), attempt, exception)
