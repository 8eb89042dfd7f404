"""The SQL of MySQL and MariaDB, where an UPDATE returns no rows: a change is a transaction of three statements."""

from collections.abc import Sequence
from functools import partial

from django.db import IntegrityError

from django_delayq.brokers.base import NewMessage
from django_delayq.core import codec
from django_delayq.models.fields import COLLATIONS
from django_delayq.store.sql.dialect import (
    LOCK_WAIT_S,
    STALLED_MS,
    Columns,
    Executor,
    Inserted,
    LongText,
    Row,
    Rows,
    Sql,
    marks,
)
from django_delayq.store.sql.stepwise import Stepwise

TRIES = 5
"""How often an insert is tried again without the ids that were in use."""
# In UTC, because a time in the session's zone would be ambiguous for an hour a year.
_US = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


class MySQL(Stepwise):
    """The SQL of MySQL, which has no limit on idle transactions."""

    now = f"({_US} DIV 1000)"
    now_up = f"(({_US} + 999) DIV 1000)"
    lock = " FOR UPDATE"
    lock_shared = " LOCK IN SHARE MODE"
    newest = " LOCK IN SHARE MODE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    counted = "ON DUPLICATE KEY UPDATE count = count + VALUES(count)"
    unless_there = "ON DUPLICATE KEY UPDATE id = delayq_ready.id"
    unless_limit_there = "ON DUPLICATE KEY UPDATE id = delayq_limit.id"
    update_held = "UPDATE {held} STRAIGHT_JOIN {table} r FORCE INDEX (PRIMARY) ON r.id = held.pk SET {changes}"
    join = "{values} STRAIGHT_JOIN {table} r ON {on}{lock}"
    by_index = " FORCE INDEX ({index})"
    collation = COLLATIONS["mysql"]

    def briefly(self, sql: str) -> str:
        """Return the statement with a hint that holds for it alone."""
        verb, rest = sql.split(" ", 1)
        return f"{verb} /*+ SET_VAR(innodb_lock_wait_timeout = {LOCK_WAIT_S}) */ {rest}"

    def values_table(self, name: str, columns: Columns, rows: Rows) -> Sql:
        """Return the rows as JSON, because MySQL and MariaDB differ in how they write VALUES.

        Texts get the collation of the columns, because texts of two collations can't be compared.
        """
        text = f"CHARACTER SET utf8mb4 COLLATE {self.collation}"
        types = {int: "BIGINT", str: f"VARCHAR(200) {text}", LongText: f"LONGTEXT {text}"}
        paths = ", ".join(f"{column} {types[kind]} PATH '$[{i}]'" for i, (column, kind) in enumerate(columns.items()))
        return Sql(f"JSON_TABLE(%s, '$[*]' COLUMNS ({paths})) AS {name}", [codec.dumps(rows).decode()])

    def insert(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        return database.transaction(partial(self._insert_new, database, messages))

    def change(self, database: Executor, changes: Sql, found: Sql, returning: str) -> list[Row]:
        of_rows = Sql("delayq_ready AS r"), changes
        return database.transaction(partial(self._change, database, *of_rows, found, returning))

    def change_values(self, database: Executor, changes: str, values: Sql, where: str, returning: str) -> list[Row]:
        locked = self.joined(values, self.of_ids(database.alias, where), self.lock)
        of_rows = self.joined(values, self.of_ids(database.alias)), Sql(changes)
        return database.transaction(partial(self._change, database, *of_rows, locked, returning))

    def _change(self, database: Executor, updated: Sql, changes: Sql, locked: Sql, returning: str) -> list[Row]:
        """Lock rows, change them, and return their columns `returning`.

        The newest version of each row is read: MySQL does not write a row that has the new values already, and if
        another transaction wrote these values, this transaction may not see them.
        """
        pks = [pk for (pk,) in database.rows(f"SELECT r.id FROM {locked.text}", locked.parameters)]
        if not pks:
            return []
        of_pks = f"r.id IN ({marks(len(pks))})"
        parameters = [*updated.parameters, *changes.parameters, *pks]
        database.changed(f"UPDATE {updated.text} SET {changes.text} WHERE {of_pks}", parameters)
        return database.rows(f"SELECT {returning} FROM delayq_ready r WHERE {of_pks}{self.newest}", pks)

    def _insert_new(self, database: Executor, messages: Sequence[NewMessage]) -> list[Inserted]:
        """Insert the messages whose ids are new.

        An INSERT with an id that is in use does nothing, and leaves the transaction as it was. IGNORE would also hide
        other errors.
        """
        for _ in range(TRIES):
            if not messages:
                return []
            new = self.new_rows(database.alias, messages)
            try:
                database.changed(f"INSERT INTO delayq_ready {new.text}", new.parameters)
            except IntegrityError as error:
                refused = error
            else:
                return [Inserted(*row) for row in _rows_of(database, messages, "")]
            there = {id for id, *_ in _rows_of(database, messages, self.lock)}
            messages = [message for message in messages if message.id not in there]
        raise refused

    def pairs(self, database: Executor, table: str, most: int) -> list[tuple[str, str]]:
        """Return the pairs by one read of all rows.

        MySQL makes no range from another row's values, so a look-up of one pair after another would read all rows for
        each pair.
        """
        return database.rows(
            f"SELECT DISTINCT r.queue, r.key FROM {table} r WHERE r.alias = %s ORDER BY r.queue, r.key LIMIT %s",
            [database.alias, most],
        )

    def shares(
        self, database: Executor, queue: str, key: str, after: str, most: int
    ) -> list[tuple[str, int | None, int | None]]:
        """Return the shares that have something due by one read of nothing but the index.

        So the due times may be those of rows that run. MySQL may step from share to share (a loose index scan).
        """
        return database.rows(
            "SELECT r.share, min(r.due_at), max(r.due_at) FROM delayq_ready r FORCE INDEX (delayq_ready_share)"
            f" WHERE r.alias = %s AND r.queue = %s AND r.key = %s AND r.share > %s AND r.due_at <= {self.now}"
            " GROUP BY r.share ORDER BY r.share LIMIT %s",
            [database.alias, queue, key, after, most],
        )


class MariaDB(MySQL):
    """The SQL of MariaDB, where it differs from MySQL's.

    Its limit on idle transactions holds for the whole session, which may be the site's. So only brief transactions have
    it, which are those of a worker's own threads.
    """

    brief = f"SET SESSION idle_transaction_timeout = {STALLED_MS // 1000}"
    collation = COLLATIONS["mariadb"]

    def briefly(self, sql: str) -> str:
        """Return the statement with time-outs that hold for it alone: of locks on rows, and on the table."""
        return f"SET STATEMENT innodb_lock_wait_timeout = {LOCK_WAIT_S}, lock_wait_timeout = {LOCK_WAIT_S} FOR {sql}"


def _rows_of(database: Executor, messages: Sequence[NewMessage], lock: str) -> list[Row]:
    return database.rows(
        f"SELECT r.message_id, r.id, r.due_at, r.sent_at FROM delayq_ready r WHERE r.alias = %s"
        f" AND r.message_id IN ({marks(len(messages))}){lock}",
        [database.alias, *[message.id for message in messages]],
    )
