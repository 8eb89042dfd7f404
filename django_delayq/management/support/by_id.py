"""Move messages by their ids: ids that the operator named, or that a search by queue, key or state found."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from django.core.management.base import CommandError

from django_delayq.brokers.base import BATCH, Backend
from django_delayq.management.support.terminal import Write
from django_delayq.store.queries import message_facts
from django_delayq.support.audit import operator_of_process, record

Move = Callable[[Sequence[str]], list[bool]]


def add_ids(parser: ArgumentParser, *, required: bool) -> None:
    """Add the arguments ID…, the messages to move."""
    parser.add_argument("ids", nargs="+" if required else "*", metavar="ID", help="The ids of messages.")


def move_named(backend: Backend, verb: str, move: Move, ids: Iterable[str], done: str, write: Write) -> None:
    """Move the message of each id once.

    Raises a `CommandError` that names the messages that were not moved, and says where they are instead.
    """
    named = list(dict.fromkeys(ids))
    refused = list(move_all(backend, verb, move, named))
    write(f"{done} {len(named) - len(refused)} of {len(named)}")
    if refused:
        raise CommandError(f"Not {done}: {', '.join(_whereabouts(backend, id) for id in refused)}.")


def move_all(backend: Backend, verb: str, move: Move, ids: Iterable[str]) -> Iterator[str]:
    """Move the messages in batches, log what was moved in each batch, and yield the ids that the move refused."""
    for batch in batches(ids):
        answers = dict(zip(batch, move(batch), strict=True))
        moved = [id for id, is_moved in answers.items() if is_moved]
        if moved:
            record(operator_of_process(), verb, backend.alias.name, moved, moved=len(moved))
        yield from (id for id, is_moved in answers.items() if not is_moved)


def batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield `ids` in lists that are small enough for one call."""
    remaining = iter(ids)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def _whereabouts(backend: Backend, id: str) -> str:
    facts = message_facts(backend.store.database, id) if backend.store else None  # finds messages that are over, too
    info = facts.info if facts else backend.queue.get(id)
    return f"{id!r} (no such message)" if info is None else f"{id!r} (it is {info.state})"


def buried_ids(backend: Backend, key: str | None = None) -> list[str]:
    """Return the ids of all buried messages, each once; if `key` is given, only of those with this key."""
    ids: dict[str, None] = {}
    offset = 0
    while page := backend.queue.failed(BATCH, offset):
        ids.update((each.id, None) for each in page if key in (None, each.header.key))
        offset += len(page)
    return list(ids)


def waiting_pages(backend: Backend, queue: str, key: str | None, *, sent_by_ms: int) -> Iterator[list[str]]:
    """Yield pages of the ids of messages that wait in a queue and were sent no later than `sent_by_ms`.

    With a `key`, only messages of that key count. Messages behind `BATCH` others that were sent later are not
    found. The caller must remove each page before it asks for the next, because every page is read from the front of
    the queue.
    """
    while page := [each.id for each in backend.queue.peek(queue, BATCH, key) if each.header.sent_ms <= sent_by_ms]:
        yield page
