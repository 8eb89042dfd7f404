"""Run due messages like a worker, but without a worker and without waiting."""

import asyncio
import math
import random
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, connections, transaction

from django_delayq.api.handlers import handlers_by_key
from django_delayq.api.on_commit import waiting_sends
from django_delayq.brokers.base import Claimed, SettleAction, Transition
from django_delayq.conf import DEFAULT_ALIAS, get_alias
from django_delayq.core.message import Message
from django_delayq.core.transitions import is_at_most_once
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import check_count
from django_delayq.testing.broker import RUN_DUE, AnyHandler
from django_delayq.testing.timeline import Timeline, timeline
from django_delayq.worker import attempt
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.transactions import blocks_open, end_left_open

MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a handler: when it ran by the moved clock, and how it `ended`: finish, retry, snooze or bury."""

    id: str
    key: str
    number: int
    at: datetime
    ended: SettleAction
    error: str = ""
    exception: BaseException | None = None


def run_due(until: Duration = 0, *, deliveries: int = 1, using: str = DEFAULT_ALIAS) -> list[Attempt]:
    """Run every message that is due within `until` from now, in due order, and return every attempt.

    The clock leaps to each due time, and at last to the end of `until`. Retries, snoozes and messages that handlers
    send run too if they are due by then. Sync and async handlers run in this thread, so they see the test's
    transaction. An exception of a handler is not raised here: it fails the attempt, like in a worker, and is in
    `Attempt.exception`. Messages without a handler are left waiting.

    With a store, rows are made older instead of moving a clock, in the transaction of this thread, which need not be
    committed: a message's `due_at` is the real time when it runs. Without a store, in a `TestCase`, messages that wait
    for a commit that never comes are sent first; inside an `atomic()` of the code under test they go on waiting.

    If a database error ends a handler while a transaction is open, the handler's writes are undone, because the error
    would make the transaction unusable.

    `deliveries=2` delivers every message twice, as if the worker had been killed between the end of a handler and its
    report: an idempotent handler doesn't mind. Messages that are `at_most_once` are delivered once; with a store, so
    are messages of an `atomic` handler, because their end is in its transaction.

    Raises `RuntimeError` after 10,000 attempts (handlers that send or retry without a delay never end), and in a
    running event loop, where `arun_due` must be used.
    """
    _refuse_event_loop()
    check_count(deliveries, "deliveries")
    time, handlers = timeline(using), handlers_by_key(using)
    with time.stopped():
        _commit_as_test_case(using)
        left_ms = to_ms(until, "until") + 1  # due times are rounded up, so the end must be
        attempts: list[Attempt] = []
        while (due := time.claim_next(handlers, left_ms)) is not None:
            if len(attempts) >= MOST_ATTEMPTS:
                raise RuntimeError(f"{MOST_ATTEMPTS} attempts and no end; the next is of message {due.claimed.id!r}.")
            left_ms -= due.leapt_ms
            attempts.extend(_deliver(time, due.claimed, due.handler, deliveries))
            _commit_as_test_case(using)
        time.leap(left_ms)
    return attempts


async def arun_due(until: Duration = 0, *, deliveries: int = 1, using: str = DEFAULT_ALIAS) -> list[Attempt]:
    """Run due messages like `run_due`, from async code. Handlers run in the thread of `sync_to_async`."""
    return await sync_to_async(run_due)(until, deliveries=deliveries, using=using)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run_due() can't run handlers inside an event loop; use `await arun_due()`.")


def _commit_as_test_case(using: str) -> None:
    alias = get_alias(using)
    blocks = connections[alias.database].atomic_blocks
    if all(getattr(block, "_from_testcase", False) for block in blocks):  # TestCase marks its own blocks
        for send in list(waiting_sends(alias)):
            send.after_commit()


def _deliver(time: Timeline, claimed: Claimed, handler: AnyHandler, deliveries: int) -> list[Attempt]:
    """Run a message up to `deliveries` times, or until an attempt does not finish, and settle it."""
    if _is_never_repeated(claimed, handler):
        deliveries = 1
    attempts = []
    # Each delivery has a token of its own, like after a reclaim.
    for token in (claimed.token, *(random.getrandbits(63) for _ in range(deliveries - 1))):
        transition, made = _attempt(time, replace(claimed, token=token), handler)
        attempts.append(made)
        if transition.action is not SettleAction.FINISH:
            break
    time.apply([replace(transition, token=claimed.token)])
    return attempts


def _is_never_repeated(claimed: Claimed, handler: AnyHandler) -> bool:
    if is_at_most_once(claimed.header, handler):
        return True
    return handler.atomic and get_alias(handler.using).store is not None


def _attempt(time: Timeline, claimed: Claimed, handler: AnyHandler) -> tuple[Transition, Attempt]:
    at, now_ms, started_at = from_ms(time.moved_ms), time.now_ms, monotonic()
    lease = Lease(claimed, handler, started_at, math.inf, clock_ms=0, started_at=started_at)
    outcome = AttemptEvents(RUN_DUE)
    message: Message[Any] | None = None
    exception = None
    begun = attempt.begin(claimed, handler, now_ms, lease.is_held)
    if isinstance(begun, Message):
        message = begun
        outcome.begun(lease, message)
        exception = _run(claimed, handler, message)
        transition = attempt.after(claimed, handler, exception, now_ms, time.now_ms)
    else:
        transition = begun
    outcome.ended(lease, transition, message, exception)
    number = claimed.failures + 1
    key = claimed.header.key if claimed.header else handler.key
    made = Attempt(claimed.id, key, number, at, transition.action, transition.error or "", exception)
    return transition, made


def _run(claimed: Claimed, handler: AnyHandler, message: Message[Any]) -> BaseException | None:
    using = get_alias(handler.using).database
    if not connections[using].in_atomic_block:
        return _call(claimed, handler, message, using)
    savepoint = connections[using].savepoint() or ""  # in a transaction, and on these databases, it is never None
    exception = _call(claimed, handler, message, using)
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
        return async_to_sync(attempt.run_async)(handler, message, end)
    return attempt.run_sync(claimed, handler, message, database)
