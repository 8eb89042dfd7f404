"""Putting many messages that were not sent before, on PostgreSQL: COPY into a staging table, then one insert."""

from collections.abc import Sequence
from typing import Any

from django_delayq import codec
from django_delayq.brokers.base import Put
from django_delayq.store.database import Database
from django_delayq.store.postgresql import header_as, insert_from

_STAGING = "delayq_staging"
_CREATE = (
    f'CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGING} (message_id text COLLATE "C", data text, kind int,'
    " delay_ms bigint, at_ms bigint) ON COMMIT DELETE ROWS"
)
_WITHOUT_JIT = "SELECT set_config('jit', 'off', true)"  # it knows nothing of a staging table, and would compile
_ENDED = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} e WHERE e.alias = %s AND e.message_id = {{id}})"
    for table in ("delayq_finish", "delayq_error")
)
_NOT_ENDED = f"(SELECT * FROM {_STAGING} s WHERE NOT ({_ENDED.format(id='s.message_id')})) AS one"


def can_copy(database: Database) -> bool:
    """Whether the database and its client know COPY: PostgreSQL through psycopg 3."""
    if database.vendor != "postgresql":
        return False
    database.connection.ensure_connection()
    return hasattr(database.connection.connection, "pipeline")  # psycopg2 has another `copy`


def copy_once(database: Database, puts: Sequence[Put]) -> int:
    """As `once.put_once`, for as many messages as memory holds, in four statements. Gives how many were inserted."""
    return database.transaction(lambda: _copy_once(database, puts))


def _copy_once(database: Database, puts: Sequence[Put]) -> int:
    database.rows(_WITHOUT_JIT)
    database.changed(_CREATE)
    lines, kinds = _staged(puts)
    with database.connection.cursor() as cursor, cursor.copy(f"COPY {_STAGING} FROM STDIN (NULL '')") as copy:
        copy.write(lines)
    inserted = f"WITH inserted AS ({insert_from(database, _NOT_ENDED)} RETURNING id)"
    ((count, first, last),) = database.rows(
        f"{inserted} SELECT count(*), min(id), max(id) FROM inserted",
        [codec.dumps(kinds).decode(), database.alias, database.alias, database.alias],
    )
    return int(count) - (_take_back(database, first, last) if count else 0)


def _staged(puts: Sequence[Put]) -> tuple[str, list[dict[str, Any]]]:
    """The staging table as COPY reads it, and the kinds."""
    numbers: dict[int, int] = {}
    kinds: list[dict[str, Any]] = []
    lines = []
    for put in puts:
        number = numbers.get(id(put.header))
        if number is None:
            number = numbers[id(put.header)] = len(kinds)
            kinds.append(header_as(number, put.header))
        at_ms = "" if put.at_ms is None else put.at_ms
        lines.append(f"{put.id}\t{put.body.decode()}\t{number}\t{put.delay_ms}\t{at_ms}\n")
    # Neither an id nor JSON has control characters: of what COPY reads apart, only backslashes occur.
    return "".join(lines).replace("\\", "\\\\"), kinds


def _take_back(database: Database, first: int, last: int) -> int:
    """Remove, of our own new rows, those whose message ran at the insert's snapshot and had ended before its row came.

    Nobody has seen these rows: they are not committed yet. That is how they are told from others' of the same range.
    """
    ended = _ENDED.format(id="r.message_id")
    return database.changed(
        "DELETE FROM delayq_ready r WHERE r.id BETWEEN %s AND %s AND r.alias = %s"
        f" AND r.xmin = pg_current_xact_id()::xid AND ({ended})",
        [first, last, database.alias, database.alias, database.alias],
    )
