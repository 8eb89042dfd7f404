"""Choose messages on the command line: by their ids, or by a search that takes a store."""

from argparse import ArgumentParser
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_delayq.brokers.base import Action, Backend
from django_delayq.core.message import State
from django_delayq.management.support.arguments import USAGE, Options, add_no_input, checked
from django_delayq.management.support.by_id import Move, add_ids, move_all, move_named
from django_delayq.management.support.terminal import Write, confirm, counted
from django_delayq.support.audit import operator_of_process
from django_delayq.support.validation import MAX_NAME, check_name

_WAITING = (State.PENDING, State.READY)


def add_search(parser: ArgumentParser) -> None:
    """Add `--tag`, `--key` and `--id-prefix`."""
    for option, kind, text in (
        ("--tag", "tag", "Messages with this tag."),
        ("--key", "key", "Messages of this execute key."),
        ("--id-prefix", "id_prefix", "Messages whose ids begin with this."),
    ):
        metavar = "TEXT" if kind == "id_prefix" else kind.upper()
        parser.add_argument(option, type=checked(partial(check_name, kind=kind)), metavar=metavar, help=text)


def add_choice(parser: ArgumentParser) -> None:
    """Add the arguments ID…, those of a search, and `--no-input`."""
    add_ids(parser, required=False)
    add_search(parser)
    add_no_input(parser)


def add_action(parser: ArgumentParser) -> None:
    """Add `--action`."""
    parser.add_argument(
        "--action",
        type=checked(partial(check_name, kind="action")),
        metavar="NAME",
        help="Do it under this name, by which `delayq undo` undoes it for 7 days. Takes a store.",
    )


def acting(backend: Backend, options: Options) -> dict[str, Any]:
    """Return the argument that makes a change of `backend.queue` a part of the action, if the command line names one.

    Raises `CommandError` without a store.
    """
    if options["action"] is None:
        return {}
    if backend.store is None:
        raise CommandError("--action takes a store (STORE in DELAYQ). Nothing was done.", returncode=USAGE)
    return {"action": Action(options["action"], operator_of_process().who[:MAX_NAME])}


def is_search(options: Options) -> bool:
    """Return whether the command line has an option of a search."""
    return any(options[name] is not None for name in ("tag", "key", "id_prefix"))


def found(backend: Backend, options: Options, states: Collection[State]) -> Iterator[tuple[Any, State]]:
    """Yield the rows that the search finds in `states`, with their states. Raises `CommandError` without a store."""
    if backend.store is None:
        raise CommandError("A search takes a store (STORE in DELAYQ). Nothing was done: give ids.", returncode=USAGE)
    return backend.store.rows_with_states(options["tag"], options["key"], options["id_prefix"], frozenset(states))


def move_chosen(
    backend: Backend, verb: str, move: Move, options: Options, done: str, write: Write, *, running: bool = False
) -> None:
    """Move the waiting messages that were chosen; ask first if a search chose them.

    With `running`, the messages that run are moved too. Raises `CommandError` for ids beside a search, for neither, and
    if a named message was not moved.
    """
    if bool(options["ids"]) == is_search(options):
        raise CommandError(
            f"Say what to {verb.replace('_', ' ')}: ids, or a search by --tag, --key and --id-prefix.", returncode=USAGE
        )
    if options["ids"]:
        move_named(backend, verb, move, options["ids"], done, write)
        return
    states, what = ((*_WAITING, State.RUNNING), "message") if running else (_WAITING, "waiting message")
    ids = [row.message_id for row, _ in found(backend, options, states)]
    if ids and options["interactive"]:
        confirm(f"{verb.capitalize().replace('_', ' ')} {counted(len(ids), what)}?")
    left = sum(1 for _ in move_all(backend, verb, move, ids))
    write(f"{done} {len(ids) - left} of {len(ids)}")
    if left:
        write(f"left {left}: they started meanwhile, or somebody else was faster")
