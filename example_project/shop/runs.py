"""Record each run of a handler in the database."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from django.utils import timezone

from django_delayq import Cancelled, Message
from example_project.shop.models import Run

T = TypeVar("T")


def recorded(handler: Callable[[Message[T]], None]) -> Callable[[Message[T]], None]:
    """Write a row when `handler` starts and its outcome when it ends, each at once, in a transaction of its own."""

    @wraps(handler)
    def run(message: Message[T]) -> None:
        _recorded([message], lambda: handler(message))

    return run


def recorded_many(handler: Callable[[list[Message[T]]], None]) -> Callable[[list[Message[T]]], None]:
    """Write the rows of a handler of many, one for each message, like `recorded`."""

    @wraps(handler)
    def run(messages: list[Message[T]]) -> None:
        _recorded(messages, lambda: handler(messages))

    return run


def _recorded(messages: Sequence[Message[T]], call: Callable[[], None]) -> None:
    started_at = timezone.now()
    rows = Run.objects.bulk_create(
        Run(
            started_at=started_at,
            message_id=message.id,
            key=message.key,
            attempt=message.attempt,
            token=message.token,
            worker_pid=os.getpid(),
            due_at=message.due_at,
        )
        for message in messages
    )
    outcome = Run.Outcome.FAILED
    try:
        call()
        outcome = Run.Outcome.FINISHED
    except Cancelled:
        outcome = Run.Outcome.CANCELLED
        raise
    finally:
        Run.objects.filter(pk__in=[row.pk for row in rows]).update(outcome=outcome, ended_at=timezone.now())
