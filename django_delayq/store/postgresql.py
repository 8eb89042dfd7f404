"""What PostgreSQL does in one statement, whatever the number of messages: one text, few values, one round trip."""

from collections.abc import Sequence
from typing import Any

from django_delayq import codec
from django_delayq.brokers.base import Header, Put
from django_delayq.store.database import Database
from django_delayq.store.postgresql_ends import end as end, finish_here as finish_here  # part of `Statements`
from django_delayq.store.returning import (  # part of `Statements`
    change as change,
    change_given as change_given,
    change_unlocked as change_unlocked,
)
from django_delayq.store.rows import NEW, Inserted

_APART = "\x1f"  # neither an id nor JSON has control characters

_HEADER = (
    'kind int, queue text, "key" text, tag text, trace_id text, expires_ms bigint, max_attempts int,'
    " timeout_ms bigint, at_most_once boolean"
)
_KIND = f"{_HEADER}, delay_ms bigint, at_ms bigint"


def insert(database: Database, puts: Sequence[Put]) -> list[Inserted]:
    """See `Statements`. Most messages of a bulk send are of one kind: each adds its id and its data alone.

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
    """An insert of what `given` has of the ids that are not there: a table `one` of ids, data and the number of a kind.

    What is not of a kind, `given` has: without due times kinds are headers. Its parameters are the kinds as JSON, those
    of `given`, and the alias.
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


def _kinds_of(puts: Sequence[Put]) -> tuple[list[dict[str, Any]], list[str]]:
    """What differs among the messages beside id and data, and the number of each one's kind."""
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
    """A header as the kind of that number."""
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
