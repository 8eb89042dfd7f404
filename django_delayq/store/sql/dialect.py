"""Spell SQL for each database: fragments, and the statements of which only some databases know the short form.

A `Dialect` is one vendor's. Here are the fragments that most share, the SQL that is built from them, and the statements
of a database whose INSERT and UPDATE return rows. The others are in a module for each vendor; stepwise.py has what
SQLite and MySQL share. In every statement, rows of `delayq_ready` are `r`.

A *values table* has rows of values that the caller passes: one text and few parameters, however many rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from django_delayq.brokers.base import LeaseId, NewMessage, Transition
from django_delayq.store.sql.rows import SHARED, Row

STALLED_MS = 15_000
"""How long a transaction of the store's own may do nothing."""
T = TypeVar("T")


class LongText(str):
    """The kind of a column whose texts may be longer than a name."""


Columns = Mapping[str, type[int] | type[str]]
Rows = Sequence[Sequence[Any]]


class Sql(NamedTuple):
    """A piece of a statement, and its parameters."""

    text: str
    parameters: Sequence[Any] = ()


class Inserted(NamedTuple):
    """A row that was inserted, with its due time. `now_ms` is the time of the INSERT by the database's clock."""

    id: str
    pk: int
    due_ms: int
    now_ms: int


class Executor(Protocol):
    """Runs statements: see `Database`."""

    alias: str
    notice: str

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
    """Return `count` placeholders for a list."""
    return ", ".join([one] * count)


class Dialect:
    """The SQL of one vendor.

    `now` and `now_up` are the statement's time in epoch ms, rounded down and up: one time, however often a statement
    names them.
    """

    now: str
    now_up: str
    greatest = "GREATEST"
    least = "LEAST"
    lock: str
    newest = ""
    """The end of a read that must see what was committed since its transaction began.

    Where the level of isolation would hide such a row, it is locked too. PostgreSQL and SQLite refuse to write what
    such a level would hide.
    """
    skip_locked: str
    idle_in_transaction_timeout = ""
    """The statement that begins a transaction of the store's own: a process that is frozen must not keep its locks."""
    counted = "ON CONFLICT (alias, name) DO UPDATE SET count = delayq_tally.count + excluded.count"
    """The end of an insert into the tally, where the name is there."""
    unless_there = "ON CONFLICT (alias, message_id) DO NOTHING"
    """The end of an insert into `delayq_ready` that does nothing where the id is there."""
    update_held: str
    """An UPDATE of `delayq_ready` from a values table `held`, whose `pk` is the row's."""
    join: str
    """A values table joined with the rows `r` of a table, which are looked up for each of its rows, in their order.

    The order of a join is else a guess about how many rows a table has.
    """
    found_in = "{column} IN (SELECT {pk} FROM {found})"
    """The condition that a column is one of the pks that an expression of the statement gives."""
    by_index = ""
    """Goes behind a table of FROM, to have it read by an index.

    MySQL and MariaDB would read all rows of an alias, from the first on, where they expect few of them.
    """
    by_due_time = "ORDER BY r.due_at"
    """The order of rows of an alias. MariaDB would take any index that has what is named here."""
    limit = "LIMIT {count}"
    """Takes the first rows in the order of an index.

    PostgreSQL is not told how many: it would sort, where it expects no more rows than that.
    """
    of_alias = "r.alias = %s"
    """The condition on rows that an index finds by their alias and more, or gives in the order of both.

    PostgreSQL expects two hundred values in a column that nobody analysed, so very few rows of one alias: any index
    that begins with it would do, and the rows would be sorted. Of an alias out of a list it expects ten times as many.
    """
    most_selects = 1_000
    """The most SELECTs that one UNION joins."""

    # Pieces of statements

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

    def of_ids(self, alias: str, condition: str = "") -> Sql:
        """Return the condition that a row `r` has the id `input.of_id`, and that `condition` holds, if there is one."""
        return Sql(f"{self.of_alias} AND r.message_id = input.of_id{condition and f' AND {condition}'}", [alias])

    def under_ids(
        self, alias: str, ids: Iterable[str], condition: str = "", lock: str = "", table: str = "delayq_ready"
    ) -> Sql:
        """Return SQL for FROM: the rows `r` under the ids, in the order of ids, so that two locks can't deadlock."""
        values = self.values_table("input", {"of_id": str}, [(id,) for id in sorted(set(ids))])
        return self.joined(values, self.of_ids(alias, condition), lock, table)

    def due(self, delay_ms: int, at_ms: int | None) -> tuple[str, int]:
        """Return the SQL of a due time by the clock of the statement, and its one parameter."""
        if at_ms is None:
            return f"({self.now_up} + %s)", delay_ms
        return f"{self.greatest}({self.now}, %s)", at_ms

    # Statements. In `changes` no column may be read after it is set: MySQL would read its new value.

    def insert(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Make rows of messages whose ids differ, and return those made. Messages that wait or run stay as they are.

        In the order of ids, so that two inserts can't deadlock.
        """
        return (self._insert if len(messages) == 1 else self._insert_many)(database, messages)

    def _insert(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        values, parameters = self._values_of(database.alias, messages)
        rows = database.rows(
            f"INSERT INTO delayq_ready ({SHARED}) VALUES {values}"
            f" {self.on_conflict(messages)} RETURNING message_id, id, due_at, sent_at{database.notice}",
            parameters,
        )
        return [Inserted(*row[:4]) for row in rows]

    def on_conflict(self, messages: Sequence[NewMessage]) -> str:
        """Return the end of an INSERT of messages. Where each id is new a plain INSERT does, which costs less."""
        return "" if all(message.has_new_id for message in messages) else self.unless_there

    _insert_many = _insert

    def _values_of(self, alias: str, messages: Sequence[NewMessage]) -> tuple[str, list[Any]]:
        """Return rows of the columns `SHARED` in the order of ids, as SQL and its parameters."""
        rows, parameters = [], list[Any]()
        for message in sorted(messages, key=lambda message: message.id):
            header = message.header
            due, due_parameter = self.due(message.delay_ms, message.at_ms)
            times = [due_parameter, due_parameter]
            expires = "NULL"
            if header.expires_ms is not None:
                expires = f"{due} + %s"
                times += [due_parameter, header.expires_ms]
            rows.append(
                f"(%s, %s, %s, %s, %s, %s, %s, {due}, {due}, {self.now}, {expires}, %s, %s, %s, 0, 0, '', '', NULL,"
                " '[]')"
            )
            parameters += [alias, message.id, header.queue, header.key, message.body.decode(), header.tag]
            parameters += [header.trace_id, *times, header.max_attempts, header.timeout_ms, header.at_most_once]
        return ", ".join(rows), parameters

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
        """Set `changes` in the rows whose ids are in the table `values`, and return columns as `change` does.

        `changes` and `where` may name its columns, as `input.…`. It is in the order of ids, so that two changes can't
        deadlock. Waits for rows that other transactions hold.
        """
        found = self.joined(values, self.of_ids(database.alias, where), self.lock)
        of_input = self.found_in.format(column="r.id", pk="pk", found="input")
        return database.rows(
            f"WITH input AS (SELECT input.*, r.id AS pk FROM {found.text})"
            f" UPDATE delayq_ready AS r SET {changes} FROM input WHERE {of_input} AND r.id = input.pk"
            f" RETURNING {returning}",
            found.parameters,
        )

    def apply(self, database: Executor, transitions: Sequence[Transition]) -> dict[LeaseId, bool]:
        """Write transitions, no two of one lease, except those of rows that other transactions hold.

        Return the leases that still stood, each with whether anything was written: a lease that is interrupted already
        is not interrupted again.
        """
        raise NotImplementedError

    def finish_here(self, database: Executor, pk: int, token: int, started_ms: int) -> bool:
        """Move the row from ready to finish, at the end of the caller's transaction. Return False for a lost lease.

        Waits for a transaction that has the row: a renewal, or a cancel that may be rolled back.
        """
        raise NotImplementedError

    def pairs(self, database: Executor, table: str, most: int) -> list[tuple[str, str]]:
        """Return each (queue, key) that has a row in the table, in their order, at most `most`.

        It reads the next one of the index again and again: a probe for each, however many rows have it. Two probes,
        because SQLite would make no range of a comparison of both.
        """
        return database.rows(_PAIRS.format(table=table), [*[database.alias] * 3, most])


_PAIRS = """
WITH RECURSIVE pairs (queue, "key", number) AS (
    SELECT * FROM (
        SELECT queue, "key", 1 FROM {table} WHERE alias = %s ORDER BY queue, "key" LIMIT 1
    ) AS first_pair
    UNION ALL
    SELECT following.queue, following.key, pairs.number + 1
    FROM pairs JOIN {table} following ON following.id = coalesce((
        SELECT r.id FROM {table} r
        WHERE r.alias = %s AND r.queue = pairs.queue AND r.key > pairs.key ORDER BY r.key LIMIT 1
    ), (
        SELECT r.id FROM {table} r
        WHERE r.alias = %s AND r.queue > pairs.queue ORDER BY r.queue, r.key LIMIT 1
    ))
    WHERE pairs.number < %s
)
SELECT queue, "key" FROM pairs
"""
