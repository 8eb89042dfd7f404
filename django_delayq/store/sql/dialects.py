"""The fragments of SQL that each vendor of a database spells its own way.

Two of them are functions: one gives values as a table inside a statement, with one text and few values, however many
rows; the other gives the condition that a column is one of many primary keys.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django_delayq.core import codec
from django_delayq.models.fields import COLLATIONS


class LongText(str):
    """The kind of a column whose texts may be longer than a name."""


Columns = Mapping[str, type[int] | type[str]]
Rows = Sequence[Sequence[Any]]


APART = "\x1f"
"""Goes between names in a text: names are not empty, and have no control characters."""


def on_postgresql(name: str, columns: Columns, rows: Rows) -> tuple[str, list[Any]]:
    """Return the rows as one array for each column, or, if a column is a `LongText`, as JSON.

    An array is written as text, which costs the client a tenth of what an array of Python values costs.
    """
    types = {int: "bigint", str: "text", LongText: "text"}
    if LongText not in columns.values():
        kinds = columns.values()
        arrays = ", ".join("%s::bigint[]" if kind is int else "string_to_array(%s, E'\\x1f')" for kind in kinds)
        in_columns = ([row[i] for row in rows] for i in range(len(columns)))
        lists = [
            _array(each) if kind is int else APART.join(each) for kind, each in zip(kinds, in_columns, strict=True)
        ]
        return f"unnest({arrays}) AS {name} ({', '.join(columns)})", lists
    defined = ", ".join(f"{column} {types[kind]}" for column, kind in columns.items())
    objects = [dict(zip(columns, row, strict=True)) for row in rows]
    return f"json_to_recordset(%s) AS {name} ({defined})", [codec.dumps(objects).decode()]


def _array(numbers: Iterable[int | None]) -> str:
    """Return an array as PostgreSQL reads it."""
    return "{" + ",".join(["NULL" if number is None else str(number) for number in numbers]) + "}"


def among_on_postgresql(column: str, pks: Sequence[int]) -> tuple[str, list[Any]]:
    """Return the condition that the column is one of `pks`.

    How many there are is hidden from the planner, because for very many of them it would read the whole table.
    """
    return f"{column} = ANY(ARRAY(SELECT unnest(%s::bigint[])))", [_array(pks)]


def among_elsewhere(column: str, pks: Sequence[int]) -> tuple[str, list[Any]]:
    """Return the condition that the column is one of `pks`."""
    return f"{column} IN ({', '.join(['%s'] * len(pks))})", list(pks)


def on_sqlite(name: str, columns: Columns, rows: Rows) -> tuple[str, list[Any]]:
    """Return the rows as VALUES, whose columns have fixed names."""
    selected = ", ".join(f"column{i} AS {column}" for i, column in enumerate(columns, 1))
    one = f"({', '.join(['%s'] * len(columns))})"
    values = ", ".join([one] * len(rows))
    return f"(SELECT {selected} FROM (VALUES {values})) AS {name}", [value for row in rows for value in row]


def on_mysql(name: str, columns: Columns, rows: Rows, *, collation: str) -> tuple[str, list[Any]]:
    """Return the rows as JSON, because MySQL and MariaDB differ in how they write VALUES.

    Its texts get the `collation`: texts of two collations could not be compared.
    """
    text = f"CHARACTER SET utf8mb4 COLLATE {collation}"
    types = {int: "BIGINT", str: f"VARCHAR(200) {text}", LongText: f"LONGTEXT {text}"}
    paths = ", ".join(f"{column} {types[kind]} PATH '$[{i}]'" for i, (column, kind) in enumerate(columns.items()))
    return f"JSON_TABLE(%s, '$[*]' COLUMNS ({paths})) AS {name}", [codec.dumps(rows).decode()]


STALLED_MS = 15_000
"""How long a transaction of the store's own may do nothing."""


def idle_in_transaction_timeout(ms: int) -> str:
    """Return the statement that limits an idle transaction on PostgreSQL.

    It holds until the end of the transaction, because a pool may give the session to others then.
    """
    return f"SELECT set_config('idle_in_transaction_session_timeout', '{ms}', true)"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fragments of SQL.

    `now` and `now_up` are the statement's time in epoch ms, rounded down and up: one time, however often a statement
    names them.
    """

    now: str
    now_up: str
    greatest: str
    least: str
    lock: str
    newest: str
    """The end of a read that must see what was committed since its transaction began.

    Where the level of isolation would hide such a row, it is locked too.
    """
    skip_locked: str
    idle_in_transaction_timeout: str
    """The statement that begins a transaction of the store's own: a process that is frozen must not keep its locks."""
    counted: str
    """The end of an insert into the tally, where the name is there."""
    unless_there: str
    """The end of an insert into `delayq_ready` that does nothing where the id is there."""
    update_held: str
    """An UPDATE of `delayq_ready` from a given table `held`, whose `pk` is the row's."""
    join: str
    """A given table joined with the rows `r` of a table, which are looked up for each of its rows, in their order.

    The order of a join is else a guess about how many rows a table has.
    """
    among: Callable[[str, Sequence[int]], tuple[str, list[Any]]]
    """See `on_postgresql`, and `among_on_postgresql`."""
    found_in: str
    """The condition that a column is one of the pks that an expression of the statement gives."""
    given: Callable[[str, Columns, Rows], tuple[str, list[Any]]]
    """See `on_postgresql`, and `among_on_postgresql`."""
    by_index: str = ""
    """Goes behind a table of FROM, to have it read by an index.

    MySQL and MariaDB would read all rows of an alias, from the first on, where they expect few of them.
    """
    by_due_time: str = "ORDER BY r.due_at"
    """The order of rows of an alias. MariaDB would take any index that has what is named here."""
    limit: str = "LIMIT {count}"
    """Takes the first rows in the order of an index.

    PostgreSQL is not told how many: it would sort, where it expects no more rows than that.
    """
    of_alias: str = "r.alias = %s"
    """The condition on rows that an index finds by their alias and more, or gives in the order of both.

    PostgreSQL expects two hundred values in a column that nobody analysed, so very few rows of one alias: any index
    that begins with it would do, and the rows would be sorted. Of an alias out of a list it expects ten times as many.
    """
    most_selects: int = 1_000
    """The most SELECTs that one UNION joins."""

    def due(self, delay_ms: int, at_ms: int | None) -> tuple[str, int]:
        """Return the SQL of a due time by the clock of the statement, and its one parameter."""
        if at_ms is None:
            return f"({self.now_up} + %s)", delay_ms
        return f"{self.greatest}({self.now}, %s)", at_ms

    def later(self, by_ms: int) -> tuple[str, int]:
        """Return SQL for the due time of a row `r` plus `by_ms`, and its one parameter."""
        return f"{self.greatest}({self.now}, r.due_at + %s)", by_ms


_COUNTED = "ON CONFLICT (alias, name) DO UPDATE SET count = delayq_tally.count + excluded.count"
_UNLESS_THERE = "ON CONFLICT (alias, message_id) DO NOTHING"
_US = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

DIALECTS = {
    "postgresql": Dialect(
        now="floor(extract(epoch from statement_timestamp()) * 1000)::bigint",
        now_up="ceil(extract(epoch from statement_timestamp()) * 1000)::bigint",
        greatest="GREATEST",
        least="LEAST",
        lock=" FOR UPDATE OF r",
        newest="",  # at such a level it refuses to write what it would hide
        skip_locked=" FOR UPDATE OF r SKIP LOCKED",
        idle_in_transaction_timeout=idle_in_transaction_timeout(STALLED_MS),
        counted=_COUNTED,
        unless_there=_UNLESS_THERE,
        update_held=(
            "WITH held AS MATERIALIZED (SELECT * FROM {held}) UPDATE delayq_ready r SET {changes} FROM held"
            " WHERE r.id = ANY(ARRAY(SELECT pk FROM held)) AND r.id = held.pk"
        ),
        join="{given} CROSS JOIN LATERAL (SELECT r.* FROM {table} r WHERE {on} OFFSET 0{lock}) AS r",
        among=among_on_postgresql,
        found_in="{column} = ANY(ARRAY(SELECT {pk} FROM {found}))",
        by_due_time="ORDER BY r.alias, r.due_at",  # an alias out of a list is not one value to the planner
        limit="LIMIT (SELECT {count})",
        of_alias="r.alias = ANY(ARRAY(SELECT %s))",
        given=on_postgresql,
    ),
    "sqlite": Dialect(  # its clock counts whole ms, rounded down; it has one writer, so nothing is locked to skip
        now="CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
        now_up="CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + 1",
        greatest="max",
        least="min",
        lock="",
        newest="",  # as PostgreSQL
        skip_locked="",
        idle_in_transaction_timeout="",
        counted=_COUNTED,
        unless_there=_UNLESS_THERE,
        update_held="UPDATE delayq_ready AS r SET {changes} FROM {held} WHERE r.id = held.pk",
        join="{given} CROSS JOIN {table} r ON {on}{lock}",
        among=among_elsewhere,
        found_in="{column} IN (SELECT {pk} FROM {found})",
        given=on_sqlite,
        most_selects=500,
    ),
    "mysql": Dialect(  # and MariaDB. A time in the zone of the session would be ambiguous for an hour a year
        now=f"({_US} DIV 1000)",
        now_up=f"(({_US} + 999) DIV 1000)",
        greatest="GREATEST",
        least="LEAST",
        lock=" FOR UPDATE",
        newest=" LOCK IN SHARE MODE",
        skip_locked=" FOR UPDATE SKIP LOCKED",
        idle_in_transaction_timeout="",  # MariaDB has a limit for the whole session only, and that is the site's
        counted="ON DUPLICATE KEY UPDATE count = count + VALUES(count)",
        unless_there="ON DUPLICATE KEY UPDATE id = delayq_ready.id",
        update_held="UPDATE {held} STRAIGHT_JOIN delayq_ready r FORCE INDEX (PRIMARY) ON r.id = held.pk SET {changes}",
        join="{given} STRAIGHT_JOIN {table} r ON {on}{lock}",
        among=among_elsewhere,
        found_in="{column} IN (SELECT {pk} FROM {found})",
        given=partial(on_mysql, collation=COLLATIONS["mysql"]),
        by_index=" FORCE INDEX ({index})",
    ),
}
DIALECTS["mariadb"] = replace(DIALECTS["mysql"], given=partial(on_mysql, collation=COLLATIONS["mariadb"]))
