"""Look after the database connections of a thread that runs handlers for days."""

from time import monotonic

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.store.database import takes_no_writes

LEAST_AGE_S = 60


def health_checks_are_on() -> bool:
    """Return whether a database has CONN_HEALTH_CHECKS: its owner then wants a look before each handler."""
    return any(database["CONN_HEALTH_CHECKS"] for database in connections.settings.values())


def close_stale_connections() -> None:
    """Close this thread's connections that broke, or are older than both CONN_MAX_AGE and a minute.

    Costs no query unless one failed; with CONN_HEALTH_CHECKS the next use asks whether its connection lives. Django's
    own `close_old_connections` would reconnect for each message at the default CONN_MAX_AGE of 0. A connection inside a
    transaction, as in a TestCase, is left alone.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block and connection.connection is not None:
            _close_if_stale(connection)


def close_read_only_connections(exception: BaseException) -> None:
    """Close this thread's connections if a handler raised that its database takes no writes.

    They are usable, but may be with the old primary. The next statement connects again, and finds the new one.
    """
    if takes_no_writes(exception):
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


def _close_if_stale(connection: BaseDatabaseWrapper) -> None:
    if connection.errors_occurred:
        if not connection.is_usable():
            connection.close()
            return
        connection.errors_occurred = False
    else:  # as `close_if_unusable_or_obsolete` does at the start of a request
        connection.health_check_done = False  # type: ignore[attr-defined]  # the stubs lack it
    # Not get_autocommit(), which would connect anew where the server is gone.
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        connection.close()  # a handler left its transaction open
        return
    if connection.close_at is not None:
        opened_at = connection.close_at - connection.settings_dict["CONN_MAX_AGE"]
        if monotonic() >= max(connection.close_at, opened_at + LEAST_AGE_S):
            connection.close()
