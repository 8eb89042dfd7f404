"""Pauses, kept in a table."""

from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import Pause
from django_delayq.models import PauseRow
from django_delayq.store.database import Database
from django_delayq.support.timestamps import to_epoch_ms


def pause(database: Database, pause_: Pause) -> None:
    """Keep a pause, in place of an earlier one of the same queue and key."""
    row = PauseRow(
        alias=database.alias,
        queue=pause_.queue or "",
        key=pause_.key or "",
        reason=pause_.reason,
        paused_at=database.now_ms(),
        until=pause_.until_ms,
    )
    is_told_which = database.connection.features.supports_update_conflicts_with_target  # MySQL finds it by itself
    # One statement: update_or_create sets a savepoint, which SQLite would commit in a transaction managed by hand.
    PauseRow.objects.using(database.using).bulk_create(
        [row],
        update_conflicts=True,
        update_fields=["reason", "paused_at", "until"],
        unique_fields=["alias", "queue", "key"] if is_told_which else None,
    )


def resume(database: Database, queue: str | None, key: str | None) -> bool:
    """Drop a pause. Returns whether it was in force."""
    was_in_force = any((each.queue, each.key) == (queue, key) for each in pauses(database))
    rows = PauseRow.objects.using(database.using)
    rows.filter(alias=database.alias, queue=queue or "", key=key or "").delete()
    return was_in_force


def pauses(database: Database) -> list[Pause]:
    """Return the pauses in force, by queue and key."""
    rows = PauseRow.objects.using(database.using).filter(alias=database.alias)
    found = [(_read(row), row.now_ms) for row in rows.annotate(now_ms=RawSQL(database.dialect.now, []))]  # noqa: S611
    in_force = [each for each, now_ms in found if each.holds(now_ms)]
    return sorted(in_force, key=lambda each: (each.queue or "", each.key or ""))


def _read(row: PauseRow) -> Pause:
    until_ms = None if row.until is None else to_epoch_ms(row.until)
    return Pause(row.queue or None, row.key or None, row.reason, until_ms, to_epoch_ms(row.paused_at))
