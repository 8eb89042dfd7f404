"""Record each run of a handler in the database."""

import os
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from django.utils import timezone

from django_delayq import Message
from example_project.shop.models import Run

T = TypeVar("T")


def recorded(handler: Callable[[Message[T]], None]) -> Callable[[Message[T]], None]:
    """Write a row when `handler` starts and its outcome when it ends, each at once, in a transaction of its own."""

    @wraps(handler)
    def run(message: Message[T]) -> None:
        row = Run(
            started_at=timezone.now(),
            message_id=message.id,
            key=message.key,
            attempt=message.attempt,
            token=message.token,
            worker_pid=os.getpid(),
            due_at=message.due_at,
        )
        row.save()
        try:
            handler(message)
        except BaseException:
            _end(row, Run.Outcome.FAILED)
            raise
        _end(row, Run.Outcome.FINISHED)

    return run


def _end(row: Run, outcome: Run.Outcome) -> None:
    row.outcome = outcome
    row.ended_at = timezone.now()
    row.save(update_fields=["outcome", "ended_at"])
