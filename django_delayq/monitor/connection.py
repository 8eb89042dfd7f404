"""Close database connections in threads that Django doesn't know, because it closes none there."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from django_delayq.conf import get_alias


@contextmanager
def closed_after(using: str) -> Iterator[None]:
    """Close the connection to the store's database if it was opened in the block.

    One that was open before stays open.
    """
    alias = get_alias(using)
    if alias.store is None:
        yield
        return
    connection = connections[alias.database]
    was_open = connection.connection is not None
    try:
        yield
    finally:
        if not was_open:
            connection.close()
