"""The whole history of an id: its newest row, whichever table has it now, and every attempt of it."""

from dataclasses import dataclass

from django_delayq.brokers.base import Info
from django_delayq.core.history import Ended, PastAttempt, read
from django_delayq.core.message import State
from django_delayq.store import queries
from django_delayq.store.database import Database
from django_delayq.store.sql.rows import MESSAGE, buried_attempt, info_of

MOST_ROWS = 100
"""The most rows of an id that are counted: an id can be used again and again."""


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The facts on an id that the tables have and a broker could not tell.

    `attempts` are all that are over, oldest first; `running_since_ms` is the claim of the one that is not. `rows`
    counts the rows of the id, this one included, up to `MOST_ROWS`. All this was so at `now_ms`, by the database's
    clock.
    """

    info: Info
    pk: str
    attempts: tuple[PastAttempt, ...]
    rows: int
    now_ms: int
    running_since_ms: int | None = None
    ended_ms: int | None = None
    fingerprint: str = ""


def message_facts(database: Database, id: str) -> MessageFacts | None:
    """Return the facts on the message that waits or runs under the id, else of the one that ended last.

    None where there is no row.
    """
    seen = _count(database, id)
    waiting = _ready(database, id, *seen)
    if waiting is not None:
        return waiting
    ended = [found for found in (_finished(database, id, *seen), _buried(database, id, *seen)) if found is not None]
    return max(ended, key=lambda found: found.ended_ms or 0, default=None)


def _ready(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = queries.waiting(database, id, "r.id", "r.started_at", "r.history")
    if found is None:
        return None
    info, (pk, claimed_ms, history) = found
    since_ms = claimed_ms if info.state is State.RUNNING else None
    return MessageFacts(info, str(pk), tuple(read(history)), rows, now_ms, since_ms)


def _finished(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = database.rows(
        f"SELECT r.id, r.outcome, r.started_at, r.ended_at, r.history, {MESSAGE} FROM delayq_finish r"
        " WHERE r.alias = %s AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1",
        [database.alias, id],
    )
    for pk, outcome, started_ms, ended_ms, history, *row in found:
        info = info_of(tuple(row), State(outcome))
        attempts = read(history)
        if started_ms is not None:  # a message that was cancelled after its worker died: that attempt was lost
            how = Ended.FINISHED if info.state is State.FINISHED else Ended.LOST
            attempts.append(PastAttempt(info.failures + 1, started_ms, ended_ms, row[16], how))
        return MessageFacts(info, str(pk), tuple(attempts), rows, now_ms, ended_ms=ended_ms)
    return None


def _buried(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = database.rows(
        "SELECT r.id, r.worker, r.started_at, r.ended_at, r.history, r.fingerprint, r.failures, r.error, r.detail"
        " FROM delayq_error r WHERE r.alias = %s AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1",
        [database.alias, id],
    )
    info = queries.buried(database, id)
    if not found or info is None:
        return None
    ((pk, worker, started_ms, ended_ms, history, fingerprint, failures, error, detail),) = found
    last = buried_attempt(failures, started_ms, ended_ms, worker, error, detail)
    return MessageFacts(info, str(pk), (*read(history), last), rows, now_ms, ended_ms=ended_ms, fingerprint=fingerprint)


def _count(database: Database, id: str) -> tuple[int, int]:
    """Return how many rows the id has, and the database's time."""
    tables = ("delayq_ready", "delayq_finish", "delayq_error")
    each = [f"SELECT 1 FROM {table} WHERE alias = %s AND message_id = %s" for table in tables]
    ((count, now_ms),) = database.rows(
        f"SELECT count(*), {database.dialect.now}"
        f" FROM (SELECT * FROM ({' UNION ALL '.join(each)}) AS every_row LIMIT {MOST_ROWS}) AS counted",
        [database.alias, id] * len(tables),
    )
    return int(count), int(now_ms)
