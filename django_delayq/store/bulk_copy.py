"""Insert many messages that were not sent before, on PostgreSQL, by COPY.

If all ids are new, COPY writes into the table itself. Otherwise it writes into a staging table, and one INSERT takes
the messages with new ids from there.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from django.db import IntegrityError

from django_delayq.brokers.base import Header, NewMessage, Pair
from django_delayq.core import codec
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.notices import AT_ONCE_MS
from django_delayq.store.sql.postgresql import PostgreSQL, header_as, insert_from

_STAGING = "delayq_staging"
_CREATE = (
    f'CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGING} (message_id text COLLATE "C", data text, kind int,'
    " delay_ms bigint, at_ms bigint) ON COMMIT DELETE ROWS"
)
# The planner knows nothing of a staging table, and would compile
_WITHOUT_JIT = "SELECT set_config('jit', 'off', true)"
_TABLES = ("delayq_finish", "delayq_error")
_ENDED = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} e WHERE e.alias = %s AND e.message_id = {{id}})" for table in _TABLES
)
_NOT_ENDED = f"(SELECT * FROM {_STAGING} s WHERE NOT ({_ENDED.format(id='s.message_id')})) AS one"
_NULL = "\x01"  # neither an id nor JSON has control characters
_STRAIGHT = (
    "COPY delayq_ready (message_id, data, due_at, scheduled_at, expires_at, alias, queue, key, tag, trace_id, sent_at,"
    " max_attempts, timeout_ms, at_most_once, failures, crashes, error, worker, history, version, share)"
    " FROM STDIN (NULL E'\\x01')"
)
_BY_INDEX = ", ".join(
    f"set_config('enable_{way}', 'off', true)" for way in ("hashjoin", "mergejoin", "seqscan")
)  # one batch must not read all rows that have ended


def can_copy(database: Database) -> bool:
    """Return whether the database and its client know COPY: PostgreSQL through psycopg 3."""
    if database.vendor != "postgresql":
        return False
    database.connection.ensure_connection()
    return hasattr(database.connection.connection, "pipeline")  # psycopg2 has another `copy`


def copy_new(database: Database, messages: Sequence[NewMessage]) -> int:
    """Insert messages that are most probably new, in two thirds of the time of `copy_missing`. Return how many.

    If one of the ids waits or runs, COPY fails as a whole, and `copy_missing` inserts the others. So don't call this in
    a transaction.
    """
    try:
        return _copy_new(database, messages)
    except IntegrityError:
        return copy_missing(database, messages)


@in_transaction
def _copy_new(database: Database, messages: Sequence[NewMessage]) -> int:
    clock = f"{database.dialect.now}, {database.dialect.now_up}"
    ((now_ms, up_ms, *_),) = database.rows(f"SELECT {clock}, {_BY_INDEX}")
    _copy(database, _STRAIGHT, _lines(database.alias, messages, now_ms, up_ms))
    ended = _ended(database, [message.id for message in messages])
    if ended:  # nobody has seen these rows: they are not committed yet
        database.changed("DELETE FROM delayq_ready WHERE alias = %s AND message_id = ANY(%s)", [database.alias, ended])
    _notify(database, messages, now_ms)
    return len(messages) - len(ended)


def _notify(database: Database, messages: Sequence[NewMessage], now_ms: int) -> None:
    """Have the commit tell workers which pairs have a message due soon, if the database can notify.

    At most two notices are sent for a pair: one for what is due at once, and one for what is due a little later.
    """
    if not database.notice:
        return
    first: dict[tuple[Pair, bool], int] = {}
    for one in messages:
        pair, due_ms = (one.header.queue, one.header.key), one.at_ms or now_ms + one.delay_ms
        is_later = due_ms > now_ms + AT_ONCE_MS
        first[pair, is_later] = min(first.get((pair, is_later), due_ms), due_ms)
    soon = database.dialect.values_table(
        "soon",
        {"alias": str, "queue": str, "key": str, "due_at": int},
        [(database.alias, *pair, due_ms) for (pair, _), due_ms in first.items()],
    )
    # A notice of one due time would not tell of the rows that fall due after it, so that a worker found them late.
    database.rows(f"SELECT 1{database.notice_of_many} FROM {soon.text}", soon.parameters)


def _lines(alias: str, messages: Sequence[NewMessage], now_ms: int, up_ms: int) -> str:
    """Return the rows as COPY reads them, in the order of ids, so that two jobs with the same ids can't deadlock."""
    rests: dict[int, str] = {}
    lines = []
    for message in sorted(messages, key=attrgetter("id")):
        header = message.header
        rest = rests.get(id(header))
        if rest is None:
            rest = rests[id(header)] = _rest(alias, header, now_ms)
        due_ms = up_ms + message.delay_ms if message.at_ms is None else max(now_ms, message.at_ms)
        expires = _NULL if header.expires_ms is None else due_ms + header.expires_ms
        lines.append(f"{message.id}\t{message.body.decode()}\t{due_ms}\t{due_ms}\t{expires}\t{rest}")
    return _escaped("".join(lines))


def _rest(alias: str, header: Header, now_ms: int) -> str:
    """Return the end of a line for COPY: the columns that all messages with one header share."""
    once = "t" if header.at_most_once else "f"
    names = [alias, header.queue, header.key, header.tag, header.trace_id]
    values = [*names, now_ms, header.max_attempts, header.timeout_ms, once, 0, 0, "", "", "[]", header.version]
    values.append(header.share)
    return "\t".join(_NULL if value is None else str(value) for value in values) + "\n"


def _ended(database: Database, ids: Sequence[str]) -> list[str]:
    """Return the ids under which a message has ended."""
    values = "unnest(string_to_array(%s, E'\\x01')) AS input (id)"
    parts = [
        f"SELECT e.message_id FROM {values} JOIN {table} e ON e.alias = %s AND e.message_id = input.id"
        for table in _TABLES
    ]
    rows = database.rows(" UNION ".join(parts), [_NULL.join(ids), database.alias] * len(parts))
    return [id for (id,) in rows]


@in_transaction
def copy_missing(database: Database, messages: Sequence[NewMessage]) -> int:
    """Insert the messages whose id is in none of the three tables, like `insert_new`. Return how many.

    It takes a few statements, however many messages there are.
    """
    database.rows(_WITHOUT_JIT)
    database.changed(_CREATE)
    lines, kinds = _staged(messages)
    _copy(database, f"COPY {_STAGING} FROM STDIN (NULL '')", lines)
    insert = f"{insert_from(database.dialect, _NOT_ENDED)} {PostgreSQL.unless_there}"
    inserted = f"WITH inserted AS ({insert} RETURNING id{database.noticed(len(messages))})"
    ((count, first, last),) = database.rows(
        f"{inserted} SELECT count(*), min(id), max(id) FROM inserted",
        [codec.dumps(kinds).decode(), database.alias, database.alias, database.alias],
    )
    return int(count) - (_take_back(database, first, last) if count else 0)


def _staged(messages: Sequence[NewMessage]) -> tuple[str, list[dict[str, Any]]]:
    """Return the rows of the staging table as COPY reads them, and the headers to which they refer by number."""
    numbers: dict[int, int] = {}
    kinds: list[dict[str, Any]] = []
    lines = []
    for message in messages:
        number = numbers.get(id(message.header))
        if number is None:
            number = numbers[id(message.header)] = len(kinds)
            kinds.append(header_as(number, message.header))
        at_ms = "" if message.at_ms is None else message.at_ms
        lines.append(f"{message.id}\t{message.body.decode()}\t{number}\t{message.delay_ms}\t{at_ms}\n")
    return _escaped("".join(lines)), kinds


def _escaped(lines: str) -> str:
    # Neither an id nor JSON has control characters: backslashes are the only ones that COPY reads as special.
    return lines.replace("\\", "\\\\")


def _copy(database: Database, statement: str, lines: str) -> None:
    with database.copying(statement) as copy:
        copy.write(lines)


def _take_back(database: Database, first: int, last: int) -> int:
    """Delete the new rows, with pks from `first` to `last`, whose message had ended before they were inserted.

    Return how many.

    That message still ran in the snapshot of the INSERT. Nobody has seen the new rows, because they are not committed
    yet: the number of this transaction (`xmin`) tells them from other rows in the range.
    """
    ended = _ENDED.format(id="r.message_id")
    return database.changed(
        "DELETE FROM delayq_ready r WHERE r.id BETWEEN %s AND %s AND r.alias = %s"
        f" AND r.xmin = pg_current_xact_id()::xid AND ({ended})",
        [first, last, database.alias, database.alias, database.alias],
    )
