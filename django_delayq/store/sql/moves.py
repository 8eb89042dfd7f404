"""Move rows from one table to another: each pk is always in one of them, because it moves within one transaction."""

from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.brokers.base import Claimed, pages
from django_delayq.core.transitions import INTERRUPT_MS, Transition
from django_delayq.store.database import Database, Sql
from django_delayq.store.sql.dialects import Dialect
from django_delayq.store.sql.rows import CLEAR_LEASE, JOIN_LEASES, LEASES, SHARED, shared_with
from django_delayq.store.sql.values import Columns, LongText, Rows

PAGE = 50
"""How many rows one statement takes with their errors and histories: 64 KiB each, and MySQL takes 16 MiB in all."""


_FINISHED: Columns = {"pk": int, "started_ms": int, "ended_ms": int}
_BURIED: Columns = {
    **_FINISHED,
    "new_failures": int,
    "new_crashes": int,
    "cause": LongText,
    "detail": LongText,
    "fingerprint": str,
}
_AGAIN = {"pk": int, "wait_ms": int, "new_failures": int, "new_crashes": int, "cause": LongText, "past": LongText}

FINISHED = f"id, {shared_with(started_at='started_ms')}, 'finished', ended_ms"
"""The columns that go to `delayq_finish` from a row joined with the columns `_FINISHED`."""

BURIED = (
    "id, "
    + shared_with(failures="new_failures", crashes="new_crashes", error="cause", started_at="started_ms")
    + ", detail, fingerprint, ended_ms"
)
"""The columns that go to `delayq_error` from a row joined with the columns `_BURIED`."""

AGAIN = (
    "due_at = coalesce({now_up} + held.wait_ms, due_at),"
    " failures = held.new_failures, crashes = held.new_crashes, error = coalesce(held.cause, error),"
    f" history = coalesce(held.past, history), {CLEAR_LEASE}"
)
"""The changes of a row joined with the columns `_AGAIN`."""


class TimedTransition(NamedTuple):
    """A transition of a row that the caller's transaction has locked, and when its attempt started and ended.

    `started_ms` is None where no handler started. Neither time is ahead of the database's clock.
    """

    transition: Transition
    started_ms: int | None
    ended_ms: int


def leases(database: Database, leased: Sequence[Claimed | Transition], lock: str = "") -> Sql:
    """Return SQL for FROM: the rows `r` whose lease is one of `leased`. A lease without a pk has no row."""
    held = database.given("held", LEASES, [(int(one.pk or 0), one.id, one.token) for one in leased])
    return database.joined(held, Sql(JOIN_LEASES), lock)


def finish(database: Database, rows: Sequence[tuple[int, int, int]]) -> None:
    """Move rows from ready to finish, each with its pk and when it started and ended."""
    if rows:
        held = _of_pks(database, _FINISHED, rows)
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {FINISHED} FROM {held.text}",
            held.parameters,
        )
        _remove(database, [pk for pk, _, _ in rows])


def cancel(database: Database, pks: Sequence[int]) -> None:
    """Move rows from ready to finish, with the outcome cancelled. The caller's transaction has locked them."""
    if pks:
        of_pks = database.among("id", pks)
        database.changed(
            f"INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
            f" SELECT id, {SHARED}, %s, {database.dialect.now} FROM delayq_ready WHERE {of_pks.text}",
            ["cancelled", *of_pks.parameters],
        )
        _remove(database, pks)


def bury(database: Database, ended: Sequence[TimedTransition]) -> None:
    """Move rows from ready to error."""
    for page in pages(ended, PAGE):
        rows = [
            (int(one.pk), started_ms, ended_ms, one.failures, one.crashes, one.error or "", one.detail, one.fingerprint)
            for one, started_ms, ended_ms in page
        ]
        held = _of_pks(database, _BURIED, rows)
        database.changed(
            f"INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at) SELECT {BURIED} FROM {held.text}",
            held.parameters,
        )
        _remove(database, [pk for pk, *_ in rows])


def wait_again(database: Database, transitions: Sequence[Transition]) -> None:
    """End the leases of rows that the caller's transaction has locked: they wait, or are ready, again."""
    for page in pages(transitions, PAGE):
        rows = [(int(one.pk), one.delay_ms, one.failures, one.crashes, one.error, one.history) for one in page]
        held = database.given("held", _AGAIN, rows)
        changes = AGAIN.format(now_up=database.dialect.now_up)
        database.changed(database.dialect.update_held.format(changes=changes, held=held.text), held.parameters)


def interrupted(dialect: Dialect) -> str:
    """Return the changes of a row whose worker stops while it runs: its lease soon ends, and no crash is counted."""
    return f"interrupted = (1 = 1), lease_until = {dialect.now} + {INTERRUPT_MS}"


def count(database: Database, name: str, number: int) -> None:
    """Add to the tally of what is removed for good."""
    if number:
        database.changed(
            f"INSERT INTO delayq_tally (alias, name, count) VALUES (%s, %s, %s) {database.dialect.counted}",
            [database.alias, name, number],
        )


def _of_pks(database: Database, columns: Columns, rows: Rows) -> Sql:
    """Return SQL for FROM: a table `held` with these rows, joined with the rows `r` of their pks."""
    return database.joined(database.given("held", columns, rows), Sql("r.id = held.pk"))


def _remove(database: Database, pks: Sequence[int]) -> None:
    of_pks = database.among("id", pks)
    database.changed(f"DELETE FROM delayq_ready WHERE {of_pks.text}", of_pks.parameters)
