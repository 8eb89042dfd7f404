"""The task of Django's tasks, for the contenders that are backends of these."""

import django

from benchmarks.compare.work import HANDLERS

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task  # type: ignore[no-redef]


@task
def run(name: str, number: int, due_ms: float | None) -> None:
    HANDLERS[name](number, due_ms)
