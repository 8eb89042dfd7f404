"""The SQL of SQLite. It has one writer at a time, so no row is ever locked by another transaction."""

from django_delayq.store.sql.dialect import Columns, Rows, Sql, marks
from django_delayq.store.sql.stepwise import Stepwise


class SQLite(Stepwise):
    """The SQL of SQLite. Its clock counts whole milliseconds, rounded down."""

    now = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    now_up = f"{now} + 1"
    greatest = "max"
    lock = ""
    skip_locked = ""
    update_held = "UPDATE {table} AS r SET {changes} FROM {held} WHERE r.id = held.pk"
    join = "{values} CROSS JOIN {table} r ON {on}{lock}"
    most_selects = 500

    def values_table(self, name: str, columns: Columns, rows: Rows) -> Sql:
        """Return the rows as VALUES, whose columns SQLite names column1, column2 and so on."""
        selected = ", ".join(f"column{i} AS {column}" for i, column in enumerate(columns, 1))
        values = marks(len(rows), f"({marks(len(columns))})")
        return Sql(f"(SELECT {selected} FROM (VALUES {values})) AS {name}", [value for row in rows for value in row])
