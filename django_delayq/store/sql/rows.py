"""The columns and conditions of rows that statements share, and the functions that read a row."""

from typing import Any

from django_delayq.brokers.base import Claimed, Header, Info
from django_delayq.core.history import Ended, PastAttempt
from django_delayq.core.message import State
from django_delayq.core.transitions import SUSPECT_CRASHES

Row = tuple[Any, ...]

SHARED = (
    'alias, message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, max_attempts, '
    "timeout_ms, at_most_once, failures, crashes, error, worker, started_at, history"
)
"""The columns of a new row, and of a row that moves from one table to another."""

MESSAGE = (
    'message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, '
    "max_attempts, timeout_ms, at_most_once, failures, crashes, error, worker"
)
"""The columns of a message, in the order in which the functions below read them."""

CLAIMED = f"{MESSAGE}, history"
"""The columns of a message that a claim reads."""

WAITING = "r.token IS NULL"
"""The condition that a row waits. Every other row runs, even past its lease, until it is reclaimed.

Only the clock monitor knows when that may be.
"""

LEASE_FREE = "(r.lease_until IS NULL OR r.lease_until <= {now})"
"""The condition that a claim may get a row: it waits, or its lease ran out and can be reclaimed."""


def checked(condition: str) -> str:
    """Return a condition that the planner uses only to check rows, never to choose an index.

    In a table that was never analysed, the planner believes that conditions on three columns leave one row.
    """
    return f"CASE WHEN {condition} THEN 1 = 1 ELSE 1 = 0 END"


# Conditions of partial indexes. SQLite finds the index by the words of its condition, MySQL by what its column equals.
ONCE = "r.at_most_once AND r.at_most_once = (1 = 1)"
CRASHED = "r.crashes >= 1"

LEASES = {"pk": int, "of_id": str, "token": int}
"""The columns of a values table `held` of leases."""

JOIN_LEASES = f"r.id = held.pk AND {checked('r.message_id = held.of_id AND r.token = held.token')}"
"""The condition that ties a row `r` to a lease of a values table `held`."""

CLEAR_LEASE = "token = NULL, lease_until = NULL, worker = '', started_at = NULL, interrupted = (1 = 0)"
"""The changes to a row that ends its lease and stays in its table."""


SUSPECT = f"{CRASHED} AND r.crashes >= {SUSPECT_CRASHES} AND " + checked(
    "r.token IS NULL AND r.due_at <= {now} AND NOT r.at_most_once"
)
"""The condition that a row is a suspect that is due."""


def shared_with(**values: str) -> str:
    """Return the columns `SHARED` for a SELECT, with `values` (SQL by column) in place of some."""
    return ", ".join(values.get(column, column) for column in SHARED.split(", "))


def header_of(row: Row) -> Header:
    """Return the header of a row of `MESSAGE`."""
    _, queue, key, _, tag, trace_id, _, scheduled_ms, sent_ms, expires_at_ms, max_attempts, timeout_ms, once = row[:13]
    return Header(
        queue=queue,
        key=key,
        at_most_once=bool(once),
        expires_ms=None if expires_at_ms is None else expires_at_ms - scheduled_ms,
        max_attempts=max_attempts,
        timeout_ms=timeout_ms,
        tag=tag,
        trace_id=trace_id,
        sent_ms=sent_ms,
        scheduled_ms=scheduled_ms,
    )


def claimed_of(pk: int, row: Row, token: int, now_ms: int) -> Claimed:
    """Return the lease that a worker gets for a row of `CLAIMED`."""
    return Claimed(
        row[0], token, row[6], header_of(row), row[3].encode(), row[13], row[14], str(pk), row[17], now_ms, row[16]
    )


def info_of(row: Row, state: State) -> Info:
    """Return the `Info` of a row of `MESSAGE`."""
    return Info(row[0], state, row[6], header_of(row), row[3].encode(), row[13], row[14], row[15])


def buried_attempt(
    failures: int, started_ms: int | None, ended_ms: int, worker: str, error: str, detail: str
) -> PastAttempt:
    """Return the attempt that buried a row.

    `failures` counts it only if it failed, and then `detail` has a traceback.
    """
    return PastAttempt(failures if detail else failures + 1, started_ms, ended_ms, worker, Ended.BURIED, error, detail)
