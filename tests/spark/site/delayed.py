"""Handlers of what the tests send from Spark."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django_delayq import Message, delay_execute
from tests.spark.support import ALIASES, ALONE


@dataclass
class Reminder:
    """Data with types that JSON has not."""

    customer: int
    amount: Decimal
    ordered_at: datetime | None = None


def remind(message: Message[Reminder]) -> None: ...


def note(message: Message[Any]) -> None: ...


for alias in (*ALIASES, ALONE):
    delay_execute("remind", using=alias)(remind)
    delay_execute("note", using=alias, queue="notes")(note)
