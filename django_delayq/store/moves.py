"""Rows from one table to another: each pk is in one of them at any time, since it moves within one transaction."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from django_delayq.brokers.base import pages
from django_delayq.store.database import Database, marks
from django_delayq.store.given import LongText
from django_delayq.store.rows import HOLDER, SHARED, UNLEASED, shared_with

PAGE = 50
"""How many rows one statement takes with their errors and histories: of 64 KiB each, and MySQL takes 16 MiB in all."""


_RAN = {"pk": int, "started_ms": int, "ended_ms": int}
_BURIED = _RAN | {
    "cause": LongText,
    "detail": LongText,
    "fingerprint": str,
    "more_failures": int,
    "more_crashes": int,
}
_AGAIN = {"pk": int, "wait_ms": int, "more_failures": int, "new_crashes": int, "cause": LongText, "past": LongText}

FINISHED = f"id, {shared_with(worker=HOLDER, started_at='started_ms')}, 'finished', ended_ms"
"""What goes to `delayq_finish` of a row joined with `Ran`."""

BURIED = (
    "id, "
    + shared_with(
        failures="failures + more_failures",
        crashes="crashes + more_crashes",
        error="cause",
        worker=HOLDER,
        started_at="started_ms",
    )
    + ", detail, fingerprint, ended_ms"
)
"""What goes to `delayq_error` of a row joined with `Burial`."""

AGAIN = (
    "due_at = coalesce({now_up} + held.wait_ms, due_at), placed = (placed AND held.wait_ms IS NULL),"
    " failures = failures + held.more_failures, crashes = held.new_crashes,"
    f" error = CASE WHEN held.cause = '' THEN error ELSE held.cause END, history = held.past, {UNLEASED}"
)
"""What is set of a row joined with `Again`."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The attempt that finished a row."""

    pk: int
    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Burial:
    """Why a row is buried. `started_ms` is None where no handler started."""

    pk: int
    started_ms: int | None
    ended_ms: int
    cause: str
    detail: str = ""
    fingerprint: str = ""
    more_failures: int = 0
    more_crashes: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """What becomes of a row that waits again: due in `wait_ms`, or when it was (None), with this history (`past`)."""

    pk: int
    wait_ms: int | None
    more_failures: int
    new_crashes: int
    cause: str
    past: str


def finish(database: Database, rows: Sequence[Ran]) -> None:
    """ready -> finish, of rows that the caller's transaction has locked."""
    if rows:
        held = database.given("held", _RAN, [astuple(row) for row in rows])
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT {FINISHED} FROM {held.text} JOIN delayq_ready ON id = pk",
            held.parameters,
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


def bury(database: Database, burials: Sequence[Burial]) -> None:
    """ready -> error, of rows that the caller's transaction has locked."""
    for page in pages(burials, PAGE):
        rows = [
            (one.pk, one.started_ms, one.ended_ms, storable(one.cause), storable(one.detail), storable(one.fingerprint),
             one.more_failures, one.more_crashes)
            for one in page
        ]  # fmt: skip
        held = database.given("held", _BURIED, rows)
        database.changed(
            f"INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at)"
            f" SELECT {BURIED} FROM {held.text} JOIN delayq_ready ON id = pk",
            held.parameters,
        )
        _remove(database, [one.pk for one in page])


def wait_again(database: Database, rows: Sequence[Again]) -> None:
    """running -> pending or ready, of rows that the caller's transaction has locked."""
    for page in pages(rows, PAGE):
        held = database.given("held", _AGAIN, [astuple(row) for row in page])
        changes = AGAIN.format(now_up=database.dialect.now_up)
        database.changed(database.dialect.update_held.format(changes=changes, held=held.text), held.parameters)


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
