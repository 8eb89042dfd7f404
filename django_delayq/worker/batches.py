"""Run many messages in one call of their handler, and give each its own end.

Nothing here runs for a handler of single messages.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from django_delayq import tracing
from django_delayq.api.handlers import Handler
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Claimed, SettleAction, Transition
from django_delayq.core import transitions
from django_delayq.core.message import Message
from django_delayq.support.validation import short_repr
from django_delayq.worker import attempt
from django_delayq.worker.attempt import interrupted_settlement
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.logs import guarded
from django_delayq.worker.transactions import (
    BatchLost,
    LeavingNothingOpen,
    close_read_only_connections,
    end_left_open,
    run_and_settle,
    staying_in_it,
)

AnyHandler = Handler[Any, Any]
Started = tuple[Claimed, Message[Any]]
Ended = tuple[Transition, BaseException | None]
"""What becomes of a message, and what the run raised for it."""
Exceptions = Mapping[str, BaseException | None]
"""What the run raised for each message, by id; a message that is left out is finished."""


def run_leases(leases: Sequence[Lease], events: AttemptEvents, database: str) -> dict[Lease, Transition | None]:
    """Run a batch in this thread, and return how each lease ends; None leaves it to lapse."""
    handler, ends = leases[0].handler, dict[Lease, Transition | None]()
    started, refused = begin(leases, events, has_deadline=not handler.is_async)
    for lease, transition in refused.items():
        events.ended(lease, transition, None, None)
        ends[lease] = transition
    for lease, message in started.items():
        events.begun(lease, message)
    if not started:
        return ends
    runs = [(lease.claimed, message) for lease, message in started.items()]
    call = partial(_call, handler, list(started.values()))
    ended = run(handler, runs, call, database, leases[0].now_ms)
    for (lease, message), (transition, exception) in zip(started.items(), ended, strict=True):
        if lease.cancel_request is not None and not transition.is_written:
            transition = attempt.unless_cancelled(lease, transition)
        if lease.abandoned and not lease.lost and not transition.is_written:
            ends[lease] = interrupted_settlement(lease, "its handler was told so")
        elif transition.action is SettleAction.RELEASE:  # what ran has no effect, and does not count
            lease.released = True
            events.settling(lease, transition)
            ends[lease] = transition
        else:
            events.ended(lease, transition, message, exception)
            ends[lease] = transition
    for exception in distinct(exception for _, exception in ended):
        guarded(partial(close_read_only_connections, exception))
    return ends


def distinct(exceptions: Iterable[BaseException | None]) -> list[BaseException]:
    """Return each exception once."""
    return list({id(each): each for each in exceptions if each is not None}.values())


def begin(
    leases: Sequence[Lease], events: AttemptEvents, *, has_deadline: bool
) -> tuple[dict[Lease, Message[Any]], dict[Lease, Transition]]:
    """Return the messages to run, and the transitions of those that must not start.

    If the run `has_deadline`, only the end of the process can stop it. Whatever stops the run does so only once none of
    its messages is held any more.
    """
    started: dict[Lease, Message[Any]] = {}
    refused: dict[Lease, Transition] = {}
    stopped = attempt.stopped_among([lease.claimed for lease in leases], leases[0].handler)
    for lease in leases:
        events.starting(lease, lease.started_at + lease.timeout_s if has_deadline else 0.0)
        if lease.claimed.id in stopped:
            refused[lease] = transitions.release(lease.claimed)  # which cancels it
            continue
        begun = attempt.begin_lease_looked(lease)
        if isinstance(begun, Message):
            started[lease] = begun
        else:
            refused[lease] = begun
    for lease in started:
        if lease.cancel is not None:
            lease.cancel = stop_of(lease.cancel, list(started))
    return started, refused


def stop_of(stop: Callable[[], object], leases: Sequence[Lease]) -> Callable[[], object]:
    """Return a function that calls `stop`, unless one of the leases is held."""
    return lambda: None if any(lease.is_held() for lease in leases) else stop()


def stop_of_cancelled(stop: Callable[[], object], leases: Sequence[Lease]) -> Callable[[], object]:
    """Return a function that calls `stop` once somebody has asked to cancel the messages of all the leases."""
    return lambda: stop() if all(lease.is_cancelled() for lease in leases) else None


def run(
    handler: AnyHandler, runs: Sequence[Started], call: Callable[[], Any], database: str, now_ms: Callable[[], int]
) -> list[Ended]:
    """Call a handler with its messages, and return how each of them ends.

    If it is atomic and its messages are rows, they end in the same transaction. If one of them has been lost by then,
    all is rolled back, and the others are released: they run again, and nothing is counted.
    """
    messages = [message for _, message in runs]
    followed = [tracing.running(handler, message) for message in messages] if tracing.tracer else []
    exceptions: Exceptions = {}
    ended: list[Ended] | None = None

    def call_and_end() -> list[Transition]:
        nonlocal exceptions, ended
        attempt.check_not_stopped([claimed for claimed, _ in runs], handler)
        exceptions = exceptions_of(call(), messages)
        ended = ends_of(handler, runs, exceptions, now_ms)
        return [transition for transition, _ in ended]

    try:
        if handler.atomic and runs[0][0].pk and (store := get_backend(handler.using).store):
            run_and_settle(call_and_end, store)
        elif handler.atomic:
            with LeavingNothingOpen(), transaction.atomic(using=database), staying_in_it(database):
                call_and_end()
        else:
            call_and_end()
    except BatchLost as lost:
        exceptions = dict.fromkeys(lost.ids, lost)
        ended = ends_of(handler, runs, exceptions, now_ms)
        for place, (claimed, _) in enumerate(runs):
            if claimed.id not in exceptions:
                ended[place] = transitions.release(claimed), None
    except BaseException as exception:  # noqa: BLE001 - as for a single message
        exceptions = {message.id: exception for message in messages}
        ended = None
    for message, one in zip(reversed(messages), reversed(followed), strict=False):
        one.end(exceptions.get(message.id))
    return ends_of(handler, runs, exceptions, now_ms) if ended is None else ended


def exceptions_of(returned: object, messages: Sequence[Message[Any]]) -> Exceptions:
    """Return what a handler of many has returned.

    Raises `TypeError` or `ValueError`, which fails all, if that is no dict of ids and exceptions.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise TypeError(
            "A handler with batch= returns None, or a dict: the ids of messages that are not finished, each with an "
            f"exception. It returned {short_repr(returned)}."
        )
    ids = {message.id for message in messages}
    for id, end in returned.items():
        if id not in ids:
            raise ValueError(f"It returned an end for {short_repr(id)}, which is the id of none of its messages.")
        if end is not None and not isinstance(end, Exception):
            raise TypeError(f"It returned {short_repr(end)} for message {id!r}; give an exception, or None.")
    # The frames of a traceback are shown from the second on, because the first is ours.
    for exception in distinct(returned.values()):
        if exception.__traceback__ is not None:
            _raise_once(exception)
    return returned


def _raise_once(exception: BaseException) -> None:
    try:
        raise exception
    except type(exception):
        return


def ends_of(
    handler: AnyHandler, runs: Sequence[Started], exceptions: Exceptions, now_ms: Callable[[], int]
) -> list[Ended]:
    """Return what becomes of each message."""
    ended_ms = now_ms()
    found = [(claimed, message, exceptions.get(message.id)) for claimed, message in runs]
    return [
        (attempt.after(claimed, handler, exception, message.started_ms, ended_ms), exception)
        for claimed, message, exception in found
    ]


def _call(handler: AnyHandler, messages: list[Message[Any]]) -> Any:
    if handler.is_async:
        return asyncio.run(attempt.acall(handler, messages, sync_to_async(end_left_open)))
    return attempt.call(handler, messages)
