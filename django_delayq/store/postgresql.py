"""The statements of PostgreSQL: each does its work in one round trip, with few values, however many the messages."""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import Header, LeaseId, NewMessage
from django_delayq.core import codec
from django_delayq.core.message import State
from django_delayq.core.transitions import SettleAction, Transition
from django_delayq.store import apply as portable
from django_delayq.store.database import Database
from django_delayq.store.dialects import DIALECTS
from django_delayq.store.moves import AGAIN, BURIED, FINISHED
from django_delayq.store.returning import (  # part of `Statements`
    change as change,
    change_given as change_given,
    change_unlocked as change_unlocked,
)
from django_delayq.store.rows import NEW, OF_LEASES, SHARED, Inserted

_NOW, _NOW_UP = DIALECTS["postgresql"].now, DIALECTS["postgresql"].now_up

_APART = "\x1f"  # neither an id nor JSON has control characters

_HEADER = (
    'kind int, queue text, "key" text, tag text, trace_id text, expires_ms bigint, max_attempts int,'
    " timeout_ms bigint, at_most_once boolean"
)
_KIND = f"{_HEADER}, delay_ms bigint, at_ms bigint"


def insert(database: Database, puts: Sequence[NewMessage]) -> list[Inserted]:
    """See `Statements`. Most messages of a bulk send share one kind, so each adds only its id and its data.

    They go as text to be split, which takes a tenth of what an array costs the client.
    """
    kinds, kind_of = _kinds_of(puts)
    given = (
        "unnest(string_to_array(%s, %s), string_to_array(%s, %s), string_to_array(%s, ',')::int[])"
        " AS one (message_id, data, kind)"
    )
    rows = database.rows(
        f"{insert_from(database, given, _KIND)} RETURNING message_id, id, due_at, sent_at",
        [
            codec.dumps(kinds).decode(),
            _APART.join([put.id for put in puts]),
            _APART,
            _APART.encode().join([put.body for put in puts]).decode(),
            _APART,
            ",".join(kind_of),
            database.alias,
        ],
    )
    return [Inserted(*row) for row in rows]


def insert_from(database: Database, given: str, kind: str = _HEADER) -> str:
    """Return an INSERT of the messages of `given` whose ids are not there.

    `given` is a table `one` of ids, data and kind numbers. It must also supply the columns that `kind` lacks: where
    kinds have no due times, they are plain headers. The parameters are the kinds as JSON, those of `given`, and the
    alias.
    """
    dialect = database.dialect
    return (
        f"WITH clock AS MATERIALIZED (SELECT {dialect.now} AS n, {dialect.now_up} AS u),"
        f" kinds AS MATERIALIZED (SELECT * FROM json_to_recordset(%s) AS kinds ({kind})), given AS ("
        ' SELECT message_id, data, queue, "key", tag, trace_id, expires_ms, max_attempts, timeout_ms, at_most_once, n,'
        " CASE WHEN at_ms IS NULL THEN u + delay_ms ELSE GREATEST(n, at_ms) END AS due_at"
        f" FROM {given} JOIN kinds USING (kind), clock)"
        f" INSERT INTO delayq_ready ({NEW})"
        ' SELECT %s, message_id, queue, "key", data, tag, trace_id, due_at, due_at, n, due_at + expires_ms,'
        " max_attempts, timeout_ms, at_most_once, 0, 0, '', '', NULL, '[]', false FROM given ORDER BY message_id"
        " ON CONFLICT (alias, message_id) DO NOTHING"
    )


def _kinds_of(puts: Sequence[NewMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the kinds of the messages, and the number of each one's kind. A kind is all but id and data."""
    numbers: dict[tuple[int, int, int | None], int] = {}
    kinds: list[dict[str, Any]] = []
    kind_of = []
    for put in puts:
        kind = (id(put.header), put.delay_ms, put.at_ms)
        number = numbers.get(kind)
        if number is None:
            number = numbers[kind] = len(kinds)
            kinds.append({**header_as(number, put.header), "delay_ms": put.delay_ms, "at_ms": put.at_ms})
        kind_of.append(str(number))
    return kinds, kind_of


def header_as(number: int, header: Header) -> dict[str, Any]:
    """Return a header as the kind of this number."""
    return {
        "kind": number,
        "queue": header.queue,
        "key": header.key,
        "tag": header.tag,
        "trace_id": header.trace_id,
        "expires_ms": header.expires_ms,
        "max_attempts": header.max_attempts,
        "timeout_ms": header.timeout_ms,
        "at_most_once": header.at_most_once,
    }


_HELD = (
    "held AS (SELECT held.pk, held.message_id, held.token, wait_ms, new_failures, new_crashes, cause, detail,"
    f" fingerprint, past, LEAST(held.ended_ms, {_NOW}) AS ended_ms,"
    f" CASE WHEN state <> '{State.ERROR}' OR held.started_ms IS NOT NULL"
    f" THEN LEAST(coalesce(held.started_ms, r.started_at), held.ended_ms, {_NOW}) END AS started_ms,"
    f" CASE WHEN state = '{State.RUNNING}' AND r.interrupted THEN NULL ELSE state END AS state"
    " FROM json_to_recordset(%s) AS held (pk bigint, message_id text, token bigint, state text, started_ms bigint,"
    " ended_ms bigint, wait_ms bigint, new_failures int, new_crashes int, cause text, detail text, fingerprint text,"
    f" past text) {OF_LEASES} FOR UPDATE OF r SKIP LOCKED)"
)
"""The rows whose leases still stand. No time is kept that is later than now: the worker's clock may be ahead."""

_GONE = (
    f"gone AS (DELETE FROM delayq_ready r USING held WHERE r.id = pk AND state IN ('{State.FINISHED}', '{State.ERROR}')"
    " RETURNING r.*, state, started_ms, ended_ms, new_failures, new_crashes, cause, detail, fingerprint)"
)
_FINISHED = (
    f"finished AS (INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
    f" SELECT {FINISHED} FROM gone WHERE state = '{State.FINISHED}')"
)
_WRITES = {
    State.FINISHED: _FINISHED,
    State.ERROR: (
        f"buried AS (INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at)"
        f" SELECT {BURIED} FROM gone WHERE state = '{State.ERROR}')"
    ),
    State.PENDING: (
        f"again AS (UPDATE delayq_ready r SET {AGAIN.format(now_up=_NOW_UP)}"
        f" FROM held WHERE r.id = pk AND state = '{State.PENDING}')"
    ),
    State.RUNNING: (
        f"interrupted AS (UPDATE delayq_ready r SET {portable.interrupted(DIALECTS['postgresql'])}"
        f" FROM held WHERE r.id = pk AND state = '{State.RUNNING}')"
    ),
}
"""The part of the statement for each state."""


def apply(database: Database, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
    """See `Statements`. One statement locks the rows and writes them."""
    states = {one.state for one in transitions}
    gone = [_GONE] if states & {State.FINISHED, State.ERROR} else []
    parts = [_HELD, *gone, *(text for state, text in _WRITES.items() if state in states)]
    rows = database.rows(
        f"WITH {', '.join(parts)} SELECT message_id, token, state IS NOT NULL FROM held",
        [codec.dumps([_as_record(one) for one in transitions]).decode()],
    )
    return {(id, token): is_written for id, token, is_written in rows}


def _as_record(one: Transition) -> dict[str, Any]:
    """Return the fields of a transition that the statement needs; those left out are NULL there."""
    record: dict[str, Any] = {
        "pk": int(one.pk or 0),
        "message_id": one.id,
        "token": one.token,
        "state": one.state,
        "started_ms": one.started_ms,
        "ended_ms": one.ended_ms,
    }
    if one.action is SettleAction.FINISH:
        return record
    record |= {"new_failures": one.failures, "new_crashes": one.crashes, "cause": one.error}
    if one.state is State.ERROR:
        return record | {"cause": one.error or "", "detail": one.detail, "fingerprint": one.fingerprint}
    return record | {"wait_ms": one.delay_ms, "past": one.history}


def finish_here(database: Database, pk: int, token: int, started_ms: int) -> bool:
    """See `Statements`."""
    rows = database.rows(
        "WITH gone AS (DELETE FROM delayq_ready r WHERE r.id = %s AND r.token = %s"
        f" RETURNING r.*, LEAST(%s, {_NOW}) AS started_ms, {_NOW} AS ended_ms)"
        f" INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {FINISHED} FROM gone RETURNING id",
        [pk, token, started_ms],
    )
    return bool(rows)
