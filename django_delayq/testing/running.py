"""Run due messages like a worker, but without a worker and without waiting."""

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any, Literal, get_args

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connections, transaction

from django_delayq import tracing
from django_delayq.api.handlers import handlers_by_key
from django_delayq.api.on_commit import waiting_sends
from django_delayq.brokers.base import CancelRequest, Claimed, SettleAction, Transition
from django_delayq.conf import DEFAULT_ALIAS, get_alias
from django_delayq.core import transitions
from django_delayq.core.errors import DataMismatch
from django_delayq.core.message import Message
from django_delayq.core.transitions import Span, is_at_most_once
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import check_count
from django_delayq.testing.broker import LEASE_MS, RUN_DUE, AnyHandler, Due
from django_delayq.testing.clock import now_ms
from django_delayq.testing.timeline import Messages, Passage, messages_of, passing_time
from django_delayq.worker import attempt, batches
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.limiter import plain_data
from django_delayq.worker.transactions import blocks_open, end_left_open

MOST_ATTEMPTS = 10_000
Errors = Literal["raise", "keep"]
_FATES = {
    SettleAction.RETRY: ("it would be tried again", "fail"),
    # its data is of a later version than the code
    SettleAction.RELEASE: ("a worker with this code would not run it, but leave it to later code", "wait"),
}
"""What is said of a message by how its attempt ended, and what the test may mean it to do."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a handler: when it ran by the moved clock, and how it `ended`.

    That is finish, retry, snooze, bury or cancel, or release if its data is of a later version than the code: then it
    did not run, and waits.
    """

    id: str
    key: str
    number: int
    at: datetime
    ended: SettleAction
    error: str = ""
    exception: BaseException | None = None


def run_due(
    until: Duration = 0,
    *,
    errors: Errors = "raise",
    deliveries: int = 1,
    using: str = DEFAULT_ALIAS,
) -> list[Attempt]:
    """Run every message that is due within `until` from now, in due order, and return every attempt.

    Python's clock moves to each due time, and at last to the end of `until`, and stays there until the end of the test.
    That needs time-machine or freezegun; without them messages get older instead. If a test neither uses
    `use_memory_broker` nor has moved the clock itself, the clock moves back when this returns, and the messages get
    older by the time that passed. Retries, snoozes and messages that handlers send run too if they are due by then.
    Sync and async handlers run in this thread, so they see the test's transaction, which need not be committed.
    Messages without a handler are left waiting. Each occurrence of a schedule runs at its time: that of one in the code
    after `sync_delay_schedules()`.

    A message that the `rate_limit` of its handler does not let start waits for its turn, as at a worker; each call
    begins with the whole `burst`. One message runs at a time, so no `max_concurrency` is ever reached.

    A handler with a `batch` is called as a worker calls it: with a list, once it is full or its `wait` is over. At the
    end of `until` it waits no longer.

    The message that follows a `Batch` is put at once, also if the last member was cancelled: no worker has to look.

    An attempt that fails ends the run: its exception is raised, with a note that names the message. With
    `errors="keep"` the run goes on like a worker, and the exception is in `Attempt.exception`.

    Without a store, in a `TestCase`, messages that wait for a commit that never comes are sent first; inside an
    `atomic()` of the code under test they go on waiting.

    If a database error ends a handler while a transaction is open, the handler's writes are undone, because the error
    would make the transaction unusable.

    `deliveries=2` delivers every message twice, as if the worker had been killed between the end of a handler and its
    report: an idempotent handler doesn't mind. Messages that are `at_most_once` are delivered once; with a store, so
    are messages of an `atomic` handler, because their end is in its transaction.

    Raises `RuntimeError` after 10,000 attempts (handlers that send or retry without a delay never end), and in a
    running event loop, where `arun_due` must be used. Raises `ImproperlyConfigured` if an occurrence of a schedule is
    due within `until` and messages get older, as above: its rule counts by the clock.
    """
    _refuse_event_loop()
    check_count(deliveries, "deliveries")
    if errors not in get_args(Errors):
        raise ValueError(f'errors={errors!r} must be "raise" or "keep".')
    messages, handlers = messages_of(using), handlers_by_key(using)
    turns = _Turns(messages)
    _commit_as_test_case(using)
    attempts: list[Attempt] = []
    with passing_time(messages, to_ms(until, "until")) as passage, _Gathering(messages, passage) as gathering:
        while claimed := _next_run(messages, handlers, turns, passage, gathering):
            key = claimed[0].header.key if claimed[0].header else ""
            if len(attempts) >= MOST_ATTEMPTS:
                why = f" The one before: {attempts[-1].error}." if attempts[-1].error else ""
                raise RuntimeError(f"{MOST_ATTEMPTS} attempts and no end; the next is of {key!r}.{why}")
            made = _deliver(messages, claimed, handlers[key], deliveries)
            if errors == "raise":
                for one in made[-len(claimed) :]:
                    _raise_if_failed(one)
            attempts += made
            _commit_as_test_case(using)
        passage.end()
    return attempts


class _Gathering:
    """The messages that wait for others of their batch, by handler, as in a worker's buffers.

    Those that still wait at the end of the block, because an exception ended it, are released.
    """

    def __init__(self, messages: Messages, passage: Passage) -> None:
        self._messages = messages
        self._passage = passage
        self._waiting: dict[AnyHandler, list[Claimed]] = {}
        self._started: dict[AnyHandler, int] = {}  # when its first message came, in ms that have passed

    def __enter__(self) -> "_Gathering":
        return self

    def __exit__(self, *error: object) -> None:
        for waiting in self._waiting.values():
            self._messages.apply([transitions.release(claimed) for claimed in waiting])

    def add(self, claimed: Claimed, handler: AnyHandler) -> list[Claimed]:
        """Add a message, and return the batch if it is full; else nothing."""
        waiting = self._waiting.setdefault(handler, [])
        self._started.setdefault(handler, self._passage.passed_ms)
        waiting.append(claimed)
        return self._take(handler) if len(waiting) >= (handler.batch or 1) or self._starts_at_once(waiting) else []

    def next_batch(self, due: Due | None) -> list[Claimed]:
        """Return the batch whose wait ends before the next message is `due`; nothing if there is none.

        Time passes until then. Once no more messages come within the time, no batch waits any longer.
        """
        if not self._waiting:
            return []
        first = min(self._waiting, key=lambda handler: self._started[handler] + handler.wait_ms)
        starts_ms = now_ms() + max(self._started[first] + first.wait_ms - self._passage.passed_ms, 0)
        if due is not None and due.due_ms <= starts_ms:
            return []
        return self._take(first) if self._passage.reach(starts_ms) else []

    def rest(self) -> list[Claimed]:
        """Return a batch that waits; nothing if there is none."""
        return self._take(next(iter(self._waiting))) if self._waiting else []

    def _take(self, handler: AnyHandler) -> list[Claimed]:
        del self._started[handler]
        return self._waiting.pop(handler)

    def _starts_at_once(self, waiting: Sequence[Claimed]) -> bool:
        return any(claimed.header is not None and claimed.header.at_most_once for claimed in waiting)


class _Turns:
    """The turns of messages whose handlers have a rate, in due order.

    A limiter keeps no turn for what it refuses, because another worker may ask first. Here nobody else asks, so each
    message gets a turn of its own at once, and is released once.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._next_us: dict[tuple[str, str], int] = {}  # when the next start would come at the rate alone
        self._waiting: set[str] = set()  # the ids of messages that have a turn, and wait for it

    def wait_of(self, claimed: Claimed, handler: AnyHandler) -> int:
        """Return for how many ms a message must wait for its turn; 0 if it may start."""
        limits = handler.limits
        if limits is None or limits.interval_us is None:
            return 0
        if claimed.id in self._waiting:
            self._waiting.remove(claimed.id)
            return 0
        try:
            _permit_value, value = limits.values_of(plain_data(claimed, handler))
        except DataMismatch:  # its attempt tells
            return 0
        now_us = (now_ms() + self._messages.aged_ms) * 1000
        turn_us = max(self._next_us.get((handler.key, value), now_us), now_us)
        self._next_us[handler.key, value] = turn_us + limits.interval_us
        wait_ms = -((now_us + (limits.burst - 1) * limits.interval_us - turn_us) // 1000)
        if wait_ms <= 0:
            return 0
        self._waiting.add(claimed.id)
        return wait_ms


def _next_run(
    messages: Messages,
    handlers: Mapping[str, AnyHandler],
    turns: _Turns,
    passage: Passage,
    gathering: _Gathering,
) -> list[Claimed]:
    """Return what runs next: one message, or a batch; nothing at the end of the time."""
    while True:
        due = _next_due(messages, handlers, passage)
        if batch := gathering.next_batch(due):
            return batch
        if due is None or not passage.reach(due.due_ms):
            return gathering.rest()
        claimed, handler = messages.claim_one(due), handlers[due.key]
        if wait_ms := turns.wait_of(claimed, handler):
            messages.apply([transitions.release(claimed, wait_ms)])
            continue
        if handler.batch is None:
            return [claimed]
        if batch := gathering.add(claimed, handler):
            return batch


def _next_due(messages: Messages, handlers: Mapping[str, AnyHandler], passage: Passage) -> Due | None:
    """Return the message that is due next, once all is put that upkeep would put before it."""
    while True:
        messages.end_batches()
        due, look_ms = messages.next_due(handlers), messages.next_look_ms()
        if look_ms is None or (due is not None and due.due_ms < look_ms) or not passage.reach(look_ms):
            return due
        messages.put_occurrences()


async def arun_due(
    until: Duration = 0,
    *,
    errors: Errors = "raise",
    deliveries: int = 1,
    using: str = DEFAULT_ALIAS,
) -> list[Attempt]:
    """Run due messages like `run_due`, from async code. Handlers run in the thread that `sync_to_async` uses."""
    return await sync_to_async(run_due)(until, errors=errors, deliveries=deliveries, using=using)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run_due() can't run handlers inside an event loop; use `await arun_due()`.")


def _commit_as_test_case(using: str) -> None:
    alias = get_alias(using)
    blocks = connections[alias.database].atomic_blocks
    if not all(getattr(block, "_from_testcase", False) for block in blocks):  # TestCase marks its own blocks
        return
    sends = list(waiting_sends(alias))
    for send in sends:  # Python's clock may have been moved since the call, the monotonic one was not
        send.called_ns = monotonic_ns() - (now_ms() - send.called_ms) * 1_000_000
    for send in sends:
        send.after_commit()


def _raise_if_failed(made: Attempt) -> None:
    """Raise the exception of an attempt that failed, with a note on its message; `AssertionError` if it has none."""
    if made.ended in (SettleAction.FINISH, SettleAction.SNOOZE, SettleAction.CANCEL):
        return
    if made.ended is SettleAction.RELEASE and not made.error:  # of a batch that was rolled back for another
        return
    then, meant = _FATES.get(made.ended, ("it failed for good", "fail"))
    told = (
        f"Message {made.id!r} (key {made.key!r}), attempt {made.number}: {then}. "
        f'If the test means it to {meant}, write run_due(…, errors="keep").'
    )
    if made.exception is None:
        raise AssertionError(f"{made.error}. {told}")
    made.exception.add_note(told)
    raise made.exception


def _deliver(messages: Messages, claimed: Sequence[Claimed], handler: AnyHandler, deliveries: int) -> list[Attempt]:
    """Run messages together up to `deliveries` times, until an attempt does not finish. After that, settle them."""
    if any(_is_never_repeated(one, handler) for one in claimed):
        deliveries = 1
    attempts: list[Attempt] = []
    ended: list[Transition] = []
    for number in range(deliveries):
        # Each delivery has a token of its own, like after a reclaim.
        leased = claimed if number == 0 else [replace(one, token=random.getrandbits(63)) for one in claimed]
        if handler.batch is None:
            transition, made = _attempt(messages, leased[0], handler)
            ended, attempts = [transition], [*attempts, made]
        else:
            ended, made_of_batch = _attempt_batch(messages, leased, handler)
            attempts += made_of_batch
        if any(transition.action is not SettleAction.FINISH for transition in ended):
            break
    answers = messages.apply([replace(end, token=one.token) for end, one in zip(ended, claimed, strict=True)])
    for place, (one, end, answer) in enumerate(zip(claimed, ended, answers, strict=True), -len(claimed)):
        if isinstance(answer, CancelRequest):
            cancelled = transitions.cancel(one, answer, Span(end.started_ms, end.ended_ms))
            messages.apply([cancelled])
            attempts[place] = replace(attempts[place], ended=cancelled.action, error=cancelled.error or "")
    return attempts


def _is_never_repeated(claimed: Claimed, handler: AnyHandler) -> bool:
    if is_at_most_once(claimed.header, handler):
        return True
    return handler.atomic and get_alias(handler.using).store is not None


def _attempt(messages: Messages, claimed: Claimed, handler: AnyHandler) -> tuple[Transition, Attempt]:
    started_ms, started_at = now_ms(), monotonic()
    at = from_ms(started_ms + messages.aged_ms)
    lease = Lease(claimed, handler, started_at, math.inf, clock_ms=0, started_at=started_at)
    outcome = AttemptEvents(RUN_DUE)
    message: Message[Any] | None = None
    exception = None
    begun = attempt.begin(claimed, handler, started_ms, lease.is_held)
    if isinstance(begun, Message):
        message = begun
        message._is_cancelled = partial(_is_cancelled, messages, claimed)
        message._note_progress = partial(_note_progress, messages, claimed)
        outcome.begun(lease, message)
        exception = _run(claimed, handler, message)
        transition = attempt.after(claimed, handler, exception, started_ms, now_ms())
        transition = _unless_cancelled(messages, lease, transition, exception)
    else:
        transition = begun
    outcome.ended(lease, transition, message, exception)
    return transition, _made(claimed, handler, at, transition, exception)


def _unless_cancelled(
    messages: Messages, lease: Lease, transition: Transition, exception: BaseException | None
) -> Transition:
    """Return the end of an attempt before it is logged: cancelled if somebody asked for that, and it has failed."""
    if exception is None or not transition.yields_to_cancel:
        return transition
    lease.cancel_request = _cancel_request(messages, lease.claimed)
    return attempt.unless_cancelled(lease, transition)


def _made(
    claimed: Claimed, handler: AnyHandler, at: datetime, transition: Transition, exception: BaseException | None
) -> Attempt:
    key = claimed.header.key if claimed.header else handler.key
    return Attempt(claimed.id, key, claimed.failures + 1, at, transition.action, transition.error or "", exception)


def _attempt_batch(
    messages: Messages, claimed: Sequence[Claimed], handler: AnyHandler
) -> tuple[list[Transition], list[Attempt]]:
    started_ms, started_at = now_ms(), monotonic()
    at = from_ms(started_ms + messages.aged_ms)
    outcome = AttemptEvents(RUN_DUE)
    started: list[batches.Started] = []
    leases: dict[str, Lease] = {}
    ended: dict[str, batches.Ended] = {}
    for one in claimed:
        lease = leases[one.id] = Lease(one, handler, started_at, math.inf, clock_ms=0, started_at=started_at)
        begun = attempt.begin_looked(one, handler, started_ms, lease.is_held)
        if isinstance(begun, Message):
            outcome.begun(lease, begun)
            started.append((one, begun))
        else:
            ended[one.id] = begun, None
    if started:
        made = _run_batch(started, handler)
        ended |= {one.id: end for (one, _), end in zip(started, made, strict=True)}
    run = {one.id: message for one, message in started}
    for id, (transition, exception) in ended.items():
        ended[id] = _unless_cancelled(messages, leases[id], transition, exception), exception
    for one in claimed:
        if ended[one.id][0].action is not SettleAction.RELEASE:  # of a batch that was rolled back for another
            outcome.ended(leases[one.id], ended[one.id][0], run.get(one.id), ended[one.id][1])
    return [ended[one.id][0] for one in claimed], [_made(one, handler, at, *ended[one.id]) for one in claimed]


def _run_batch(started: Sequence[batches.Started], handler: AnyHandler) -> list[batches.Ended]:
    using, listed = get_alias(handler.using).database, [message for _, message in started]
    ended: list[batches.Ended] = []

    def call() -> Any:
        if not handler.is_async:
            return attempt.call(handler, listed)
        return async_to_sync(attempt.acall)(handler, listed, sync_to_async(partial(end_left_open, blocks_open())))

    def run() -> BaseException | None:
        ended[:] = batches.run(handler, started, call, using, now_ms)
        return next((exception for _, exception in ended if isinstance(exception, DatabaseError)), None)

    _undoing_errors(using, run)
    return ended


def _is_cancelled(messages: Messages, claimed: Claimed) -> bool:
    """Return whether somebody has asked to cancel the message. There is no renewal to wait for, so this asks."""
    return _cancel_request(messages, claimed) is not None


def _cancel_request(messages: Messages, claimed: Claimed) -> CancelRequest | None:
    answer = messages.renew([claimed], LEASE_MS)[0]
    return answer if isinstance(answer, CancelRequest) else None


def _note_progress(messages: Messages, claimed: Claimed, written: str) -> None:
    messages.renew([claimed], LEASE_MS, {(claimed.id, claimed.token): written})


def _run(claimed: Claimed, handler: AnyHandler, message: Message[Any]) -> BaseException | None:
    using = get_alias(handler.using).database
    return _undoing_errors(using, partial(_call, claimed, handler, message, using))


def _undoing_errors(using: str, run: Callable[[], BaseException | None]) -> BaseException | None:
    """Run something, and return the exception that it returned. After a database error, undo what it wrote."""
    if not connections[using].in_atomic_block:
        return run()
    savepoint = connections[using].savepoint() or ""  # in a transaction, and on these databases, it is never None
    exception = run()
    if isinstance(exception, DatabaseError):  # it may have made the test's transaction unusable
        transaction.set_rollback(False, using)
        connections[using].savepoint_rollback(savepoint)
    else:
        connections[using].savepoint_commit(savepoint)
    return exception


def _call(claimed: Claimed, handler: AnyHandler, message: Message[Any], database: str) -> BaseException | None:
    if handler.is_async:
        # Unlike with asyncio.run, sync code that the handler calls runs in this thread, with its database connection.
        end = sync_to_async(partial(end_left_open, blocks_open()))
        followed = tracing.running(handler, message)
        exception = async_to_sync(attempt.run_async)(handler, message, end)
        followed.end(exception)
        return exception
    return attempt.run_sync(claimed, handler, message, database)
