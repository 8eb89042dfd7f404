"""Find out whether the transaction of a handler that ends its own message was committed."""

from django_delayq.store.database import Database


def is_finished(database: Database, pk: int) -> bool:
    """Return whether the row has ended well, or was cancelled: this tells where a commit was not answered."""
    return bool(database.rows("SELECT 1 FROM delayq_finish WHERE id = %s", [pk]))
