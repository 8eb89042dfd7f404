"""Rows from one table to another: each pk is in one of them at any time, since it moves within one transaction."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from django_delayq.store.database import Database, marks
from django_delayq.store.rows import HOLDER, SHARED, shared_with


@dataclass(frozen=True, slots=True)
class Ran:
    """The attempt that finished a row."""

    pk: int
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Burial:
    """Why a row is buried. `failures` and `crashes` are to be added; `started_ms` is None where no handler started."""

    error: str
    started_ms: int | None
    ended_ms: int
    detail: str = ""
    fingerprint: str = ""
    failures: int = 0
    crashes: int = 0


def finish(database: Database, rows: Sequence[Ran]) -> None:
    """ready -> finish, of rows that the caller's transaction has locked."""
    if rows:
        ran = database.given("ran", {"pk": int, "started_ms": int, "ended_ms": int}, [astuple(row) for row in rows])
        selected = shared_with(worker=HOLDER, started_at="ran.started_ms")
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT id, {selected}, 'finished', ran.ended_ms FROM {ran.text} JOIN delayq_ready ON id = ran.pk",
            ran.parameters,
        )
        _remove(database, [row.pk for row in rows])


def cancel(database: Database, pks: Sequence[int]) -> None:
    """ready -> finish as cancelled, of rows that the caller's transaction has locked."""
    if pks:
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT id, {shared_with(worker=HOLDER)}, %s, {database.dialect.now} FROM delayq_ready"
            f" WHERE id IN ({marks(len(pks))})",
            ["cancelled", *pks],
        )
        _remove(database, pks)


def bury(database: Database, pk: int, burial: Burial) -> None:
    """ready -> error, of a row that the caller's transaction has locked."""
    counts = {"failures": f"failures + {burial.failures:d}", "crashes": f"crashes + {burial.crashes:d}"}
    selected = shared_with(**counts, error="%s", worker=HOLDER, started_at="%s")
    database.changed(
        f"INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at)"
        f" SELECT id, {selected}, %s, %s, %s FROM delayq_ready WHERE id = %s",
        [
            storable(burial.error),
            burial.started_ms,
            storable(burial.detail),
            storable(burial.fingerprint),
            burial.ended_ms,
            pk,
        ],
    )
    _remove(database, [pk])


def storable(text: str) -> str:
    """Text without what PostgreSQL can't keep."""
    return text.replace("\0", "\\x00")


def count(database: Database, name: str, number: int) -> None:
    """Add to the tally of what is removed for good."""
    if number:
        database.changed(
            f"INSERT INTO delayq_tally (alias, name, count) VALUES (%s, %s, %s) {database.dialect.counted}",
            [database.alias, name, number],
        )


def _remove(database: Database, pks: Sequence[int]) -> None:
    database.changed(f"DELETE FROM delayq_ready WHERE id IN ({marks(len(pks))})", list(pks))
