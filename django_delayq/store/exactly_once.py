"""The end of a message inside its handler's transaction: what the handler wrote and the finish are one commit."""

from django_delayq.store.database import Database
from django_delayq.store.moves import Ran, finish


def finish_here(database: Database, pk: int, token: int, started_ms: int) -> bool:
    """Finish a row as the last statements of the caller's transaction. False where its lease was lost.

    Waits for a transaction that has the row: a renewal, or a cancel that may be rolled back.
    """
    dialect = database.dialect
    held = database.rows(
        f"SELECT {dialect.now} FROM delayq_ready r WHERE r.id = %s AND r.token = %s{dialect.lock}", [pk, token]
    )
    finish(database, [Ran(pk, min(started_ms, now_ms), now_ms) for (now_ms,) in held])
    return bool(held)


def is_finished(database: Database, pk: int) -> bool:
    """Whether the row has ended well, or was cancelled: where a commit was not answered, this tells."""
    return bool(database.rows("SELECT 1 FROM delayq_finish WHERE id = %s", [pk]))
