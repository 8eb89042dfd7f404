"""A process that ends what an archive began, and is killed at a step: `python -m tests.spark.killed STEP LAKE`."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import django
from django.apps import apps
from django.db import transaction

if not apps.ready:
    django.setup()

from django_delayq.spark.jobs import archive as job
from django_delayq.spark.jobs.lake import Lake
from tests.spark.support import STORED

STEPS: dict[str, tuple[Any, str, int, bool]] = {
    "between two files": (Lake, "move", 2, False),
    "before the commit": (transaction.Atomic, "__exit__", 1, False),
    "after the commit": (job, "_take", 1, True),
    "before the note is removed": (Lake, "remove", 1, False),
}
"""Whose function, which, at which of its calls, and whether after it."""


def main(step: str, lake: str) -> None:
    owner, name, call, after = STEPS[step]
    setattr(owner, name, _killing(getattr(owner, name), call, after=after))
    job.recover(Lake(lake), job.database_of(STORED))


def _killing(act: Callable[..., Any], call: int, *, after: bool) -> Callable[..., Any]:
    calls = 0

    def killing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = act(*args, **kwargs)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return killing


if __name__ == "__main__":
    main(*sys.argv[1:])
