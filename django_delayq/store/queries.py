"""Read rows, without a lock unless a function says so.

First come the functions that make values of a row's columns. Then come SELECTs that stay quick however many rows there
are, and on which other modules build: several queries in one statement, pages of rows in due order, and the distinct
pairs of queue and key.

`message_facts` tells the whole history of an id: its newest row, whichever table has it, and every attempt of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django_delayq.brokers.base import BATCH, Counts, Header, Info, SetCount, pages
from django_delayq.core.history import Ended, PastAttempt, read
from django_delayq.core.kept import decode
from django_delayq.core.message import State
from django_delayq.core.requests import Pair
from django_delayq.core.transitions import SUSPECT_CRASHES
from django_delayq.store import tags
from django_delayq.store.database import Database
from django_delayq.store.sql.dialect import MESSAGE, WAITING, Row, Sql
from django_delayq.store.sql.stepwise import request_of

SelectRuns = tuple[str, Sequence[tuple[Any, ...]]]
"""A SELECT, and the parameters of each of its runs. In its text, `{i}` stands for the number of the run."""


def header_of(row: Row) -> Header:
    """Return the header of a row of the columns `MESSAGE`."""
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
        version=row[17],
        share=row[18],
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


def union_all(database: Database, *selects: SelectRuns) -> list[Row]:
    """Return the rows of all these SELECTs, by one statement, or by as few as the database allows."""
    return _union_all(
        database,
        [Sql(one.replace("{i}", str(i)), each) for one, parameters in selects for i, each in enumerate(parameters)],
    )


def of_each_pair(database: Database, pairs: Sequence[Pair], selects: Sequence[Sql]) -> list[Row]:
    """Return the rows of all these SELECTs for each pair, as `Dialect.of_each_pair` does for one SELECT."""
    if not pairs:
        return []
    dialect, alias = database.dialect, database.alias
    return _union_all(database, [part for one in selects for part in dialect.of_each_pair(alias, pairs, one)])


def _union_all(database: Database, parts: Sequence[Sql]) -> list[Row]:
    return [row for page in pages(parts, database.dialect.most_selects) for row in _union(database, page)]


def _union(database: Database, parts: Sequence[Sql]) -> list[Row]:
    return database.rows(" UNION ALL ".join(sql for sql, _ in parts), [value for _, each in parts for value in each])


Position = tuple[int, int]
"""The due time and pk of the row that was read last."""
START: Position = (0, 0)
REST_FACTOR = 20
"""How long to wait before a slow look through many rows is repeated, as a multiple of the time that it took."""


def repeat_at(began_at: float, ended_at: float, least_s: float, rest_factor: int = REST_FACTOR) -> float:
    """Return when to repeat a look through many rows: `least_s` after it began, or later if it was slow."""
    return max(began_at + least_s, ended_at + rest_factor * (ended_at - began_at))


def page_after(
    database: Database, after: Position, within_ms: int, columns: Sequence[str], index: str, condition: str = "true"
) -> Sql:
    """Return a SELECT of the next `BATCH` rows `r` that are due within `within_ms`: due time, pk and `columns`.

    `index` ends with due time and pk, and `condition` fixes its other columns to one value each. The index is read in
    two ranges: the rows due at the same time as the last one read, and the rows due later. MariaDB and SQLite would
    make one range of `(due_at, id) > (…, …)`, by the due time alone: each page would read every row that is due at that
    time.
    """
    dialect = database.dialect
    rows = (
        f"SELECT r.due_at, r.id, {', '.join(columns)} FROM delayq_ready r{dialect.by_index.format(index=index)}"
        f" WHERE r.alias = %s AND {condition}"
    )
    in_order = f"ORDER BY r.due_at, {dialect.pk_in_order} {dialect.limit.format(count=BATCH)}"
    due_ms, pk = after
    later = Sql(
        f"{rows} AND r.due_at > %s AND r.due_at <= {dialect.now} + %s {in_order}", [database.alias, due_ms, within_ms]
    )
    if after == START:
        return later
    return Sql(
        f"SELECT * FROM ({rows} AND r.due_at = %s AND {dialect.pk_in_order} > %s {in_order}) AS at_once"
        f" UNION ALL SELECT * FROM ({later.text}) AS later ORDER BY 1, 2 LIMIT {BATCH}",
        [database.alias, due_ms, pk, *later.parameters],
    )


def waiting_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return at most `most` (queue, key) pairs that have a row in the ready table, in order."""
    return database.dialect.pairs(database, "delayq_ready", most)


def ended_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return at most `most` (queue, key) pairs that have a row in the finish table, in order."""
    return database.dialect.pairs(database, "delayq_finish", most)


def reported_pairs(database: Database, most: int) -> list[tuple[str, str]]:
    """Return at most `most` (queue, key) pairs of the last report, in order."""
    return database.dialect.pairs(database, "delayq_report", most)


def get(database: Database, id: str) -> Info | None:
    """Return the message that waits or runs under the id, or else the one that ended last, or None."""
    found = waiting(database, id, "r.id")
    if found:
        info, (pk,) = found
    elif ended := _ended_facts(database, id):
        info, pk = ended.info, int(ended.pk)
    else:
        return None
    tags.add_to(database, [(pk, info.header)])
    return info


def waiting(database: Database, id: str, *columns: str) -> tuple[Info, Row] | None:
    """Return the message that waits or runs under the id, with more columns of its row `r`; None if there is none."""
    condition = f"{database.dialect.of_alias_in('delayq_ready')} AND r.message_id = %s LIMIT 1"
    found = _ready(database, condition, [database.alias, id], columns)
    return found[0] if found else None


def buried(database: Database, id: str) -> Info | None:
    """Return the message that was buried last under the id; None if there is none."""
    found = _errors(database, "AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1", [id])
    return found[0][1] if found else None


def ids_by_tag(database: Database, tag: str, *, running: bool = False) -> list[str]:
    """Return the ids that wait under a tag, in order. Their rows stay locked until the end of the transaction.

    With `running`, those that run are among them.

    A message may have been replaced by one with other tags before its row was locked. Its first tag is that of the
    locked row; the others are read again.
    """
    found = tags.rows_with(database, tag, *([] if running else [WAITING]))
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.tag FROM {found.text} ORDER BY {database.dialect.id_in_order}"
        f"{database.dialect.lock}",
        found.parameters,
    )
    still = tags.still_with(database, tag, [pk for pk, _, first in rows if first != tag])
    return [id for pk, id, first in rows if first == tag or pk in still]


def peek(database: Database, queue: str, count: int, key: str | None) -> list[Info]:
    """Return the next `count` waiting messages of a queue, and of a key if it is given, in due order."""
    of_key, parameters = ("", [queue]) if key is None else (" AND r.key = %s", [queue, key])
    condition = f"r.alias = %s AND r.queue = %s{of_key} AND {WAITING} ORDER BY r.due_at, r.id LIMIT %s"
    found = _ready(database, condition, [database.alias, *parameters, count], ["r.id"])
    tags.add_to(database, [(pk, info.header) for info, (pk,) in found])
    return [info for info, _ in found]


def errors(database: Database, count: int, offset: int) -> list[Info]:
    """Return `count` buried messages, newest first, after the first `offset`."""
    found = _errors(database, "ORDER BY r.ended_at DESC, r.id DESC LIMIT %s OFFSET %s", [count, offset])
    tags.add_to(database, [(pk, info.header) for pk, info in found])
    return [info for _, info in found]


def payloads(database: Database, table: str, page: int) -> Iterator[Row]:
    """Yield the id, queue, key, version, data and kept send of each row of a table, in the order of primary keys.

    Only open messages have a kept send. Each statement looks at `page` rows, of whatever alias. Rows that are written
    meanwhile may be left out.
    """
    ((last,),) = database.rows(f"SELECT coalesce(max(id), 0) FROM {table}")
    again = "r.again" if table == "delayq_ready" else "NULL"
    after = 0
    while after < last:
        ends = database.rows(
            f"SELECT id FROM {table} WHERE id > %s AND id <= %s ORDER BY id LIMIT 1 OFFSET {page - 1:d}", [after, last]
        )
        until = ends[0][0] if ends else last
        yield from database.rows(
            f"SELECT r.message_id, r.queue, r.key, r.version, r.data, {again} FROM {table} r"
            " WHERE r.id > %s AND r.id <= %s AND r.alias = %s ORDER BY r.id",
            [after, until, database.alias],
        )
        after = until


def counts(database: Database) -> Counts:
    """Return every figure. This counts all rows, so it is slow for large tables."""
    due = f"r.due_at <= {database.dialect.now}"
    suspect = f"{WAITING} AND r.crashes >= {SUSPECT_CRASHES}"
    waiting, running, suspects = [], 0, 0
    for queue, key, pending, ready, next_due_ms, leased, suspected in database.rows(
        "SELECT r.queue, r.key,"
        f" sum(CASE WHEN {WAITING} AND NOT ({suspect}) AND NOT ({due}) THEN 1 ELSE 0 END),"
        f" sum(CASE WHEN {WAITING} AND NOT ({suspect}) AND {due} THEN 1 ELSE 0 END),"
        f" min(CASE WHEN {WAITING} AND NOT ({suspect}) THEN r.due_at END),"
        f" sum(CASE WHEN {WAITING} THEN 0 ELSE 1 END), sum(CASE WHEN {suspect} THEN 1 ELSE 0 END)"
        " FROM delayq_ready r WHERE r.alias = %s GROUP BY r.queue, r.key",
        [database.alias],
    ):
        running, suspects = running + leased, suspects + suspected
        if pending or ready:
            waiting.append(SetCount(queue, key, int(pending), int(ready), next_due_ms))
    error, totals = _ended(database)
    totals["sent"] = sum(one.pending + one.ready for one in waiting) + running + suspects + error
    totals["sent"] += sum(number for name, number in totals.items() if name != "sent")
    return Counts(database.now_ms(), waiting, running, suspects, error, totals)


def _ended(database: Database) -> tuple[int, dict[str, int]]:
    """Return how many messages are buried, and the totals of those that finished, were cancelled or were removed."""
    ended = database.rows(
        "SELECT outcome, count(*) FROM delayq_finish WHERE alias = %s GROUP BY outcome"
        " UNION ALL SELECT 'error', count(*) FROM delayq_error WHERE alias = %s"
        " UNION ALL SELECT name, count FROM delayq_tally WHERE alias = %s",
        [database.alias] * 3,
    )
    totals: dict[str, int] = {}
    for name, number in ended:  # if some were pruned, a part is in the table and a part in the tally
        totals[str(name)] = totals.get(str(name), 0) + int(number)
    return totals.pop("error", 0), totals


def _ready(
    database: Database, condition: str, parameters: Sequence[Any], columns: Sequence[str] = ()
) -> list[tuple[Info, Row]]:
    """Return messages of the ready table, each with the values of `columns`."""
    waits_until = (database.dialect.now, WAITING, "r.lease_until")
    of_info = (*waits_until, "r.merged", "r.again", "r.cancel_by", "r.cancel_at", "r.progress")
    found = database.rows(
        f"SELECT {', '.join((*columns, *of_info))}, {MESSAGE} FROM delayq_ready r WHERE {condition}",
        parameters,
    )
    infos = []
    for row in found:
        now_ms, is_free, end_ms, merged, again, cancel_by, cancel_at, progress, *message = row[len(columns) :]
        info = _info(now_ms, is_free, end_ms, tuple(message))
        kept = None if again is None else decode(again)
        info.merged = (merged or 0) + (0 if kept is None else kept.merged)
        info.again_ms = None if kept is None else kept.due_ms
        if not is_free:
            info.cancel_request, info.progress = request_of(cancel_by, cancel_at), progress or ""
        infos.append((info, row[: len(columns)]))
    return infos


def _info(now_ms: int, is_free: bool, lease_end_ms: int | None, row: Row) -> Info:
    if not is_free:
        info = info_of(row, State.RUNNING)
        info.holder, info.lease_end_ms = row[16], lease_end_ms
        return info
    info = info_of(row, State.READY if row[6] <= now_ms else State.PENDING)
    info.suspect = info.crashes >= SUSPECT_CRASHES
    return info


def _errors(database: Database, condition: str, parameters: Sequence[Any]) -> list[tuple[int, Info]]:
    """Return the primary keys and messages of the error table."""
    found = database.rows(
        f"SELECT r.id, r.detail, r.ended_at, r.merged, {MESSAGE} FROM delayq_error r WHERE r.alias = %s {condition}",
        [database.alias, *parameters],
    )
    infos = []
    for pk, detail, buried_ms, merged, *row in found:
        info = info_of(tuple(row), State.FAILED)
        info.detail, info.buried_ms, info.merged = detail, buried_ms, merged or 0
        infos.append((pk, info))
    return infos


def first_failed_ms(database: Database, fingerprint: str) -> int | None:
    """Return when the first of the kept messages with this fingerprint failed; None if there is none.

    The index is read in its order, from the fingerprint on. For `fingerprint = %s` PostgreSQL would read the whole
    table if it takes the kind for a frequent one.
    """
    found = database.rows(
        "SELECT r.fingerprint, r.ended_at FROM delayq_error r WHERE r.alias = %s AND r.fingerprint >= %s"
        " ORDER BY r.fingerprint, r.ended_at LIMIT 1",
        [database.alias, fingerprint],
    )
    return next((int(ended_ms) for kind, ended_ms in found if kind == fingerprint), None)


MOST_ROWS = 100
"""The most rows of an id that are counted: an id can be used again and again."""


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The facts on an id that the tables have and a broker could not tell, as of `now_ms` by the database's clock.

    `attempts` are all that are over, oldest first. `running_since_ms` is when the attempt that is not over was claimed.
    `rows` counts the rows of the id, this one included, up to `MOST_ROWS`. `rule` is the text of the rule of its due
    time (core/rules.py), '' if there is none, and `rule_due_ms` the due time that it gave.
    """

    info: Info
    pk: str
    attempts: tuple[PastAttempt, ...]
    rows: int
    now_ms: int
    running_since_ms: int | None = None
    ended_ms: int | None = None
    fingerprint: str = ""
    rule: str = ""
    rule_due_ms: int | None = None


_RULE = (
    "coalesce((SELECT x.rule FROM delayq_rule x WHERE x.id = r.id), '')",
    "(SELECT x.due_at FROM delayq_rule x WHERE x.id = r.id)",
)
_RULE_COLUMNS = ", ".join(_RULE)


def message_facts(database: Database, id: str) -> MessageFacts | None:
    """Return the facts on the message that waits or runs under the id, or else on the one that ended last.

    Of its tags only the first is among them. Return None if there is no row.
    """
    seen = _count_rows(database, id)
    return _ready_facts(database, id, *seen) or _ended_facts(database, id, *seen)


def _ready_facts(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = waiting(database, id, "r.id", "r.started_at", "r.history", *_RULE)
    if found is None:
        return None
    info, (pk, claimed_ms, history, rule, rule_due_ms) = found
    since_ms = claimed_ms if info.state is State.RUNNING else None
    past = tuple(read(history))
    return MessageFacts(info, str(pk), past, rows, now_ms, since_ms, rule=rule, rule_due_ms=rule_due_ms)


def _ended_facts(database: Database, id: str, rows: int = 0, now_ms: int = 0) -> MessageFacts | None:
    """Return the facts on the message that ended last under the id; None if there is none."""
    ended = _finished_facts(database, id, rows, now_ms), _buried_facts(database, id, rows, now_ms)
    return max((found for found in ended if found is not None), key=lambda found: found.ended_ms or 0, default=None)


def _finished_facts(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = database.rows(
        f"SELECT r.id, r.outcome, r.started_at, r.ended_at, r.history, {_RULE_COLUMNS}, r.merged, {MESSAGE}"
        " FROM delayq_finish r WHERE r.alias = %s AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1",
        [database.alias, id],
    )
    for pk, outcome, started_ms, ended_ms, history, rule, rule_due_ms, merged, *row in found:
        info = info_of(tuple(row), State(outcome))
        info.merged = merged or 0
        attempts = read(history)
        if started_ms is not None:
            how = Ended.FINISHED if info.state is State.FINISHED else Ended.CANCELLED
            error = "" if how is Ended.FINISHED else info.error
            attempts.append(PastAttempt(info.failures + 1, started_ms, ended_ms, row[16], how, error))
        past = tuple(attempts)
        return MessageFacts(info, str(pk), past, rows, now_ms, ended_ms=ended_ms, rule=rule, rule_due_ms=rule_due_ms)
    return None


def _buried_facts(database: Database, id: str, rows: int, now_ms: int) -> MessageFacts | None:
    found = database.rows(
        "SELECT r.id, r.worker, r.started_at, r.ended_at, r.history, r.fingerprint, r.failures, r.error, r.detail,"
        f" {_RULE_COLUMNS} FROM delayq_error r"
        " WHERE r.alias = %s AND r.message_id = %s ORDER BY r.ended_at DESC, r.id DESC LIMIT 1",
        [database.alias, id],
    )
    info = buried(database, id)
    if not found or info is None:
        return None
    ((pk, worker, started_ms, ended_ms, history, fingerprint, failures, error, detail, *of_rule),) = found
    last = buried_attempt(failures, started_ms, ended_ms, worker, error, detail)
    past = (*read(history), last)
    return MessageFacts(info, str(pk), past, rows, now_ms, None, ended_ms, fingerprint, *of_rule)


def _count_rows(database: Database, id: str) -> tuple[int, int]:
    """Return how many rows the id has, counted up to `MOST_ROWS`, and the database's time."""
    tables = ("delayq_ready", "delayq_finish", "delayq_error")
    of_alias_in = database.dialect.of_alias_in
    each = [f"SELECT 1 FROM {table} r WHERE {of_alias_in(table)} AND r.message_id = %s" for table in tables]
    ((count, now_ms),) = database.rows(
        f"SELECT count(*), {database.dialect.now}"
        f" FROM (SELECT * FROM ({' UNION ALL '.join(each)}) AS every_row LIMIT {MOST_ROWS}) AS counted",
        [database.alias, id] * len(tables),
    )
    return int(count), int(now_ms)
