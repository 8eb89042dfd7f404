"""The handler of benchmarks/shares.py."""

from typing import Any

from django.utils import timezone

from benchmarks.delayed import record
from benchmarks.models import Job
from django_delayq import Message, delay_execute


@delay_execute(key="bench.shared", share_key="shop:{shop}")
def shared(message: Message[Any]) -> None:
    """Write down when it ran, or write a row, if the data asks for that."""
    if message.data.get("recorded"):
        record(message)
    if message.data.get("writes"):
        Job.objects.create(key="bench", data=message.data, due_at=timezone.now())


@delay_execute(key="bench.unshared")
def unshared(message: Message[Any]) -> None:
    """Do as `shared`, without shares."""
    shared(message)
