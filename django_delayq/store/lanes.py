"""Keep the names of the lanes to which messages were sent (core/lanes.py), so that workers know what to ask for."""

from collections.abc import Collection

from django_delayq.brokers.base import Heartbeats
from django_delayq.models import LaneRow
from django_delayq.store.database import Database
from django_delayq.store.mark import Mark
from django_delayq.store.presence import announce_after_commit


def note_lanes(database: Database, heartbeats: Heartbeats, mark: Mark, lanes: Collection[str]) -> None:
    """Write the lanes of messages that are about to be inserted, unless they are there, in the caller's transaction.

    Nothing is remembered, because a rollback takes the row back. Two transactions may both write a lane: an index that
    forbids that would make one wait for the end of the other.
    """
    rows = LaneRow.objects.using(database.using).filter(alias=database.alias, name__in=lanes)
    with database.telling_what_it_lacks():
        new = set(lanes).difference(rows.values_list("name", flat=True))
        LaneRow.objects.using(database.using).bulk_create(
            [LaneRow(alias=database.alias, name=name) for name in sorted(new)]
        )
    if new:
        announce_after_commit(database, heartbeats, mark)
