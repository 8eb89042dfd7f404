"""New rows as VALUES, for databases that know nothing shorter."""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import NewMessage
from django_delayq.store.database import Database


def values_of(database: Database, puts: Sequence[NewMessage]) -> tuple[str, list[Any]]:
    """Return rows of the columns `NEW` in the order of ids, as SQL and its parameters."""
    rows, parameters = [], []
    for put in sorted(puts, key=lambda put: put.id):
        text, given = _row(database, put)
        rows.append(text)
        parameters += given
    return ", ".join(rows), parameters


def _row(database: Database, put: NewMessage) -> tuple[str, list[Any]]:
    """Return the row of one message, as SQL and its parameters."""
    header = put.header
    dialect = database.dialect
    due, due_parameter = dialect.due(put.delay_ms, put.at_ms)
    expires = "NULL" if header.expires_ms is None else f"{due} + %s"
    times = f"{due}, {due}, {dialect.now}, {expires}"
    text = f"(%s, %s, %s, %s, %s, %s, %s, {times}, %s, %s, %s, 0, 0, '', '', NULL, '[]', %s)"
    parameters: list[Any] = [database.alias, put.id, header.queue, header.key, put.body.decode()]
    parameters += [header.tag, header.trace_id, due_parameter, due_parameter]
    if header.expires_ms is not None:
        parameters += [due_parameter, header.expires_ms]
    parameters += [header.max_attempts, header.timeout_ms, header.at_most_once, False]
    return text, parameters
