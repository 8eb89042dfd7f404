"""Keep what tasks returned (django_delayq/tasks.py), a row for each id, as long as finished messages are kept."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH, pages
from django_delayq.models import ReturnedValue
from django_delayq.store.database import Database


def keep(database: Database, id: str, value: str) -> None:
    """Keep a value, which is JSON, in place of the last one under the id, in the caller's transaction."""
    target = database.connection.features.supports_update_conflicts_with_target
    row = ReturnedValue(alias=database.alias, message_id=id, value=value, returned_at=database.now_ms())
    ReturnedValue.objects.using(database.using).bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["alias", "message_id"] if target else None,
        update_fields=["value", "returned_at"],
    )


def read(database: Database, id: str) -> str | None:
    """Return the value that was kept last under the id; None if there is none."""
    rows = ReturnedValue.objects.using(database.using).filter(alias=database.alias, message_id=id)
    return rows.values_list("value", flat=True).first()


def forget(database: Database, ids: Sequence[str]) -> None:
    """Remove the values under these ids."""
    for page in pages(ids, BATCH):
        ReturnedValue.objects.using(database.using).filter(alias=database.alias, message_id__in=page).delete()
