"""`delayq list`: list messages by tag, key, the beginning of their ids, and state."""

from argparse import ArgumentParser
from itertools import islice

from django_delayq.api.listing import STATES
from django_delayq.brokers import get_backend
from django_delayq.management.support.arguments import Options, add_count, add_json
from django_delayq.management.support.search import add_search, found
from django_delayq.management.support.shapes import data_text, row_shape, write_json
from django_delayq.management.support.terminal import Write, to_iso, write_table
from django_delayq.support.timestamps import to_epoch_ms

HELP = "Messages in any state, by tag, key or the beginning of their ids: first those that wait or run. Takes a store."

_BY_WORD = {str(state): state for state in STATES}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of a search, `--state`, `-n` and `--json`."""
    add_search(parser)
    parser.add_argument(
        "--state",
        dest="states",
        action="append",
        choices=list(_BY_WORD),
        help="A state; may be repeated. Default: all.",
    )
    add_count(parser)
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write the messages that the search finds. Raises `CommandError` without a store."""
    states = [_BY_WORD[word] for word in options["states"] or _BY_WORD]
    rows = list(islice(found(get_backend(options["using"]), options, states), options["count"]))
    if options["json"]:
        write_json(write, [row_shape(row, state) for row, state in rows])
        return
    write_table(
        write,
        ("STATE", "DUE", "KEY", "ID", "DATA"),
        [
            (
                state,
                to_iso(to_epoch_ms(row.due_at)) or "-",
                row.key,
                row.message_id,
                data_text(row.data.encode()),
            )
            for row, state in rows
        ],
    )
    if not rows:
        write("No message was found.")
    elif len(rows) == options["count"]:
        write("There may be more: -n N shows up to N.")
