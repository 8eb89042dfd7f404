"""The queues and keys that the filters offer."""

from django_delayq.handlers import handlers_by_key
from django_delayq.store import pairs as store
from django_delayq.store.database import Database

MOST = 200
"""A filter offers at most so many."""


def waiting_pairs(alias: str, using: str) -> list[tuple[str, str]]:
    """Each (queue, key) that has a row in the ready table, at most `MOST`."""
    return store.waiting_pairs(Database(alias, using), MOST)


def known_keys(alias: str) -> set[str]:
    """The keys that have a handler here."""
    return set(handlers_by_key(alias))


def known_queues(alias: str) -> set[str]:
    """The queues that handlers here send to."""
    return {handler.queue for handler in handlers_by_key(alias).values()}
