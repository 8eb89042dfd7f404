"""`delayq errors`: show the messages that failed for good."""

from argparse import ArgumentParser

from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options, add_count, add_json
from django_delayq.management.support.shapes import message_shape, write_json
from django_delayq.management.support.terminal import Write, queue_words, to_iso, write_table

HELP = "The last N failed messages with the reason, newest first."


def add_arguments(parser: ArgumentParser) -> None:
    """Add `-n` and `--json`."""
    add_count(parser)
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write the newest failed messages."""
    found = get_backend(options["using"]).queue.failed(options["count"])
    if options["json"]:
        write_json(write, [message_shape(info) for info in found])
        return
    write_table(
        write,
        ("FAILED", "QUEUE", "KEY", "ID", "FAILURES", "ERROR"),
        [
            (
                to_iso(each.buried_ms) or "-",
                queue_words(each.header.queue),
                each.header.key,
                each.id,
                str(each.failures),
                each.error,
            )
            for each in found
        ],
    )
    if not found:
        write("Nothing has failed.")
