"""`delayq undo`: undo a bulk action, for the messages that are still as it left them."""

from argparse import ArgumentParser
from functools import partial

from django.core.management.base import CommandError

from django_delayq.api.operations import undo_delay_action
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Tables
from django_delayq.management.support.arguments import USAGE, Options, add_no_input, checked
from django_delayq.management.support.terminal import Write, confirm, counted
from django_delayq.support.audit import operator_of_process, record
from django_delayq.support.validation import MAX_NAME, check_name

HELP = (
    "Undo what was cancelled, rescheduled or sent again with --action NAME, for messages that have not run or changed "
    "since. Takes a store. Asks first. Exit 1 when nothing is left to undo."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the name of the action, `--dry-run` and `--no-input`."""
    parser.add_argument(
        "name", type=checked(partial(check_name, kind="action")), metavar="NAME", help="The name of the action."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only say how many messages would be looked at.")
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Undo the action, and write how many messages were put back. Raises `CommandError` if there is nothing to undo."""
    using, name = options["using"], options["name"]
    store = get_backend(using).store
    if store is None:
        raise CommandError(f"{using!r} has no store, so no action can be undone.", returncode=USAGE)
    count = _count(store, name)
    if count == 0:
        raise CommandError(f"Nothing of the action {name!r} is left to undo: it changed nothing, or was undone.")
    if options["dry_run"]:
        write(f"would undo {counted(count, 'message')}, but for those that have started or changed")
        return
    if options["interactive"]:
        confirm(f"Undo {name!r} for {counted(count, 'message')}?")
    operator = operator_of_process()
    undone = undo_delay_action(name, by=operator.who[:MAX_NAME], using=using)
    record(operator, "undo", using, moved=undone.put_back, left=undone.left, action=name)
    write(f"undone {undone.put_back} of {count}")
    if undone.left:
        write(f"left {undone.left}: they have started, or were changed meanwhile")


def _count(store: Tables, name: str) -> int:
    """Return how many messages the action has changed and no undo has looked at."""
    count = after = 0
    while page := store.changed_by(name, after):
        count, after = count + len(page), page[-1]
    return count
