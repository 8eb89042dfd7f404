"""The database connection of looks from threads that Django knows nothing of, and so closes nothing in."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from django_delayq.conf import get_alias


@contextmanager
def closed_after(using: str) -> Iterator[None]:
    """Close the connection to the store's database that is opened meanwhile. One that was open stays."""
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
