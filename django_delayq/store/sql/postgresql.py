"""The SQL of PostgreSQL: each statement does its work in one round trip, with few values, however many the messages."""

from collections.abc import Iterable, Sequence
from typing import Any

from django_delayq.brokers.base import Header, LeaseId, NewMessage, Pair
from django_delayq.core import codec
from django_delayq.core.message import State
from django_delayq.core.requests import CancelRequest
from django_delayq.core.transitions import Transition
from django_delayq.store.sql.dialect import (
    LOCK_WAIT_S,
    SHARED,
    STALLED_MS,
    Columns,
    Dialect,
    Executor,
    Inserted,
    LongText,
    Rows,
    ShareTurn,
    Sql,
    checked,
)
from django_delayq.store.sql.stepwise import AGAIN, BURIED, CANCELLED, FINISHED, interrupted

_APART = "\x1f"
"""The separator of names in one text: names are not empty, and neither they nor JSON have control characters."""
_TYPES = {int: "bigint", str: "text", LongText: "text"}
_HEADER = (
    'kind int, queue text, "key" text, tag text, trace_id text, expires_ms bigint, max_attempts int,'
    " timeout_ms bigint, at_most_once boolean, version int, share text"
)
_KIND = f"{_HEADER}, delay_ms bigint, at_ms bigint"


def idle_in_transaction_timeout(ms: int) -> str:
    """Return the statement that limits how long a transaction may be idle.

    It holds for this transaction only, because a pool may then give the session to others.
    """
    return f"SELECT set_config('idle_in_transaction_session_timeout', '{ms}', true)"


def lock_timeout(ms: int) -> str:
    """Return the column that, added to such a statement, limits how long the transaction waits for a lock."""
    return f", set_config('lock_timeout', '{ms}', true)"


class PostgreSQL(Dialect):
    """The SQL of PostgreSQL. Most values are put into subqueries, so that plans don't depend on table statistics."""

    now = "floor(extract(epoch from statement_timestamp()) * 1000)::bigint"
    now_up = "ceil(extract(epoch from statement_timestamp()) * 1000)::bigint"
    lock = " FOR UPDATE OF r"
    lock_shared = " FOR SHARE OF r"
    hiding_level = (
        "SELECT upper(level) FROM current_setting('transaction_isolation') AS level"
        " WHERE level IN ('repeatable read', 'serializable')"
    )
    skip_locked = " FOR UPDATE OF r SKIP LOCKED"
    updates_in_place = False
    idle_in_transaction_timeout = idle_in_transaction_timeout(STALLED_MS)
    # Its rows are found by index: a scan of a small table also reads what another session's open transaction keeps.
    brief = (
        f"{idle_in_transaction_timeout}{lock_timeout(LOCK_WAIT_S * 1000)}, set_config('enable_seqscan', 'off', true)"
    )
    update_held = (
        "WITH held AS MATERIALIZED (SELECT * FROM {held}) UPDATE {table} r SET {changes} FROM held"
        " WHERE r.id = ANY(ARRAY(SELECT pk FROM held)) AND r.id = held.pk"
    )
    join = "{values} CROSS JOIN LATERAL (SELECT r.* FROM {table} r WHERE {on} OFFSET 0{lock}) AS r"
    found_in = "{column} = ANY(ARRAY(SELECT {pk} FROM {found}))"
    by_due_time = "ORDER BY r.alias, r.due_at"  # to the planner, an alias out of a list is not one value
    due_in_order = "(r.due_at + 0)"
    pk_in_order = "(r.id + 0)"
    id_in_order = "(r.message_id || '')"
    limit = "LIMIT (SELECT {count})"
    of_alias = "r.alias = ANY(ARRAY(SELECT %s))"
    of_alias_by_share = "(r.alias || '') = %s"
    of_alias_by_id = checked("r.alias = %s")
    of_alias_by_ended_id = "r.alias IN (%s, E'\\x01')"
    table_pages = "pg_relation_size('delayq_ready') / current_setting('block_size')::int"
    sample = "TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0)"

    def values_table(self, name: str, columns: Columns, rows: Rows) -> Sql:
        """Return the rows as one array for each column, or as JSON if a column is a `LongText`.

        An array is written as text, which costs the client a tenth of what an array of Python values costs.
        """
        kinds = columns.values()
        if LongText not in kinds:
            arrays = ", ".join("%s::bigint[]" if kind is int else "string_to_array(%s, E'\\x1f')" for kind in kinds)
            in_columns = ([row[i] for row in rows] for i in range(len(columns)))
            lists = [
                _array(each) if kind is int else _APART.join(each) for kind, each in zip(kinds, in_columns, strict=True)
            ]
            return Sql(f"unnest({arrays}) AS {name} ({', '.join(columns)})", lists)
        defined = ", ".join(f"{column} {_TYPES[kind]}" for column, kind in columns.items())
        objects = [dict(zip(columns, row, strict=True)) for row in rows]
        return Sql(f"json_to_recordset(%s) AS {name} ({defined})", [codec.dumps(objects).decode()])

    def of_each_pair(self, alias: str, pairs: Sequence[tuple[str, str]], select: Sql) -> list[Sql]:
        """Return one SELECT for all pairs, because to plan one for each would take longer than to run them."""
        values = self.values_table(
            "pairs", {"i": int, "queue": str, "key": str}, [(i, *of) for i, of in enumerate(pairs)]
        )
        text = select.text.replace("{pair}", 'alias = %s AND queue = pairs.queue AND "key" = pairs."key"')
        text = text.replace("{i}", "pairs.i")
        return [
            Sql(
                f"SELECT of_pair.* FROM {values.text} CROSS JOIN LATERAL ({text}) AS of_pair",
                [*values.parameters, alias, *select.parameters],
            )
        ]

    def of_shares(self, alias: str, pair: Pair, turns: Sequence[ShareTurn], waiting: str = "") -> Sql:
        """Return one SELECT for all turns, because to plan one for each would take longer than to run them."""
        values = self.values_table("turns", {"share": str, "since_ms": int, "most": int, "idle": int}, turns)
        of_turn = self.of_turn("", "turns.share", "turns.since_ms", "turns.most", "turns.idle", waiting)
        return Sql(
            f"(SELECT of_turn.id FROM {values.text} CROSS JOIN LATERAL ({of_turn}) AS of_turn) AS r",
            [*values.parameters, alias, *pair],
        )

    def among(self, column: str, pks: Sequence[int]) -> Sql:
        """Return the condition that the column is one of `pks`.

        Their number is hidden from the planner, because for very many of them it would read the whole table.
        """
        return Sql(f"{column} = ANY(ARRAY(SELECT unnest(%s::bigint[])))", [_array(pks)])

    def update_unless_raced(self, table: str, changes: str, held: Sql, pks: Sequence[int]) -> Sql:
        """Return one statement. It has the pks as they are, so that the planner takes the index for few of them."""
        found = "r.id = ANY(%s::bigint[])"
        return Sql(
            f"WITH held AS MATERIALIZED (SELECT * FROM {held.text}),"
            f" free AS MATERIALIZED (SELECT r.id FROM {table} r WHERE {found}{self.skip_locked})"
            f" UPDATE {table} r SET {changes} FROM held"
            f" WHERE (SELECT count(*) FROM free) = (SELECT count(*) FROM held) AND {found} AND r.id = held.pk",
            [*held.parameters, _array(pks), _array(pks)],
        )

    def with_pks(self, pks: Sql, condition: str, table: str) -> Sql:
        """Return SQL for FROM in a form that can be sorted before it is locked."""
        return Sql(f"{table} r WHERE r.id = ANY(ARRAY({pks.text})) AND {condition}", pks.parameters)

    def pks_by_first_tag(self, alias: str, tag: str, table: str) -> Sql:
        """Return a SELECT that reads the index of tags in its order.

        If PostgreSQL expects no rows in the table, it would take any index that begins with the alias.
        """
        return Sql(
            f"(SELECT r.id AS pk FROM {table} r WHERE {self.of_alias} AND r.tag >= %s AND r.tag <= %s"
            " ORDER BY r.alias, r.tag)",
            [alias, tag, tag],
        )

    def _insert_many(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Insert messages as three texts that the server splits: of the ids, the data, and the numbers of the kinds.

        A text costs the client a tenth of what an array costs. A kind is a header with a due time, which most messages
        of a bulk send share.
        """
        kinds, kind_of = _kinds_of(messages)
        values = (
            "unnest(string_to_array(%s, %s), string_to_array(%s, %s), string_to_array(%s, ',')::int[])"
            " AS one (message_id, data, kind)"
        )
        rows = database.rows(
            f"{insert_from(self, values, _KIND)} {self.on_conflict(messages)}"
            f" RETURNING message_id, id, due_at, sent_at{database.noticed(len(messages))}",
            [
                codec.dumps(kinds).decode(),
                _APART.join([message.id for message in messages]),
                _APART,
                _APART.encode().join([message.body for message in messages]).decode(),
                _APART,
                ",".join(kind_of),
                database.alias,
            ],
        )
        return [Inserted(*row[:4]) for row in rows]

    def apply(self, database: Executor, transitions: Sequence[Transition]) -> dict[LeaseId, bool | CancelRequest]:
        """Lock the rows and write them in one statement."""
        states = {one.state for one in transitions}
        with_rows = [one for one in transitions if one.pk]  # a transition without a pk has no row
        if not with_rows:
            return {}
        columns = _FINISH if states == {State.FINISHED} else _OTHERS
        held = self.values_table("held", columns, [_values_of_lease(one)[: len(columns)] for one in with_rows])
        on = Sql(f"r.id = held.pk AND {checked(_STANDS)}")
        found = self.joined(held, on, self.skip_locked)
        rest = ", ".join(f"held.{column}" for column in columns if column not in ("state", "started_ms", "ended_ms"))
        parts = [
            _HELD.format(columns=rest, now=self.now, found=found.text),
            *([_GONE] if states & {State.FINISHED, State.FAILED, State.CANCELLED} else []),
            *(_WRITES[state].format(now=self.now, now_up=self.now_up) for state in _WRITES if state in states),
        ]
        rows = database.rows(
            f"WITH {', '.join(parts)} SELECT of_id, of_token, state IS NOT NULL, cancel_by, cancel_at FROM held",
            found.parameters,
        )
        answers: dict[LeaseId, bool | CancelRequest] = {(id, token): is_written for id, token, is_written, _, _ in rows}
        asked = {(id, token): CancelRequest(by or "", at_ms) for id, token, _, by, at_ms in rows if at_ms is not None}
        for one in with_rows if asked else ():
            if one.yields_to_cancel and (request := asked.get((one.id, one.token))):
                answers[one.id, one.token] = request
        return answers

    def finish_here(self, database: Executor, pk: int, token: int, started_ms: int) -> bool:
        """Move the row in one statement."""
        rows = database.rows(
            "WITH gone AS (DELETE FROM delayq_ready r WHERE r.id = %s AND r.token = %s AND r.again IS NULL"
            f" RETURNING r.*, LEAST(%s, {self.now}) AS started_ms, {self.now} AS ended_ms)"
            f" INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at) SELECT {FINISHED} FROM gone RETURNING id",
            [pk, token, started_ms],
        )
        return bool(rows)


def _array(numbers: Iterable[int | None]) -> str:
    """Return numbers as PostgreSQL writes an array."""
    return "{" + ",".join(["NULL" if number is None else str(number) for number in numbers]) + "}"


def insert_from(dialect: Dialect, values: str, kind: str = _HEADER) -> str:
    """Return an INSERT of messages without its ON CONFLICT clause, which the caller adds.

    Messages that differ only in id and data are of one kind, and share its columns; see `_kinds_of`.

    - `values`: a table for FROM, as SQL, with the columns `message_id`, `data` and `kind` (the number of the kind).
    - `kind`: the columns of the table of kinds. If `delay_ms` and `at_ms` are not among them, `values` must have them.

    The parameters of the statement are the kinds as JSON, the parameters of `values`, and the alias.
    """
    return (
        f"WITH clock AS MATERIALIZED (SELECT {dialect.now} AS n, {dialect.now_up} AS u),"
        f" kinds AS MATERIALIZED (SELECT * FROM json_to_recordset(%s) AS kinds ({kind})), input AS ("
        ' SELECT message_id, data, queue, "key", tag, trace_id, expires_ms, max_attempts, timeout_ms, at_most_once,'
        " version, share, n, CASE WHEN at_ms IS NULL THEN u + delay_ms ELSE GREATEST(n, at_ms) END AS due_at"
        f" FROM {values} JOIN kinds USING (kind), clock)"
        f" INSERT INTO delayq_ready ({SHARED})"
        ' SELECT %s, message_id, queue, "key", data, tag, trace_id, due_at, due_at, n, due_at + expires_ms,'
        " max_attempts, timeout_ms, at_most_once, 0, 0, '', '', NULL, '[]', version, share, NULL, NULL FROM input"
        " ORDER BY message_id"
    )


def _kinds_of(messages: Sequence[NewMessage]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the kinds of the messages, and the number of each message's kind. A kind is all but id and data."""
    numbers: dict[tuple[int, int, int | None], int] = {}
    kinds: list[dict[str, Any]] = []
    kind_of = []
    for message in messages:
        kind = (id(message.header), message.delay_ms, message.at_ms)
        number = numbers.get(kind)
        if number is None:
            number = numbers[kind] = len(kinds)
            kinds.append({**header_as(number, message.header), "delay_ms": message.delay_ms, "at_ms": message.at_ms})
        kind_of.append(str(number))
    return kinds, kind_of


def header_as(number: int, header: Header) -> dict[str, Any]:
    """Return a header as JSON values, under a number by which messages refer to it."""
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
        "version": header.version,
        "share": header.share,
    }


_FINISH: Columns = {
    "pk": int,
    "of_id": str,
    "of_token": int,
    "state": str,
    "started_ms": int,
    "ended_ms": int,
}
_OTHERS: Columns = {
    **_FINISH,
    "wait_ms": int,
    "at_ms": int,
    "new_failures": int,
    "new_crashes": int,
    "cause": LongText,
    "detail": LongText,
    "fingerprint": LongText,
    "past": LongText,
}
"""The columns of the values table of leases, unless all the leases end as finished: `_FINISH` has enough for those."""

_HELD = (
    "held AS (SELECT r.*, {columns},"
    " LEAST(GREATEST(coalesce(held.ended_ms, {now}), r.started_at), {now}) AS ended_ms,"
    f" CASE WHEN state NOT IN ('{State.FAILED}', '{State.CANCELLED}') OR held.started_ms IS NOT NULL"
    " THEN LEAST(coalesce(held.started_ms, r.started_at), held.ended_ms, {now}) END AS started_ms,"
    f" CASE WHEN state = '{State.RUNNING}' AND r.interrupted THEN NULL"
    f" WHEN state IN ('{State.PENDING}', '{State.FAILED}') AND r.cancel_at IS NOT NULL THEN NULL"
    " ELSE state END AS state FROM {found})"
)
"""The rows whose leases still stand. The worker's clock may be ahead or behind.

No time is kept that is later than now, and no end that is before the claim: so of messages of which one is sent as
another ends, the ends are in that order.
"""

_STANDS = (
    f"r.message_id = held.of_id AND r.token = held.of_token AND (r.again IS NULL OR held.state = '{State.RUNNING}'"
    f" OR (held.state IN ('{State.PENDING}', '{State.FAILED}') AND r.cancel_at IS NOT NULL))"
)

_JOIN_HELD = "r.id = ANY(ARRAY(SELECT pk FROM held)) AND r.id = held.pk"
"""The condition that ties rows to `held`. They are found by their primary keys, however many the planner expects."""


def _in_state(*states: State) -> str:
    """Return the condition that a transition leads to one of the states. The planner does not take it for rare."""
    return checked(" OR ".join(f"state = '{state}'" for state in states))


_ENDED = _in_state(State.FINISHED, State.FAILED, State.CANCELLED)
_GONE = f"gone AS (DELETE FROM delayq_ready WHERE id = ANY(ARRAY(SELECT pk FROM held WHERE {_ENDED})))"
"""The part that deletes rows. `held` has read and locked them, so other parts may write them into another table."""
_WRITES = {
    State.FINISHED: (
        f"finished AS (INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
        f" SELECT {FINISHED} FROM held WHERE state = '{State.FINISHED}')"
    ),
    State.FAILED: (
        f"buried AS (INSERT INTO delayq_error (id, {SHARED}, detail, fingerprint, ended_at)"
        f" SELECT {BURIED} FROM held WHERE state = '{State.FAILED}')"
    ),
    State.CANCELLED: (
        f"cancelled AS (INSERT INTO delayq_finish (id, {SHARED}, outcome, ended_at)"
        f" SELECT {CANCELLED} FROM held WHERE state = '{State.CANCELLED}')"
    ),
    State.PENDING: (
        f"again AS (UPDATE delayq_ready r SET {AGAIN} FROM held WHERE {_JOIN_HELD} AND {_in_state(State.PENDING)})"
    ),
    State.RUNNING: (
        f"interrupted AS (UPDATE delayq_ready r SET {interrupted('{now}')}"
        f" FROM held WHERE {_JOIN_HELD} AND {_in_state(State.RUNNING)})"
    ),
}
"""The part of the statement for each state, with places for the dialect's `now` and `now_up`."""


def _values_of_lease(one: Transition) -> tuple[Any, ...]:
    """Return the values of a transition for the columns `_OTHERS`; those for `_FINISH` come first."""
    cause = one.error or "" if one.state in (State.FAILED, State.CANCELLED) else one.error
    return (
        *(int(one.pk), one.id, one.token, one.state, one.started_ms, one.ended_ms),
        *(one.delay_ms, one.at_ms, one.failures, one.crashes, cause, one.detail, one.fingerprint, one.history),
    )
