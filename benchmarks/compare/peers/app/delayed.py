"""The handler of django-delayq."""

from typing import Any

from benchmarks.compare.work import HANDLERS
from django_delayq import Message, delay_execute


@delay_execute(key="compare.run")
def run(message: Message[list[Any]]) -> None:
    name, number, due_ms = message.data
    HANDLERS[name](number, due_ms)
