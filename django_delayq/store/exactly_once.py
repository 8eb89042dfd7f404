"""Whether the transaction of a handler that ends its own message took place."""

from django_delayq.store.database import Database


def is_finished(database: Database, pk: int) -> bool:
    """Whether the row has ended well, or was cancelled: where a commit was not answered, this tells."""
    return bool(database.rows("SELECT 1 FROM delayq_finish WHERE id = %s", [pk]))
