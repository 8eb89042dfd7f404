"""Read pages of the ready table in the order of due time and pk, each as quickly as the first."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH
from django_delayq.store.database import Database, Sql

Position = tuple[int, int]
"""The due time and pk of the row that was read last."""
START: Position = (0, 0)


def page_after(
    database: Database, after: Position, within_ms: int, columns: Sequence[str], index: str, condition: str = "true"
) -> Sql:
    """Return a SELECT of the next `BATCH` rows `r` that are due within `within_ms`: due time, pk and `columns`.

    `index` ends with due time and pk, and `condition` fixes its other columns to one value each. It is read in two
    ranges: the rows due at the same time as the last one, and the rows due later. MariaDB and SQLite would make one
    range of `(due_at, id) > (…, …)`, that of the due time: each page would read every row that is due at that time.
    """
    dialect = database.dialect
    rows = (
        f"SELECT r.due_at, r.id, {', '.join(columns)} FROM delayq_ready r{dialect.by_index.format(index=index)}"
        f" WHERE r.alias = %s AND {condition}"
    )
    in_order = f"ORDER BY r.due_at, r.id {dialect.limit.format(count=BATCH)}"
    due_ms, pk = after
    later = Sql(
        f"{rows} AND r.due_at > %s AND r.due_at <= {dialect.now} + %s {in_order}", [database.alias, due_ms, within_ms]
    )
    if after == START:
        return later
    return Sql(
        f"SELECT * FROM ({rows} AND r.due_at = %s AND r.id > %s {in_order}) AS at_once"
        f" UNION ALL SELECT * FROM ({later.text}) AS later ORDER BY 1, 2 LIMIT {BATCH}",
        [database.alias, due_ms, pk, *later.parameters],
    )
