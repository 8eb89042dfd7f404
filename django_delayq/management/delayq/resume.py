"""`delayq resume`: end a pause."""

from argparse import ArgumentParser

from django_delayq.brokers import get_backend
from django_delayq.core.requests import in_words
from django_delayq.management.support.arguments import Options, add_queue_and_key, queue_and_key
from django_delayq.management.support.terminal import Write
from django_delayq.support.audit import operator_of_process, record

HELP = "End the pause of a queue or key, named as it was paused. Names the pauses that still hold back some of it."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the queue and the key."""
    add_queue_and_key(parser)


def run(options: Options, write: Write) -> None:
    """End the pause, and name the pauses that still hold back some of its messages."""
    queue, key = queue_and_key(options)
    backend = get_backend(options["using"])
    resumed = backend.presence.resume(queue, key)
    if resumed:
        record(operator_of_process(), "resume", options["using"], queue=queue, key=key)
    names = in_words(queue, key)
    write(f"resumed {names}" if resumed else f"{names} was not paused")
    for pause in backend.presence.pauses():
        if _meet(pause.queue, queue) and _meet(pause.key, key):
            write(f"still paused: {pause.names} ({pause.reason})")


def _meet(one: str | None, other: str | None) -> bool:
    """Return whether two filters by queue (or by key) can match the same message. None matches any."""
    return one is None or other is None or one == other
