"""Processes that move a chunk into a lake, each killed at another step: `python -m tests.spark.killed ROOT`.

The rows of step n are written below ROOT/n, as Spark would have done.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, cast

import django
from django.apps import apps
from django.db import transaction
from pyspark.sql import DataFrame

if not apps.ready:
    django.setup()

from django_delayq.spark.jobs import archive as job
from django_delayq.spark.jobs.lake import Lake
from tests.spark.support import STORED

CHUNK = f"{STORED}-finish-0"

STEPS: dict[str, tuple[Any, str, int, bool]] = {
    "before the note": (Lake, "note", 1, False),
    "in the note": (json, "dumps", 1, False),
    "after the note": (Lake, "note", 1, True),
    "between two files": (Lake, "move", 2, False),
    "before the rows are removed": (job, "remove", 1, False),
    "before the commit": (transaction.Atomic, "__exit__", 1, False),
    "after the commit": (job, "_take", 1, True),
    "before the note is removed": (Lake, "remove", 1, False),
    "after the note was removed": (Lake, "remove", 1, True),
}
"""Whose function, which, at which of its calls, and whether after it."""


def main(root: str) -> None:
    for number, step in enumerate(STEPS):
        pid = os.fork()
        if not pid:
            _move(step, Lake(f"{root}/{number}"))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"Nothing was killed {step}.")


def _move(step: str, lake: Lake) -> None:
    owner, name, call, after = STEPS[step]
    setattr(owner, name, _killing(getattr(owner, name), call, after=after))
    job._write = lambda *_: None
    job._move_chunk(lake, job.database_of(STORED), "finish", cast(DataFrame, None), CHUNK)


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
