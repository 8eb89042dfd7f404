"""`delayq pause`: hold back the messages of a queue or key."""

from argparse import ArgumentParser
from functools import partial

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Counts, Pause, covering
from django_delayq.management.support.arguments import (
    Options,
    add_instant,
    add_queue_and_key,
    add_reason,
    checked,
    queue_and_key,
)
from django_delayq.management.support.terminal import Write, end_words, to_iso, to_words
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.units import to_ms

HELP = "Let nothing of a queue or key start. What runs, runs to its end."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the queue, the key, the reason, and the end of the pause."""
    add_queue_and_key(parser)
    add_reason(parser, "Why; shown by status, explain and the log.")
    end = parser.add_mutually_exclusive_group()
    add_instant(end, "until", "When it ends by itself: ISO 8601 with an offset from UTC. Default: when it is resumed.")
    end.add_argument(
        "--for",
        dest="for_ms",
        type=checked(partial(to_ms, name="--for", least_ms=1)),
        metavar="LENGTH",
        help="How long until then, such as 30m or 2h30m.",
    )


def run(options: Options, write: Write) -> None:
    """Pause, and write what is held back. Raises `CommandError` if the end of the pause is past."""
    queue, key = queue_and_key(options)
    backend = get_backend(options["using"])
    counts = backend.queue.counts()
    until_ms = options["until_ms"] if options["for_ms"] is None else counts.now_ms + options["for_ms"]
    pause = Pause(queue, key, options["reason"], until_ms)
    if not pause.holds(counts.now_ms):
        raise CommandError(f"Not paused: {to_words(until_ms, counts.now_ms)} is past by the authoritative clock.")
    backend.presence.pause(pause)
    named = {"queue": queue, "key": key, "reason": pause.reason, "until": to_iso(until_ms)}
    record(operator_of_process(), "pause", options["using"], **named)
    write(f"paused {pause.names} {end_words(until_ms, counts.now_ms)}; {_held_back(pause, counts)}")


def _held_back(pause: Pause, counts: Counts) -> str:
    """Return a text that says how many messages the pause holds back. If it says none, a name may be mistyped."""
    waiting = [each for each in counts.waiting if covering([pause], each.queue, each.key)]
    pending, ready = sum(each.pending for each in waiting), sum(each.ready for each in waiting)
    return f"{pending} pending and {ready} ready wait there" if waiting else "nothing waits there"
