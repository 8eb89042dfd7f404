"""The handlers of benchmarks/limited.py."""

from typing import Any

from django.utils import timezone

from benchmarks.models import Job
from django_delayq import Message, delay_execute


@delay_execute(key="bench.unlimited")
def unlimited(message: Message[Any]) -> None:
    """Write a row if the data says so; otherwise do nothing."""
    if message.data["writes"]:
        Job.objects.create(key="bench", data=message.data, due_at=timezone.now())


@delay_execute(key="bench.limited", max_concurrency=1_000)
def limited(message: Message[Any]) -> None:
    """Do as `unlimited`, under a limit that is never reached."""
    unlimited(message)


@delay_execute(key="bench.limited_by_order", max_concurrency=10, concurrency_key="order:{order}")
def limited_by_order(message: Message[Any]) -> None:
    """Do as `unlimited`, under a limit for each order that is never reached."""
    unlimited(message)


@delay_execute(key="bench.rated", rate_limit="100000/s", burst=1_000_000)
def rated(message: Message[Any]) -> None:
    """Do as `unlimited`, at a rate that is never reached."""
    unlimited(message)


@delay_execute(key="bench.rated_by_order", rate_limit="100/s", rate_key="order:{order}", burst=1_200)
def rated_by_order(message: Message[Any]) -> None:
    """Do as `unlimited`, at a rate for each order that is never reached. A burst lasts 12 s, like 20 of "100/m"."""
    unlimited(message)


@delay_execute(key="bench.rated_briefly_by_order", rate_limit="6000/m", rate_key="order:{order}", burst=20)
def rated_briefly_by_order(message: Message[Any]) -> None:
    """Do as `unlimited`, at a rate for each order that is never reached. A burst lasts a fifth of a second."""
    unlimited(message)


@delay_execute(key="bench.rated_evenly_by_number", rate_limit="100/m", rate_key="number:{number}")
def rated_evenly_by_number(message: Message[Any]) -> None:
    """Do as `unlimited`, at a rate for each message that is never reached, without a burst."""
    unlimited(message)


@delay_execute(
    key="bench.limited_and_rated_by_order",
    max_concurrency=10,
    concurrency_key="order:{order}",
    rate_limit="100/s",
    rate_key="order:{order}",
    burst=1_200,
)
def limited_and_rated_by_order(message: Message[Any]) -> None:
    """Do as `unlimited`, under both limits of `limited_by_order` and `rated_by_order`."""
    unlimited(message)
