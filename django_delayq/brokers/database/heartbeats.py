"""Keep the heartbeats of workers in the table of limits, whose rows are deleted once they are over."""

from dataclasses import replace

from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import Heard, WorkerInfo
from django_delayq.brokers.shared_state import FORGOTTEN_MS, HEARTBEAT_MS
from django_delayq.core import codec
from django_delayq.models import LimitRow
from django_delayq.store.database import Database
from django_delayq.store.timer import DatabaseTimer

NO_KEY = ""
"""The key of a heartbeat's row. No handler can have it, so no row of a limit has it."""


class DatabaseHeartbeats:
    """The `Heartbeats` (brokers/base.py) of a site without a server."""

    def __init__(self, database: Database, timer: DatabaseTimer) -> None:
        self._database = database
        self._timer = timer

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        now = self._database.dialect.now
        times = {
            "line_ms": RawSQL(now, []),  # noqa: S611
            "over_ms": RawSQL(f"{now} + %s", [FORGOTTEN_MS]),  # noqa: S611
        }
        slots = codec.dumps(worker).decode()
        with self._database.available(), self._database.telling_what_it_lacks():
            if not self._rows().filter(value=worker.name).update(slots=slots, **times):
                self._insert(LimitRow(value=worker.name, slots=slots, since_ms=0, turn_us=0, **times))
                self._timer.announce_workers()
        return Heard()

    def _insert(self, row: LimitRow) -> None:
        row.alias, row.key = self._database.alias, NO_KEY
        is_told_which = self._database.connection.features.supports_update_conflicts_with_target
        LimitRow.objects.using(self._database.using).bulk_create(
            [row],
            update_conflicts=True,
            update_fields=["slots", "line_ms", "over_ms"],
            unique_fields=["alias", "key", "value"] if is_told_which else None,
        )

    def leave(self, worker: str) -> None:
        with self._database.available():
            self._rows().filter(value=worker).delete()
        self._timer.announce_workers()

    def workers(self) -> list[WorkerInfo]:
        known = self._timer.known_workers()
        return self.read_workers() if known is None else known

    def read_workers(self) -> list[WorkerInfo]:
        """Read who is alive, whatever notices have told, and let the timer know."""
        oldest = RawSQL(f"{self._database.dialect.now} - %s", [HEARTBEAT_MS])  # noqa: S611
        with self._database.available():
            rows = list(self._rows().filter(line_ms__gte=oldest).order_by("value"))
        # Reading them ignores the fields of later versions
        found = [replace(codec.read(row.slots, WorkerInfo), seen_ms=row.line_ms) for row in rows]
        self._timer.note_workers(found)
        return found

    def announce_pauses(self) -> None:
        self._timer.announce_pauses()

    @property
    def pause_version(self) -> int:
        return self._timer.pause_version

    def _rows(self) -> QuerySet[LimitRow]:
        return LimitRow.objects.using(self._database.using).filter(alias=self._database.alias, key=NO_KEY)
