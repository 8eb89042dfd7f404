"""`delayq send-again`: send messages again that have finished or were cancelled."""

from argparse import ArgumentParser
from functools import partial

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.core.limits import interval_us_of
from django_delayq.core.message import State
from django_delayq.management.support.arguments import USAGE, Options, checked
from django_delayq.management.support.by_id import batches, move_named
from django_delayq.management.support.search import acting, add_action, add_choice, found, is_search
from django_delayq.management.support.terminal import Write, confirm, counted
from django_delayq.support.audit import operator_of_process, record

HELP = (
    "Send messages again that have finished or were cancelled, under their ids, with the data that is kept of them. "
    "Takes a store. Asks first if a search chose them. Exit 1 when one that was named was not sent."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the search, `--action`, `--rate` and `--no-input`."""
    add_choice(parser)
    add_action(parser)
    parser.add_argument(
        "--rate",
        dest="interval_us",
        type=checked(partial(interval_us_of, name="rate")),
        default=0,
        metavar="RATE",
        help="At most so many are due in a time, such as 100/m. Default: all of them are due at once.",
    )


def run(options: Options, write: Write) -> None:
    """Send again what was chosen. Raises `CommandError` without a store, and if a named message was not sent."""
    backend = get_backend(options["using"])
    store = backend.store
    if store is None:
        raise CommandError(
            f"{options['using']!r} has no store, so nothing is kept of what has ended.", returncode=USAGE
        )
    if bool(options["ids"]) == is_search(options):
        raise CommandError(
            "Say what to send again: ids, or a search by --tag, --key and --id-prefix.", returncode=USAGE
        )
    facts = {"interval_us": options["interval_us"], **acting(backend, options)}
    sent_so_far = 0

    def send_again(ids: list[str]) -> list[bool]:
        nonlocal sent_so_far
        answers = store.send_again(ids, first=sent_so_far, **facts)
        sent_so_far += sum(answers)
        return answers

    if options["ids"]:
        move_named(backend, "send_again", send_again, options["ids"], "sent again", write)  # type: ignore[arg-type]
        return
    rows = found(backend, options, (State.FINISHED, State.CANCELLED))
    ids = list(dict.fromkeys(row.message_id for row, _ in rows))
    if ids and options["interactive"]:
        confirm(f"Send {counted(len(ids), 'ended message')} again?")
    for batch in batches(ids):
        sent = [id for id, was_sent in zip(batch, send_again(batch), strict=True) if was_sent]
        if sent:
            record(operator_of_process(), "send_again", backend.alias.name, sent, moved=len(sent))
    write(f"sent again {sent_so_far} of {len(ids)}")
    if sent_so_far < len(ids):
        write(f"left {len(ids) - sent_so_far}: their ids wait or run again, or their rows are gone")
