"""The queues, keys and kinds of failure that the filters offer: those of rows, and those of handlers."""

from dataclasses import dataclass, field

from django.db.models import Model

from django_delayq.admin.aliases import database_of
from django_delayq.admin.lists.failure_groups import names_of_failed
from django_delayq.api.handlers import handlers_by_key
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, ReportRow
from django_delayq.store.queries import ended_pairs, reported_pairs, waiting_pairs

MOST = 200
"""The most names that a filter offers."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the rows of a table.

    `queues_of` has the queues of each key; it is None if they are not all known.
    """

    queues: set[str]
    keys: set[str]
    fingerprints: set[str] = field(default_factory=set)
    queues_of: dict[str, set[str]] | None = None


_PAIRS = {ReadyMessage: waiting_pairs, FinishMessage: ended_pairs, ReportRow: reported_pairs}


def names_in_rows(model: type[Model], alias: str) -> Names:
    """Return the names in the rows of a table, found through an index without reading each row."""
    if model is ErrorMessage:
        failed = names_of_failed(alias)
        return Names(failed["queue"], failed["key"], failed["fingerprint"])
    return _of_pairs(_PAIRS[model](database_of(alias), MOST))


def known_keys(alias: str) -> set[str]:
    """Return the keys that have a handler here."""
    return set(handlers_by_key(alias))


def known_queues(alias: str) -> set[str]:
    """Return the queues that handlers here send to."""
    return {handler.queue for handler in handlers_by_key(alias).values()}


def _of_pairs(pairs: list[tuple[str, str]]) -> Names:
    queues_of: dict[str, set[str]] = {}
    for queue, key in pairs:
        queues_of.setdefault(key, set()).add(queue)
    queues = {queue for queue, _key in pairs}
    return Names(queues, set(queues_of), queues_of=queues_of if len(pairs) < MOST else None)
