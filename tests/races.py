"""Two at once, on PostgreSQL or MariaDB: the second comes while what the first did is not committed."""

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from django.db import connections, transaction

from tests.worker.rig import PATIENCE_S

T = TypeVar("T")

_LOCKS_WAITED_FOR = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": (
        "SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
    ),
}
"""On MariaDB not from `innodb_lock_waits`: it shows nothing new until nobody has read it for 0.1 s."""


def while_another_did(database: str, first: Callable[[], object], then: Callable[[], T]) -> T:
    """Return what `then` answers in another thread that comes while `first` is done and not yet committed."""
    answers: list[T] = []

    def answer() -> None:
        answers.append(then())
        connections.close_all()

    other = threading.Thread(target=answer)
    with transaction.atomic(using=database):
        first()
        other.start()
        until = monotonic() + PATIENCE_S
        while other.is_alive() and not waits_for_a_lock(database):
            assert monotonic() < until, "it neither waits for a lock nor ends"
            sleep(0.01)
    other.join(PATIENCE_S)
    return answers[0]


def waits_for_a_lock(database: str) -> bool:
    """Return whether anybody waits for a lock on this server."""
    connection = connections[database]
    with connection.cursor() as cursor:
        cursor.execute(_LOCKS_WAITED_FOR[connection.vendor])
        return int(cursor.fetchone()[0]) > 0
