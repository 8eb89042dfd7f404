"""Spell SQL for each database: fragments, and the statements for which only some databases have a short form.

First come the columns and conditions that all databases spell alike. A `Dialect` is for one database. Here are the
fragments that most databases share, the SQL that is built from them, and the statements for a database whose INSERT and
UPDATE return rows. Each database has a module for what is its own; stepwise.py has what SQLite and MySQL share.
Fragments name the rows of `delayq_ready`, or of another table of messages, `r`.

A *values table* holds rows that the caller passes. Except on SQLite, its text and its number of parameters are the same
however many rows there are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from django_delayq.brokers.base import LeaseId, NewMessage, Pair, Transition
from django_delayq.core.requests import CancelRequest
from django_delayq.core.transitions import SUSPECT_CRASHES

STALLED_MS = 15_000
"""How long a transaction of the store's own may be idle."""
LOCK_WAIT_S = 1
"""How long a brief transaction waits for a lock."""
T = TypeVar("T")
Row = tuple[Any, ...]

SHARED = (
    'alias, message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, max_attempts, '
    "timeout_ms, at_most_once, failures, crashes, error, worker, started_at, history, version, share, "
    "first_at, merged"
)
"""The columns of a message in each table, and of a row that moves from one table to another."""

_NEW = (
    'alias, message_id, queue, "key", data, due_at, scheduled_at, sent_at, at_most_once, failures, crashes, error, '
    "worker, history"
)
"""The columns that every new row fills."""
_OPTIONAL = {
    "tag": "tag",
    "trace_id": "trace_id",
    "expires_ms": "expires_at",
    "max_attempts": "max_attempts",
    "timeout_ms": "timeout_ms",
    "version": "version",
    "share": "share",
}
"""The columns that a new row fills only if its header has the field (the key)."""

MESSAGE = (
    'message_id, queue, "key", data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, '
    "max_attempts, timeout_ms, at_most_once, failures, crashes, error, worker, version, share"
)
"""The columns of a message, in the order in which store/queries.py reads them."""

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

CLEAR_LEASE = (
    "token = NULL, lease_until = NULL, worker = '', started_at = NULL, interrupted = (1 = 0), cancel_at = NULL,"
    " cancel_by = NULL, progress = NULL"
)
"""The changes to a row that ends its lease and stays in its table."""


SUSPECT = f"{CRASHED} AND r.crashes >= {SUSPECT_CRASHES} AND " + checked(
    "r.token IS NULL AND r.due_at <= {now} AND NOT r.at_most_once"
)
"""The condition that a row is a suspect that is due."""


def shared_with(**values: str) -> str:
    """Return the columns `SHARED` for a SELECT, with `values` (SQL by column) in place of some."""
    return ", ".join(values.get(column, column) for column in SHARED.split(", "))


class LongText(str):
    """The type of a column of a values table whose texts may be longer than a name."""


Columns = Mapping[str, type[int] | type[str]]
Rows = Sequence[Sequence[Any]]


class Sql(NamedTuple):
    """A piece of a statement, with its parameters."""

    text: str
    parameters: Sequence[Any] = ()


class ShareTurn(NamedTuple):
    """The turn of a share in a claim: at most `most` rows, of which `idle` could start at once.

    `since_ms` is where its first row is expected, by due time.
    """

    share: str
    since_ms: int
    most: int
    idle: int


class Inserted(NamedTuple):
    """A row that was inserted, with its due time. `now_ms` is the time of the INSERT by the database's clock."""

    id: str
    pk: int
    due_ms: int
    now_ms: int


class Executor(Protocol):
    """The part of `Database` that runs statements."""

    alias: str

    def noticed(self, count: int) -> str:
        """Return the column by which a commit notifies workers of a statement's `count` written rows; '' for none."""

    @property
    def dialect(self) -> "Dialect":
        """Return the dialect of this database."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement and return how many rows it changed."""

    def transaction(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction, or as a part of the caller's, and return its result."""


def marks(count: int, one: str = "%s") -> str:
    """Return `count` placeholders, joined by commas."""
    return ", ".join([one] * count)


class Dialect:
    """The SQL of one database.

    `now` and `now_up` are the statement's time in epoch ms, rounded down and up. It is the same time, however often a
    statement names it.
    """

    now: str
    now_up: str
    greatest = "GREATEST"
    lock: str
    lock_shared = ""
    """The end of a SELECT whose rows others may lock like this, too, but not change."""
    newest = ""
    """The end of a SELECT that must see rows committed after its transaction began.

    If the isolation level would hide them, they are locked too. PostgreSQL and SQLite need no lock, because they refuse
    to change a row that such a level hides.
    """
    hiding_level = ""
    """A query for the isolation level, which gives a row if the level hides what is committed meanwhile even from
    `newest`; '' if none does."""
    skip_locked: str
    idle_in_transaction_timeout = ""
    """The first statement of the store's own transactions, by which a frozen process loses its locks; '' for none."""
    brief = ""
    """The first statement of a brief transaction: it waits for no lock for long, and loses its own soon if frozen."""
    updates_in_place = True
    """Whether an UPDATE leaves no earlier version of the row behind that others must walk over."""
    counted = "ON CONFLICT (alias, name) DO UPDATE SET count = delayq_tally.count + excluded.count"
    """The end of an INSERT into the tally that adds to the count if the name is there."""
    unless_there = "ON CONFLICT (alias, message_id) DO NOTHING"
    """The end of an INSERT into `delayq_ready` that does nothing if the id is there."""
    unless_limit_there = 'ON CONFLICT (alias, "key", value, version) DO NOTHING'
    """The end of an INSERT into `delayq_limit` that does nothing if the row is there."""
    update_held: str
    """An UPDATE of a table from a values table `held`, whose `pk` is the row's."""
    join: str
    """SQL for FROM: a values table joined with the rows `r` of a table.

    It makes the database look up the rows one value after another. Otherwise the database would choose the order by its
    guess of how many rows the table has.
    """
    found_in = "{column} IN (SELECT {pk} FROM {found})"
    """The condition that a column is one of the pks that another part of the statement has found."""
    by_index = ""
    """The text after a table in FROM that makes the database read it by an index.

    If MySQL and MariaDB expect few rows of an alias, they would read all of them, from the first on.
    """
    by_due_time = "ORDER BY r.due_at"
    """The order of the rows of an alias, by due time.

    It names no other column, because MariaDB would take any index that has the columns named here.
    """
    of_alias_by_id = "r.alias = %s"
    """The condition on rows of the ready table that are found by their ids.

    On PostgreSQL the index of ids begins with them, and the alias is only checked. See `PageIndex` for the state in
    which PostgreSQL would take any index that has the alias.
    """
    of_alias_by_ended_id = "r.alias = %s"
    """The condition on rows of the tables of messages that have ended, which are found by their ids.

    Their index of ids begins with the alias. For an alias out of a list, PostgreSQL expects ten look-ups in the index,
    and would rather read all of a small table for each id. It sees that this list has two, one of which no alias has.
    """
    due_in_order = "r.due_at"
    """The due time as it is written in the index of shares. See `PageIndex`."""
    pk_in_order = "r.id"
    """The primary key as it is written in the indexes that give pages of rows their order. See `PageIndex`."""
    id_in_order = "r.message_id"
    """The id as an order of rows that are found by their primary keys.

    On PostgreSQL it is an expression: if it expects no rows in the table, it would read the index of ids for the order.
    """
    limit = "LIMIT {count}"
    """The LIMIT of rows that are read in the order of an index.

    It hides the number from PostgreSQL, which would sort if it expected no more rows than that.
    """
    of_alias_by_share = "r.alias = %s"
    """The condition that a row is of the alias, for reads by the index of shares. See `ShareIndex`."""
    of_alias = "r.alias = %s"
    """The condition that a row is of the alias, for reads by an index on the alias and more columns.

    In a column that was never analysed PostgreSQL expects two hundred values, and so very few rows of one alias: it
    would take any index that begins with the alias, and sort the rows. For an alias out of a list it expects ten times
    as many.
    """
    table_pages = ""
    """The number of pages of `delayq_ready`; '' if the database can't read a sample of them."""
    sample = ""
    """The text after a table in FROM that makes the database read `percent` of its pages, spread over the table.

    They are the same ones each time, so that an estimate from them is steady.
    """
    most_selects = 1_000
    """The most SELECTs that one UNION joins."""

    # Pieces of statements

    def briefly(self, sql: str) -> str:
        """Return a statement of a brief transaction that may have to wait for a lock."""
        return sql

    def values_table(self, name: str, columns: Columns, rows: Rows) -> Sql:
        """Return SQL for FROM: a table `name` with these rows."""
        raise NotImplementedError

    def among(self, column: str, pks: Sequence[int]) -> Sql:
        """Return the condition that a column is one of the primary keys."""
        return Sql(f"{column} IN ({marks(len(pks))})", list(pks))

    def joined(self, values: Sql, on: Sql, lock: str = "", table: str = "delayq_ready") -> Sql:
        """Return SQL for FROM: the table `values`, joined with the rows `r` for which `on` holds, and the lock."""
        text = self.join.format(values=values.text, on=on.text, lock=lock, table=table)
        return Sql(text, [*values.parameters, *on.parameters])

    def of_ids(self, alias: str, condition: str = "", table: str = "delayq_ready") -> Sql:
        """Return the condition that a row `r` has the id `input.of_id` and that `condition`, if there is one, holds."""
        found = f"{self.of_alias_in(table)} AND r.message_id = input.of_id"
        return Sql(f"{found}{condition and f' AND {condition}'}", [alias])

    def of_alias_in(self, table: str) -> str:
        """Return the condition on the alias of rows of a table that are found by their ids."""
        return self.of_alias_by_id if table == "delayq_ready" else self.of_alias_by_ended_id

    def under_ids(
        self, alias: str, ids: Iterable[str], condition: str = "", lock: str = "", table: str = "delayq_ready"
    ) -> Sql:
        """Return SQL for FROM: the rows `r` under the ids, in the order of ids, so that two locks can't deadlock."""
        values = self.values_table("input", {"of_id": str}, [(id,) for id in sorted(set(ids))])
        return self.joined(values, self.of_ids(alias, condition, table), lock, table)

    def with_pks(self, pks: Sql, condition: str, table: str) -> Sql:
        """Return SQL for FROM: the rows `r` whose primary keys `pks` selects as `pk`, if `condition` holds for them."""
        return self.joined(
            Sql(f"({pks.text}) AS wanted", pks.parameters), Sql(f"r.id = wanted.pk AND {condition}"), table=table
        )

    def pks_by_first_tag(self, alias: str, tag: str, table: str) -> Sql:
        """Return a SELECT of the primary keys, as `pk`, of the rows whose first tag this is."""
        return Sql(f"SELECT id AS pk FROM {table} WHERE alias = %s AND tag = %s", [alias, tag])

    def update_locked(self, table: str, changes: str, held: Sql, pks: Sequence[int]) -> Sql:
        """Return an UPDATE of a table from a values table `held`, whose `pk` is the row's. The rows are locked."""
        return Sql(self.update_held.format(table=table, changes=changes, held=held.text), held.parameters)

    def update_unless_raced(self, table: str, changes: str, held: Sql, pks: Sequence[int]) -> Sql:
        """Return the same of rows that are not locked. It writes none if any is locked, or has another pk by now.

        Only a database whose UPDATE gives rows another pk needs it.
        """
        raise NotImplementedError

    def due(self, delay_ms: int, at_ms: int | None) -> tuple[str, int]:
        """Return the SQL of a due time by the clock of the statement, and the value of its one parameter."""
        if at_ms is None:
            return f"({self.now_up} + %s)", delay_ms
        return f"{self.greatest}({self.now}, %s)", at_ms

    # Statements. In `changes` no column may be read after it is set: MySQL would read its new value.

    def insert(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Insert messages whose ids differ, and return the new rows. A message whose id waits or runs is left out.

        Rows are inserted in the order of ids, so that two inserts can't deadlock.
        """
        return (self._insert if len(messages) == 1 else self._insert_many)(database, messages)

    def _insert(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        new = self.new_rows(database.alias, messages)
        rows = database.rows(
            f"INSERT INTO delayq_ready {new.text}"
            f" {self.on_conflict(messages)} RETURNING message_id, id, due_at, sent_at{database.noticed(len(messages))}",
            new.parameters,
        )
        return [Inserted(*row[:4]) for row in rows]

    def on_conflict(self, messages: Sequence[NewMessage]) -> str:
        """Return the end of an INSERT of messages. It is '' if every id is new: a plain INSERT costs less."""
        return "" if all(message.has_new_id for message in messages) else self.unless_there

    _insert_many = _insert

    def new_rows(self, alias: str, messages: Sequence[NewMessage]) -> Sql:
        """Return the columns and the VALUES of an INSERT of messages, in the order of ids.

        It leaves out the columns that no message fills: each column costs the server time, and most sends fill none.
        """
        optional = [name for name in _OPTIONAL if any(getattr(each.header, name) is not None for each in messages)]
        rows, parameters = [], list[Any]()
        for message in sorted(messages, key=lambda message: message.id):
            header = message.header
            due, due_parameter = self.due(message.delay_ms, message.at_ms)
            values = f"%s, %s, %s, %s, %s, {due}, {due}, {self.now}, %s, 0, 0, '', '', '[]'"
            parameters += [alias, message.id, header.queue, header.key, message.body.decode()]
            parameters += [due_parameter, due_parameter, header.at_most_once]
            for name in optional:
                if name == "expires_ms":
                    values += f", {due} + %s"
                    parameters.append(due_parameter)
                else:
                    values += ", %s"
                parameters.append(getattr(header, name))
            rows.append(f"({values})")
        columns = ", ".join([_NEW, *(_OPTIONAL[name] for name in optional)])
        return Sql(f"({columns}) VALUES {', '.join(rows)}", parameters)

    def of_each_pair(self, alias: str, pairs: Sequence[tuple[str, str]], select: Sql) -> list[Sql]:
        """Return SELECTs that together give the rows of `select` for each pair of queue and key.

        In its text, `{pair}` stands for the condition that a row is of the alias and the pair, and `{i}` for the place
        of the pair in `pairs`. Its parameters follow those of `{pair}`.
        """
        of_pair = select.text.replace("{pair}", 'alias = %s AND queue = %s AND "key" = %s')
        return [
            Sql(of_pair.replace("{i}", str(i)), [alias, queue, key, *select.parameters])
            for i, (queue, key) in enumerate(pairs)
        ]

    def of_shares(self, alias: str, pair: Pair, turns: Sequence[ShareTurn], waiting: str = "") -> Sql:
        """Return SQL for FROM: a table `r` of the primary keys, as `id`, of due rows of a pair, turn by turn.

        With `waiting`, the condition that a row waits, they are those that a claim may lease, and they are locked.
        """
        selects = [
            self.of_turn(str(i), "%s", "%s", "%s", "%s", waiting, self.by_index.format(index="delayq_ready_share"))
            for i in range(len(turns))
        ]
        names = alias, *pair
        values = [value for turn in turns for value in (*names, turn.share, turn.since_ms, turn.most, turn.idle)]
        return Sql(f"({' UNION ALL '.join(selects)}) AS r", values)

    def of_turn(self, i: str, share: str, since_ms: str, most: str, idle: str, waiting: str, by_index: str = "") -> str:
        """Return a SELECT of the primary keys of one turn. The arguments are SQL, and `i` names its tables."""
        may_be_leased = f" AND {waiting} AND r.crashes < {SUSPECT_CRASHES}" if waiting else ""
        return (
            f"SELECT id FROM (SELECT due{i}.*, row_number() OVER (ORDER BY due_at, id) AS number FROM ("
            f"SELECT r.id, r.due_at, r.at_most_once FROM delayq_ready r{by_index}"
            f" WHERE {self.of_alias_by_share} AND r.queue = %s AND r.key = %s AND r.share = {share}"
            f" AND {self.due_in_order} >= {since_ms} AND {self.due_in_order} <= {self.now}{may_be_leased}"
            f" ORDER BY {self.due_in_order} {self.limit.format(count=most)}{self.skip_locked if waiting else ''}"
            f") AS due{i}) AS numbered{i} WHERE NOT at_most_once OR number <= {idle}"
        )

    def shares(
        self, database: Executor, queue: str, key: str, after: str, most: int
    ) -> list[tuple[str, int | None, int | None]]:
        """Return at most `most` shares of a pair, in order, that come after the share `after`.

        Beside each are the due times of the first and the last of its rows that wait and are due; None if it has none.
        """
        following = (
            f"(SELECT r.share FROM delayq_ready r WHERE {self.of_alias_by_share} AND r.queue = %s AND r.key = %s"
            f" AND r.share > {{after}} ORDER BY r.share {self.limit.format(count=1)})"
        )
        of_share = (
            f"(SELECT r.due_at FROM delayq_ready r WHERE {self.of_alias_by_share} AND r.queue = %s AND r.key = %s"
            f" AND r.share = shares.share AND {self.due_in_order} <= {self.now} AND {WAITING}"
            f" ORDER BY {self.due_in_order}{{way}} {self.limit.format(count=1)})"
        )
        names = [database.alias, queue, key]
        return database.rows(
            f"WITH RECURSIVE shares (share, number) AS (SELECT {following.format(after='%s')}, 1 UNION ALL"
            f" SELECT {following.format(after='shares.share')}, number + 1 FROM shares"
            f" WHERE share IS NOT NULL AND number < %s) SELECT share, {of_share.format(way='')},"
            f" {of_share.format(way=' DESC')} FROM shares WHERE share IS NOT NULL",
            [*names, after, *names, most, *names, *names],
        )

    def change(self, database: Executor, changes: Sql, found: Sql, returning: str) -> list[Row]:
        """Set `changes` in the rows `r` of `found`, and return their columns `returning` with the new values.

        `found` is the end of a SELECT, from the table's name to the lock. The lock says whether to wait for rows that
        other transactions hold.
        """
        of_found = self.found_in.format(column="r.id", pk="id", found="found")
        return database.rows(
            f"WITH found AS (SELECT r.id FROM {found.text})"
            f" UPDATE delayq_ready AS r SET {changes.text} WHERE {of_found} RETURNING {returning}",
            [*found.parameters, *changes.parameters],
        )

    def change_values(self, database: Executor, changes: str, values: Sql, where: str, returning: str) -> list[Row]:
        """Set `changes` in the rows whose ids are in the table `values`, and return columns like `change`.

        `changes` and `where` may name columns of that table, as `input.…`. The table is in the order of ids, so that
        two changes can't deadlock. This waits for rows that other transactions hold.
        """
        found = self.joined(values, self.of_ids(database.alias, where), self.lock)
        of_input = self.found_in.format(column="r.id", pk="pk", found="input")
        return database.rows(
            f"WITH input AS (SELECT input.*, r.id AS pk FROM {found.text})"
            f" UPDATE delayq_ready AS r SET {changes} FROM input WHERE {of_input} AND r.id = input.pk"
            f" RETURNING {returning}",
            found.parameters,
        )

    def apply(self, database: Executor, transitions: Sequence[Transition]) -> dict[LeaseId, bool | CancelRequest]:
        """Write transitions, at most one for each lease. Skip the rows that other transactions hold.

        A row for whose end a send was kept is skipped too, unless it goes on running (store/kept.py).

        Return the leases that still stood and were not skipped, each with whether anything was written: a lease that is
        interrupted already is not interrupted again. If somebody has asked to cancel the message, and its transition
        yields to that, nothing is written, and the request is returned.
        """
        raise NotImplementedError

    def finish_here(self, database: Executor, pk: int, token: int, started_ms: int) -> bool:
        """Move the row to `delayq_finish`, as the end of an atomic handler's transaction. Return False if it can't.

        It can't if the lease is lost, or a send was kept for the end of the run. If another transaction has locked the
        row, such as a renewal, wait for its end.
        """
        raise NotImplementedError

    def pairs(self, database: Executor, table: str, most: int) -> list[tuple[str, str]]:
        """Return at most `most` (queue, key) pairs that have a row in the table, in order.

        It looks up one pair after another in the index: a probe for each, however many rows have it. It probes for the
        next key and for the next queue, because SQLite would make no range of a comparison of both.
        """
        following = self.joined(
            Sql("pairs"), Sql(_FOLLOWING.format(table=table), [*[database.alias] * 2, most]), "", table
        )
        return database.rows(
            _PAIRS.format(table=table, following=following.text), [database.alias, *following.parameters]
        )


_PAIRS = """
WITH RECURSIVE pairs (queue, "key", number) AS (
    SELECT * FROM (
        SELECT queue, "key", 1 FROM {table} WHERE alias = %s ORDER BY queue, "key" LIMIT 1
    ) AS first_pair
    UNION ALL
    SELECT r.queue, r.key, pairs.number + 1 FROM {following}
)
SELECT queue, "key" FROM pairs
"""

_FOLLOWING = """
r.id = coalesce((
    SELECT n.id FROM {table} n
    WHERE n.alias = %s AND n.queue = pairs.queue AND n.key > pairs.key ORDER BY n.key LIMIT 1
), (
    SELECT n.id FROM {table} n
    WHERE n.alias = %s AND n.queue > pairs.queue ORDER BY n.queue, n.key LIMIT 1
)) AND pairs.number < %s
"""
