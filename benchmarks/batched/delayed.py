"""The handler of benchmarks/batches.py."""

from typing import Any

from django_delayq import Message, delay_execute


@delay_execute(key="bench.batched", batch=500)
def batched(messages: list[Message[Any]]) -> None:
    """Do nothing, for up to 500 messages at a time."""
