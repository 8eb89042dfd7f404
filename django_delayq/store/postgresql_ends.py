"""The ends of leases on PostgreSQL: one statement locks the rows, works out what becomes of them, and writes it.

What ends.py does in Python is SQL here, but for a history that is full: the few rows that have one are left to it.
"""

from collections.abc import Sequence
from typing import Any

from django_delayq import codec
from django_delayq.brokers.base import FATAL_CRASHES, Settlement, Verb
from django_delayq.history import MOST, MOST_BYTES
from django_delayq.store import ends
from django_delayq.store.database import Database
from django_delayq.store.dialects import DIALECTS
from django_delayq.store.moves import AGAIN, BURIED, FINISHED, storable
from django_delayq.store.rows import HOLDER, OF_HELD, SHARED, UNLEASED, End

_FULL = "full"
_NOW, _NOW_UP = DIALECTS["postgresql"].now, DIALECTS["postgresql"].now_up
_GIVEN = (
    "json_to_recordset(%s) AS held (message_id text, token bigint, verb text, started_ms bigint, ended_ms bigint,"
    " wait_ms bigint, failed int, cause text, detail text, fingerprint text, told text)"
)

_LOCKED = (
    f'locked AS (SELECT held.*, r.id AS pk, r.queue, r."key", r.failures, r.crashes, r.worker, r.history,'
    f" LEAST(held.ended_ms, {_NOW}) AS ended, LEAST(coalesce(held.started_ms, r.started_at), held.ended_ms, {_NOW})"
    f" AS started, held.verb = '{Verb.CRASH}' AND r.crashes + 1 >= {FATAL_CRASHES} AS fatal"
    f" FROM {_GIVEN} {OF_HELD} FOR UPDATE OF r SKIP LOCKED)"
)
"""The rows whose leases were held. The worker's idea of the clock may be ahead, never what is kept."""

_ATTEMPT = (
    "'{\"attempt\":' || failures + 1 || ',\"started\":' || started || ',\"ended\":' || ended"
    f" || ',\"worker\":' || to_json({HOLDER}) || ',' || told"
)
"""One for the history, as django_delayq/history.py writes it; NULL where nothing is told of it."""

_KEY = "'\"outcome\":'"
_IS_FULL = (
    f"attempt IS NOT NULL AND ((length(history) - length(replace(history, {_KEY}, ''))) / length({_KEY}) >= {MOST}"
    f" OR octet_length(history) + octet_length(attempt) >= {MOST_BYTES})"
)
"""Each attempt has the key once, and in its texts it is no key: quotes are escaped there."""

_HELD = (
    'held AS (SELECT pk, message_id, token, queue, "key", wait_ms, detail, fingerprint, ended AS ended_ms,'
    f" CASE WHEN verb <> '{Verb.BURY}' OR started_ms IS NOT NULL THEN started END AS started_ms,"
    f" CASE WHEN fatal THEN '{Verb.BURY}' WHEN verb = '{Verb.INTERRUPT}' AND substr(worker, 1, 1) = '!' THEN NULL"
    f" WHEN {_IS_FULL} THEN '{_FULL}' ELSE verb END AS move,"
    " CASE WHEN fatal THEN 'killed its worker ' || crashes + 1 || ' times: ' || cause ELSE cause END AS cause,"
    f" failed AS more_failures, fatal::int AS more_crashes,"
    f" CASE WHEN verb = '{Verb.CRASH}' THEN crashes + 1 ELSE 0 END AS new_crashes,"
    " CASE WHEN history = '[]' THEN '[' ELSE left(history, -1) || ',' END || attempt || ']' AS past"
    f" FROM locked, LATERAL (SELECT {_ATTEMPT} AS attempt) AS one)"
)
"""The move of each, and what it writes: the columns of `Ran`, `Burial` and `Again` (moves.py)."""

_GONE = (
    f"gone AS (DELETE FROM delayq_ready r USING held WHERE r.id = pk AND move IN ('{Verb.FINISH}', '{Verb.BURY}')"
    " RETURNING r.*, move, started_ms, ended_ms, cause, detail, fingerprint, more_failures, more_crashes)"
)
_AGAIN = f"'{Verb.RETRY}', '{Verb.SNOOZE}', '{Verb.CRASH}'"
_WRITES = [
    ({Verb.FINISH, Verb.BURY, Verb.CRASH}, _GONE),
    (
        {Verb.FINISH},
        f"finished AS (INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
        f" SELECT {FINISHED} FROM gone WHERE move = '{Verb.FINISH}')",
    ),
    (
        {Verb.BURY, Verb.CRASH},
        f"buried AS (INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at)"
        f" SELECT {BURIED} FROM gone WHERE move = '{Verb.BURY}')",
    ),
    (
        {Verb.RETRY, Verb.SNOOZE, Verb.CRASH},
        f"again AS (UPDATE delayq_ready r SET {AGAIN.format(now_up=_NOW_UP)}"
        f" FROM held WHERE r.id = pk AND move IN ({_AGAIN}))",
    ),
    (
        {Verb.RELEASE},
        f"released AS (UPDATE delayq_ready r SET due_at = coalesce({_NOW_UP} + wait_ms, due_at),"
        f" placed = (placed AND wait_ms IS NULL), {UNLEASED} FROM held WHERE r.id = pk AND move = '{Verb.RELEASE}')",
    ),
    (
        {Verb.INTERRUPT},
        f"interrupted AS (UPDATE delayq_ready r SET {ends.interrupted(DIALECTS['postgresql'])}"
        f" FROM held WHERE r.id = pk AND move = '{Verb.INTERRUPT}')",
    ),
]


def end(database: Database, settlements: Sequence[Settlement]) -> list[End]:
    """See `Statements`."""
    verbs = {one.verb for one in settlements}
    parts = [_LOCKED, _HELD, *(text for of_verbs, text in _WRITES if of_verbs & verbs)]
    rows = database.rows(
        f'WITH {", ".join(parts)} SELECT message_id, token, pk, queue, "key", move FROM held',
        [codec.dumps(list(map(_given, settlements))).decode(), database.alias],
    )
    full = {(id, token) for id, token, *_, move in rows if move == _FULL}
    found = [
        End(id, token, pk, queue, key, Verb(move) if move else None)
        for id, token, pk, queue, key, move in rows
        if move != _FULL
    ]
    return found + (ends.end(database, [one for one in settlements if (one.id, one.token) in full]) if full else [])


def finish_here(database: Database, pk: int, token: int, started_ms: int) -> bool:
    """See `Statements`."""
    rows = database.rows(
        f"WITH gone AS (DELETE FROM delayq_ready r WHERE r.id = %s AND r.token = %s"
        f" RETURNING r.*, LEAST(%s, {_NOW}) AS started_ms, {_NOW} AS ended_ms)"
        f" INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {FINISHED} FROM gone RETURNING id",
        [pk, token, started_ms],
    )
    return bool(rows)


def _given(one: Settlement) -> dict[str, Any]:
    """What the statement needs of a settlement; what is left out is NULL there."""
    given = {
        "message_id": one.id,
        "token": one.token,
        "verb": one.verb,
        "started_ms": one.started_ms,
        "ended_ms": one.ended_ms,
    }
    outcome = ends.OUTCOMES.get(one.verb)
    if outcome:
        told = {"outcome": outcome, "error": storable(one.error), "traceback": storable(one.detail)}
        given |= {"cause": told["error"], "detail": "", "fingerprint": "", "told": codec.dumps(told).decode()[1:]}
        given |= {"failed": int(one.verb is Verb.RETRY)}
        if one.verb is not Verb.CRASH:
            given |= {"wait_ms": one.delay_ms}
    elif one.verb is Verb.RELEASE and one.delay_ms:
        given |= {"wait_ms": one.delay_ms}
    elif one.verb is Verb.BURY:
        given |= {"cause": storable(one.error), "detail": storable(one.detail)}
        given |= {"fingerprint": storable(one.fingerprint), "failed": int(one.failed)}
    return given
