"""`delayq rescue`: run failed messages again."""

from argparse import ArgumentParser

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.management.support.arguments import USAGE, Options, add_no_input
from django_delayq.management.support.by_id import add_ids, buried_ids, move_all, move_named
from django_delayq.management.support.terminal import Write, confirm, counted

HELP = "Run failed messages again, with their counts reset. Asks before --all and --key."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, `--all`, the key, and `--no-input`."""
    add_ids(parser, required=False)
    parser.add_argument("--all", action="store_true", help="Every failed message.")
    parser.add_argument("--key", metavar="KEY", help="Every failed message of this execute key.")
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Rescue what was chosen. Raises `CommandError` for more than one kind of choice, and for none."""
    ids, key = options["ids"], options["key"]
    if sum((bool(ids), key is not None, options["all"])) != 1:
        raise CommandError("Say what to rescue: ids, or --key KEY, or --all.", returncode=USAGE)
    backend = get_backend(options["using"])
    if ids:
        move_named(backend, "rescue", backend.queue.rescue, ids, "rescued", write)
    else:
        _rescue_found(backend, buried_ids(backend, key), options["interactive"], write)


def _rescue_found(backend: Backend, ids: list[str], interactive: bool, write: Write) -> None:
    if ids and interactive:
        confirm(f"Rescue {counted(len(ids), 'failed message')}?")
    refused = sum(1 for _ in move_all(backend, "rescue", backend.queue.rescue, ids))
    write(f"rescued {len(ids) - refused} of {len(ids)}")
    if refused:
        write(f"left {refused}: their ids wait or run again, or somebody else was faster")
