"""The handler of benchmarks/shares.py."""

from typing import Any

from benchmarks.delayed import record
from django_delayq import Message, delay_execute


@delay_execute(key="bench.shared", share_key="shop:{shop}")
def shared(message: Message[Any]) -> None:
    """Write down when it ran, if the data asks for that."""
    if message.data.get("recorded"):
        record(message)
