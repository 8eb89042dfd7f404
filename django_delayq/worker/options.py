"""The options of `run_delayq`."""

from dataclasses import dataclass
from typing import NamedTuple

from django_delayq.support.validation import check_queue, short_repr

MOST_WEIGHT = 1_000


class ServedQueue(NamedTuple):
    """A queue to serve, with its weight if it has one. A queue without a weight comes before all that follow it."""

    name: str
    weight: int | None = None

    def __str__(self) -> str:
        return self.name if self.weight is None else f"{self.name}:{self.weight}"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one worker; lengths of time in seconds."""

    queues: tuple[ServedQueue, ...] = ()
    """The queues to serve, in this order. If empty, every queue that a handler names and "default", in no order."""
    threads: int = 4
    max_threads: int = 16
    processes: int = 0
    """How many workers share the `concurrency` of each handler; 0 if this worker has it for itself."""
    index: int = 0
    """The number of this worker among the `processes`, from 0."""
    shutdown_timeout: float = 30.0
    drain: bool = False
    heartbeat_file: str | None = None
    max_messages: int | None = None
    max_memory: int | None = None
    """The most bytes of memory that each worker's process may take."""


def served_queues(text: str) -> tuple[ServedQueue, ...]:
    """Parse queues written as `critical,default:3,bulk:1`. Raises `ValueError` naming the value and the fix."""
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise ValueError(f"{short_repr(text)} names no queue; write --queues mail,orders")
    if not all(parts):
        raise ValueError(f"{short_repr(text)} has a comma without a queue; leave the comma out, or name the queue")
    queues = tuple(map(_served_queue, parts))
    names = [queue.name for queue in queues]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{short_repr(text)} names the queue {name!r} more than once; leave one of them out")
    return queues


def _served_queue(text: str) -> ServedQueue:
    name, colon, weight = text.partition(":")
    check_queue(name)
    if not colon:
        return ServedQueue(name)
    digits = weight.lstrip("0")  # int() refuses thousands of digits
    if not (weight.isascii() and weight.isdigit() and 1 <= int(digits[:5] or 0) <= MOST_WEIGHT):
        raise ValueError(
            f"{short_repr(text)} gives the queue {name!r} the weight {short_repr(weight)}; "
            f"give a whole number from 1 to {MOST_WEIGHT}, such as {name}:3, or none"
        )
    return ServedQueue(name, int(digits))
