"""The values that a caller gives, as a table that a statement joins: one text and few values, however many rows.

Each function returns the table for FROM, under a name, and its parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_delayq.core import codec


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
