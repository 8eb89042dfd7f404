"""Running what is due, as a worker would, without a worker and without waiting."""

import asyncio
import math
import random
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from django_delayq.brokers.base import Claimed, Settlement, Verb, Want
from django_delayq.conf import DEFAULT_ALIAS, get_alias
from django_delayq.durations import Duration, to_ms
from django_delayq.handlers import Handler, handlers_by_key
from django_delayq.message import Message, from_ms
from django_delayq.sending.commit import waiting_sends
from django_delayq.testing.broker import VirtualTimeBroker, virtual_time_broker
from django_delayq.worker import attempt
from django_delayq.worker.lanes import Lane, Lease
from django_delayq.worker.outcome import Outcome

MOST_ATTEMPTS = 10_000
LEASE_MS = 3_600_000
_WORKER = "run_due"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a handler: when, by the moved clock, and how it ended ("finish", "retry", "snooze" or "bury")."""

    id: str
    key: str
    number: int
    at: datetime
    ended: Verb
    error: str = ""
    exception: BaseException | None = None


def run_due(until: Duration = 0, *, deliveries: int = 1, using: str = DEFAULT_ALIAS) -> list[Attempt]:
    """Run what is due from now to `until` from now, in due order, each at its due time, and give every attempt.

    Retries, snoozes and what handlers send run too when they come due in that time; then the clock stands at its end.
    Sync and async handlers run in this thread, so they see the test's transaction. What they raise is not raised here:
    it fails the attempt, as in a worker, and is in its `exception`. Messages without a handler stay parked.

    In a `TestCase`, what waits for the commit that never comes is sent first; inside an `atomic()` of the code under
    test it goes on waiting. `deliveries=2` delivers every message twice, as after a worker that was killed between the
    end of a handler and telling so: a handler that is idempotent doesn't mind. `at_most_once` ones are delivered once.

    Raises `RuntimeError` after 10,000 attempts (handlers that send or retry without a delay never end), and in a
    running event loop, where `arun_due` is right.
    """
    _refuse_event_loop()
    if deliveries < 1:
        raise ValueError(f"deliveries={deliveries!r} must be 1 or more.")
    broker = virtual_time_broker(using)
    with broker.stopped():
        _commit_as_test_case(using)
        end_ms = broker.now_ms + 1 + to_ms(until, "until")  # due times are rounded up, so the end must be
        attempts: list[Attempt] = []
        while (due := _claim_next(broker, using, end_ms)) is not None:
            if len(attempts) >= MOST_ATTEMPTS:
                raise RuntimeError(f"{MOST_ATTEMPTS} attempts and no end; the next is of message {due[0].id!r}.")
            attempts.extend(_deliver(broker, *due, deliveries))
            _commit_as_test_case(using)
        broker.leap(end_ms)
    return attempts


async def arun_due(until: Duration = 0, *, deliveries: int = 1, using: str = DEFAULT_ALIAS) -> list[Attempt]:
    """As `run_due`, from async code: handlers run in the thread that sync code runs in."""
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
    if all(getattr(block, "_from_testcase", False) for block in blocks):  # TestCase marks its own
        for send in list(waiting_sends(alias)):
            send.after_commit()


def _claim_next(broker: VirtualTimeBroker, using: str, end_ms: int) -> tuple[Claimed, Handler[Any, Any]] | None:
    """The message that is due next, at its due time, and its handler."""
    handlers = handlers_by_key(using)
    waiting = [found for found in broker.counts().waiting if found.key in handlers]
    due = [(found.next_due_ms, found.queue, found.key) for found in waiting if found.next_due_ms is not None]
    if not due:
        return None
    due_ms, queue, key = min(due)
    if due_ms > end_ms:
        return None
    broker.leap(due_ms)
    (claimed,) = broker.claim([Want(queue, key, 1)], lease_ms=LEASE_MS, worker=_WORKER).messages
    return claimed, handlers[key]


def _deliver(broker: VirtualTimeBroker, claimed: Claimed, handler: Handler[Any, Any], deliveries: int) -> list[Attempt]:
    """Run a message, again while deliveries are left and it went well, and settle it."""
    if handler.at_most_once or (claimed.header is not None and claimed.header.at_most_once):
        deliveries = 1
    attempts = []
    # Each delivery has a token of its own, as after a take-over.
    for token in (claimed.token, *(random.getrandbits(63) for _ in range(deliveries - 1))):
        settlement, made = _attempt(broker, replace(claimed, token=token), handler)
        attempts.append(made)
        if settlement.verb is not Verb.FINISH:
            break
    broker.settle([replace(settlement, token=claimed.token)])
    return attempts


def _attempt(broker: VirtualTimeBroker, claimed: Claimed, handler: Handler[Any, Any]) -> tuple[Settlement, Attempt]:
    now_ms, started_at = broker.now_ms, monotonic()
    lease = Lease(claimed, Lane(handler, (), 1), started_at, math.inf, clock_ms=0, started_at=started_at)
    outcome = Outcome(_WORKER)
    message: Message[Any] | None = None
    exception = None
    begun = attempt.begin(claimed, handler, now_ms, lease.is_held)
    if isinstance(begun, Message):
        message = begun
        outcome.begun(lease, message)
        exception = _run(handler, message)
        settlement = attempt.settle_for(claimed, handler, exception, broker.now_ms)
    else:
        settlement = begun
    outcome.ended(lease, settlement, message, exception)
    number = claimed.failures + 1
    key = claimed.header.key if claimed.header else handler.key
    made = Attempt(claimed.id, key, number, from_ms(now_ms), settlement.verb, settlement.error, exception)
    return settlement, made


def _run(handler: Handler[Any, Any], message: Message[Any]) -> BaseException | None:
    if handler.is_async:
        # Not asyncio.run: through this the sync code that the handler calls is back in this thread, and its database.
        return async_to_sync(attempt.run_async)(handler, message)
    return attempt.run_sync(handler, message, get_alias(handler.using).database)
