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
    "mysql": "SELECT count(*) FROM information_schema.innodb_lock_waits",
}


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
        while other.is_alive() and not waits_for_a_lock(database) and monotonic() < until:
            sleep(0.01)
    other.join(PATIENCE_S)
    return answers[0]


def waits_for_a_lock(database: str) -> bool:
    """Return whether anybody waits for a lock on this server."""
    connection = connections[database]
    with connection.cursor() as cursor:
        cursor.execute(_LOCKS_WAITED_FOR[connection.vendor])
        return bool(cursor.fetchone()[0])
