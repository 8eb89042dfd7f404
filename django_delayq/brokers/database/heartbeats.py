"""Keep the heartbeats of workers in a table of their own.

Each heartbeat gives its row another primary key and another time. The next heartbeat finds the row by that primary key
alone, and readers find it by the time alone. So nothing walks over the row's earlier versions, which PostgreSQL keeps
while another session has a transaction open.
"""

from dataclasses import replace
from secrets import randbits

from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL

from django_delayq.brokers.base import Heard, WorkerInfo
from django_delayq.brokers.shared_state import FORGOTTEN_MS, HEARTBEAT_MS
from django_delayq.core import codec
from django_delayq.models import HeartbeatRow
from django_delayq.store.database import Database
from django_delayq.store.timer import DatabaseTimer


class DatabaseHeartbeats:
    """The `Heartbeats` (brokers/base.py) of a site that has no server but its database."""

    def __init__(self, database: Database, timer: DatabaseTimer) -> None:
        self._database = database
        self._timer = timer
        self._pks: dict[str, int] = {}
        """The primary key of the last heartbeat of each worker in this process."""

    def heartbeat(self, worker: WorkerInfo) -> Heard:
        pk = randbits(63)
        beat = {"info": codec.dumps(worker).decode(), "seen_ms": RawSQL(self._database.dialect.now, [])}  # noqa: S611
        with self._database.available(), self._database.telling_what_it_lacks():
            last = self._rows().filter(pk=self._pks.pop(worker.name, 0))
            if not last.update(id=pk, **beat):
                self._begin(HeartbeatRow(id=pk, worker=worker.name, **beat))
        self._pks[worker.name] = pk
        return Heard()

    def _begin(self, row: HeartbeatRow) -> None:
        """Insert a row for a worker's heartbeat, because there is none to update, and tell the other workers.

        Delete any other row of this worker, and all rows that are too old to keep.
        """
        row.alias = self._database.alias
        forgotten = RawSQL(f"{self._database.dialect.now} - %s", [FORGOTTEN_MS])  # noqa: S611
        self._rows().filter(Q(worker=row.worker) | Q(seen_ms__lt=forgotten)).delete()
        HeartbeatRow.objects.using(self._database.using).bulk_create([row])
        self._timer.announce_workers()

    def leave(self, worker: str) -> None:
        with self._database.available():
            self._rows().filter(worker=worker).delete()
        self._timer.announce_workers()

    def workers(self) -> list[WorkerInfo]:
        known = self._timer.known_workers()
        return self.read_workers() if known is None else known

    def read_workers(self) -> list[WorkerInfo]:
        """Return the workers that are alive, and tell the timer. Unlike `workers`, this always reads the table."""
        oldest = RawSQL(f"{self._database.dialect.now} - %s", [HEARTBEAT_MS])  # noqa: S611
        with self._database.available():
            rows = list(self._rows().filter(seen_ms__gte=oldest).order_by("worker"))
        # Reading them ignores the fields of later versions
        found = [replace(codec.read(row.info, WorkerInfo), seen_ms=row.seen_ms) for row in rows]
        self._timer.note_workers(found)
        return found

    def announce_pauses(self) -> None:
        self._timer.announce_pauses()

    @property
    def pause_version(self) -> int:
        return self._timer.pause_version

    def _rows(self) -> QuerySet[HeartbeatRow]:
        return HeartbeatRow.objects.using(self._database.using).filter(alias=self._database.alias)
