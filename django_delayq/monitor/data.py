"""Hold the data of messages against the handlers of this process, as before a deploy. It changes nothing.

Messages are read page by page, so memory is bounded, and it is no snapshot: a message that is sent meanwhile may be
left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

from django.db.models import Model, QuerySet

from django_delayq.api.handlers import get_handler
from django_delayq.api.sequences import steps_to_come
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, Place, Scanner
from django_delayq.core.codec import read
from django_delayq.core.errors import DataMismatch, Unsupported
from django_delayq.core.kept import decode
from django_delayq.core.lanes import queue_of
from django_delayq.core.requests import Header
from django_delayq.core.steps import StepName
from django_delayq.models import BatchRow, SequenceRow
from django_delayq.store import batches
from django_delayq.store.database import Database
from django_delayq.store.queries import payloads
from django_delayq.store.schedules import rows_of
from django_delayq.support.timestamps import LAST_MS

PAGE = 200
"""How many messages are read at once: each may have a large payload."""


M = TypeVar("M", bound=Model)


class Kept(NamedTuple):
    """The data of a message, or of what has messages still to come, and what says who reads it."""

    what: str
    queue: str
    key: str
    version: int | None
    body: bytes


@dataclass(slots=True)
class KeyData:
    """How many messages of a key were checked, and what would become of them with this code.

    `failing` would fail when they start. `later` have data of a later version, and would wait for later code. Those
    `without_handler` would wait for a worker that has one. `examples` has the ids of some that would fail or wait, each
    with the reason, which quotes no data.
    """

    key: str
    checked: int = 0
    failing: int = 0
    later: int = 0
    without_handler: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Return whether none would fail, or wait for later code."""
        return not self.failing and not self.later


@dataclass(slots=True)
class CheckedData:
    """The result of a `check_data`, by key. It is not `complete` if the limit ended it."""

    keys: dict[str, KeyData] = field(default_factory=dict)
    complete: bool = True

    def sum(self, name: str) -> int:
        """Return the sum of one count over all keys."""
        return sum(getattr(each, name) for each in self.keys.values())


def check_data(
    using: str,
    *,
    queue: str | None = None,
    key: str | None = None,
    failed: bool = False,
    limit: int | None = None,
    examples: int = 5,
) -> CheckedData:
    """Check the data of the messages that wait, and with `failed` of those that failed, `limit` messages at most.

    With a store, these are checked too: messages that run, sends that are kept until a run ends, schedules, the steps
    to come of sequences, and the messages that will follow batches. Raises `Unsupported` if the messages are not
    in tables, and their broker can't be read page by page.
    """
    result = CheckedData()
    found = _kept(get_backend(using), queue, key, failed=failed)
    for one in islice(found, limit):
        of_key = result.keys.setdefault(one.key, KeyData(one.key))
        of_key.checked += 1
        reason = _judge(using, one, of_key)
        if reason and len(of_key.examples) < examples:
            of_key.examples.append((one.what, reason))
    result.complete = limit is None or next(found, None) is None
    return result


def _judge(using: str, one: Kept, of_key: KeyData) -> str:
    """Count what would become of a message, and return why it would fail or wait; '' if it would start."""
    handler = get_handler(using, one.key)
    if handler is None:
        of_key.without_handler += 1
        return ""
    try:
        handler.accepted(one.body, one.version)
    except (DataMismatch, TypeError) as mismatch:  # TypeError: the handler's annotation is wrong
        if (one.version or 1) > handler.version:
            of_key.later += 1
        else:
            of_key.failing += 1
        return str(mismatch)
    return ""


def _kept(backend: Backend, queue: str | None, key: str | None, *, failed: bool) -> Iterator[Kept]:
    found = _all_kept(backend, failed=failed)
    return (one for one in found if queue in (None, queue_of(one.queue)) and key in (None, one.key))


def _all_kept(backend: Backend, *, failed: bool) -> Iterator[Kept]:
    if backend.store is not None:
        yield from _rows(backend.store.database, "delayq_ready")
        yield from _schedules(backend.store.database)
        yield from _steps(backend.store.database)
        yield from _follow_batches(backend.store.database)
        if failed:
            yield from _rows(backend.store.database, "delayq_error")
        return
    if not isinstance(backend.queue, Scanner):
        raise Unsupported(
            f"The broker of {backend.alias.name!r} ({backend.alias.broker_name}) can't be read page by page; it takes "
            "a store, or Redis."
        )
    yield from _waiting(backend.queue)
    if failed:
        yield from _failed(backend)


def _rows(database: Database, table: str) -> Iterator[Kept]:
    with database.available():
        for id, queue, key, version, data, again in payloads(database, table, PAGE):
            yield Kept(id, queue, key, version, data.encode())
            if again is not None:
                send = decode(again)
                yield Kept(f"{id}, again", send.header.queue, send.header.key, send.header.version, send.body)


def _schedules(database: Database) -> Iterator[Kept]:
    with database.available():
        rows = list(rows_of(database).values_list("name", "key", "header", "data"))
    for name, key, header_text, data in rows:
        header = read(header_text, Header)
        yield Kept(f"schedule {name}", header.queue, key, header.version, data.encode())


def _steps(database: Database) -> Iterator[Kept]:
    for row in _each(database, SequenceRow.objects.all()):
        for number, step in steps_to_come(row):
            header, name = step.header, StepName(row.name, row.sequence_id, number)
            yield Kept(name.message_id, header.queue, header.key, header.version, row.data.encode())


def _follow_batches(database: Database) -> Iterator[Kept]:
    for row in _each(database, BatchRow.objects.all()):
        header = read(row.header, Header)
        yield Kept(row.batch_id, header.queue, header.key, header.version, batches.body_of(row, {}))


def _each(database: Database, rows: QuerySet[M]) -> Iterator[M]:
    """Yield the rows of the alias in the order of their primary keys."""
    of_alias = rows.using(database.using).filter(alias=database.alias).order_by("pk")
    after = 0
    with database.available(), database.telling_what_it_lacks():
        while page := list(of_alias.filter(pk__gt=after)[:PAGE]):
            yield from page
            after = page[-1].pk


def _waiting(scanner: Scanner) -> Iterator[Kept]:
    for shard, names in enumerate(scanner.wait_sets()):
        for name in names:
            place: Place | None = Place(0)
            while place is not None:
                found, place = scanner.scan(shard, name, place, LAST_MS, PAGE)
                for one in found:
                    yield Kept(one.id, one.header.queue, one.header.key, one.header.version, one.body)


def _failed(backend: Backend) -> Iterator[Kept]:
    offset = 0
    while found := backend.queue.failed(PAGE, offset):
        for one in found:
            yield Kept(one.id, one.header.queue, one.header.key, one.header.version, one.body)
        offset += len(found)
