"""`delayq purge`: remove messages for good."""

from argparse import ArgumentParser
from collections.abc import Sequence

from django.core.management.base import CommandError

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, SetCount
from django_delayq.core.lanes import serves
from django_delayq.management.support.arguments import USAGE, Options, add_no_input
from django_delayq.management.support.by_id import add_ids, buried_ids, move_all, move_named, waiting_pages
from django_delayq.management.support.terminal import Write, confirm, counted

HELP = "Remove waiting and failed messages for good. Asks first."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the ids, the queue, the key, `--errors`, and `--no-input`."""
    add_ids(parser, required=False)
    parser.add_argument("--queue", metavar="QUEUE", help="What waits in this queue.")
    parser.add_argument("--key", metavar="KEY", help="What waits for this execute key; with --queue, in that queue.")
    parser.add_argument("--errors", action="store_true", help="Every failed message.")
    add_no_input(parser)


def run(options: Options, write: Write) -> None:
    """Purge what was chosen, after asking. Raises `CommandError` for more than one kind of choice, and for none."""
    ids, queue, key = options["ids"], options["queue"], options["key"]
    by_set = queue is not None or key is not None
    if sum((bool(ids), by_set, options["errors"])) != 1:
        raise CommandError(
            "Say what to purge: ids, or --queue QUEUE and --key KEY (or one of them), or --errors.", returncode=USAGE
        )
    backend = get_backend(options["using"])
    if ids:
        _purge_named(backend, ids, options["interactive"], write)
    elif by_set:
        _purge_waiting(backend, queue, key, options["interactive"], write)
    else:
        _purge_failed(backend, options["interactive"], write)


def _purge_named(backend: Backend, ids: list[str], interactive: bool, write: Write) -> None:
    if interactive:
        confirm(f"Purge {counted(len(ids), 'message')} for good?")
    move_named(backend, "purge", lambda some: _purge_wholly(backend, some), ids, "purged", write)


def _purge_wholly(backend: Backend, ids: Sequence[str]) -> list[bool]:
    """Purge both the waiting and the buried messages of each id. Return for each id whether there were any."""
    return [
        waited or erred for waited, erred in zip(backend.queue.purge(ids), backend.queue.purge_failed(ids), strict=True)
    ]


def _purge_waiting(backend: Backend, queue: str | None, key: str | None, interactive: bool, write: Write) -> None:
    chosen, now_ms = _chosen(backend, queue, key)
    if chosen and interactive:
        confirm(f"Purge {counted(_size(chosen), 'waiting message')} for good?")
    purged = 0
    for name in sorted({each.queue for each in chosen}):
        for page in waiting_pages(backend, name, key, sent_by_ms=now_ms):
            moved = len(page) - sum(1 for _ in move_all(backend, "purge", backend.queue.purge, page))
            purged += moved
            if not moved:
                break
    write(f"purged {purged}")
    left = _size(_chosen(backend, queue, key)[0])
    if left:
        write(f"left {left}: sent meanwhile, due after many of these, or given back by a worker")


def _chosen(backend: Backend, queue: str | None, key: str | None) -> tuple[list[SetCount], int]:
    counts = backend.queue.counts()
    chosen = [
        each for each in counts.waiting if (queue is None or serves([queue], each.queue)) and key in (None, each.key)
    ]
    return chosen, counts.now_ms


def _size(counts: list[SetCount]) -> int:
    return sum(each.pending + each.ready for each in counts)


def _purge_failed(backend: Backend, interactive: bool, write: Write) -> None:
    ids = buried_ids(backend)
    if ids and interactive:
        confirm(f"Purge {counted(len(ids), 'failed message')} for good?")
    refused = sum(1 for _ in move_all(backend, "purge_failed", backend.queue.purge_failed, ids))
    write(f"purged {len(ids) - refused} of {len(ids)}")
