"""The handlers of benchmarks/limited.py."""

from typing import Any

from django_delayq import Message, delay_execute


@delay_execute(key="bench.limited", max_concurrency=1_000)
def limited(message: Message[Any]) -> None:
    """Do nothing, under a limit that is never reached."""


@delay_execute(key="bench.limited_by_order", max_concurrency=10, concurrency_key="order:{order}")
def limited_by_order(message: Message[Any]) -> None:
    """Do nothing, under a limit for each order that is never reached."""
