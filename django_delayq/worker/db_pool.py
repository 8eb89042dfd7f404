"""Django's connection pool of PostgreSQL: a worker's threads keep their connections, so it must have one for each."""

from django.db import connections

MIN_SIZE = 4
"""The default of psycopg_pool for `min_size`; `max_size` defaults to `min_size`."""


def pool_warning(database: str, needed: int) -> str:
    """Return a warning for a database whose pool has fewer connections than one process of a worker needs; else ''."""
    size = _size_of_pool(database)
    if size is None or size >= needed:
        return ""
    return (
        f"One worker may hold {needed} connections to database {database!r} at once, whose pool has {size}: handlers "
        "and the renewal of leases then wait for one another, and messages run twice. Give "
        f'DATABASES["{database}"]["OPTIONS"]["pool"] a "max_size" of at least {needed}, or the worker fewer --threads.'
    )


def _size_of_pool(database: str) -> int | None:
    pool = connections.settings[database]["OPTIONS"].get("pool")
    if not pool or connections[database].vendor != "postgresql":
        return None
    given = {} if pool is True else pool
    return int(given.get("max_size") or given.get("min_size", MIN_SIZE))
