"""`delayq forget`: remove all that is kept of some messages, for an erasure."""

from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterator

from django.apps import apps
from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend
from django_delayq.core.message import State
from django_delayq.management.support.arguments import USAGE, Options, add_no_input
from django_delayq.management.support.by_id import batches
from django_delayq.management.support.terminal import Write, confirm, counted
from django_delayq.store.forget import Forgotten, forget
from django_delayq.support.audit import operator_of_process, record

HELP = "Remove all that is kept of some messages, whatever their state, but of what runs. Asks first."

FilesWith = Callable[[str, Collection[str], str | None], Iterator[tuple[str, int]]]


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--id`, `--tag`, `--lake` and `--no-input`."""
    parser.add_argument(
        "--id", dest="ids", nargs="+", action="extend", default=[], metavar="ID", help="The messages with these ids."
    )
    parser.add_argument("--tag", metavar="TAG", help="The messages with this tag.")
    parser.add_argument("--lake", metavar="PATH", help="List the files of this archive that hold them; needs pyarrow.")
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Remove the messages, after asking, and say what was removed. Raises `CommandError` if some of them run."""
    ids, tag, lake = list(dict.fromkeys(options["ids"])), options["tag"], options["lake"]
    if not ids and tag is None:
        raise CommandError("Say what to forget: --id ID…, or --tag TAG.", returncode=USAGE)
    files_with = _lake_reader() if lake is not None else None
    backend = get_backend(options["using"])
    if tag is not None and backend.store is None:
        raise CommandError(f"{options['using']!r} has no store, so its messages are not found by a tag; give --id ID….")
    if options["interactive"]:
        confirm(f"Forget {_named(ids, tag)} for good?")
    forgotten = _forget(backend, ids, tag)
    states = ", ".join(f"{forgotten.counts[state]} {state}" for state in ("waiting", "finished", "failed"))
    write(f"removed {forgotten.counts.total()}: {states}")
    ids = sorted({*ids, *forgotten.ids})
    # Its line has a number in place of the ids, because it is kept for longer than they may be.
    record(operator_of_process(), "forget", backend.alias.name, named=len(ids), removed=forgotten.counts.total())
    if apps.is_installed("django.contrib.admin"):
        from django_delayq.admin.forget import forget_entries, forget_in_jobs

        entries = forget_entries(backend.alias.name, ids, tag)
        write(f"erased from {entries} entr{'y' if entries == 1 else 'ies'} of Django's log")
        if backend.store is not None and (changed := forget_in_jobs(backend.alias.name, ids, tag)):
            write(f"erased from {counted(changed, 'message')} of the admin's jobs")
    if files_with is not None:
        for path, rows in files_with(lake, ids, tag):
            write(f"in the lake: {path} ({counted(rows, 'row')})")
    if forgotten.running:
        names = ", ".join(map(repr, sorted(forgotten.running)))
        raise CommandError(f"Not removed, because they run: {names}. Run this again once they have ended.")


def _lake_reader() -> FilesWith:
    try:
        from django_delayq.spark.forget import files_with
    except ImportError as error:
        raise CommandError(f"--lake needs Arrow ({error}): pip install pyarrow. Nothing was removed.") from error
    return files_with


def _named(ids: list[str], tag: str | None) -> str:
    named = [counted(len(ids), "id")] if ids else []
    return " and ".join([*named, *([f"the tag {tag!r}"] if tag is not None else [])])


def _forget(backend: Backend, ids: list[str], tag: str | None) -> Forgotten:
    if backend.store is not None:
        with backend.store.database.available():
            return forget(backend.store.database, ids, tag)
    forgotten = Forgotten()
    for batch in batches(ids):
        forgotten.counts["waiting"] += sum(backend.queue.purge(batch))
        forgotten.counts["failed"] += sum(backend.queue.purge_failed(batch))
        seen = ((id, backend.queue.get(id)) for id in batch)
        forgotten.running.update(id for id, info in seen if info is not None and info.state is State.RUNNING)
    return forgotten
