"""Run many SELECTs in one statement."""

from collections.abc import Sequence
from typing import Any

from django_delayq.brokers.base import pages
from django_delayq.store.database import Database, Row

Look = tuple[str, Sequence[tuple[Any, ...]]]
"""A SELECT, and the parameters of each of its runs. In its text `{i}` is the number of the run."""


def for_each(database: Database, *looks: Look) -> list[Row]:
    """Return the rows of all looks, by one statement, or by as few as the database allows."""
    parts = [(one.replace("{i}", str(i)), each) for one, parameters in looks for i, each in enumerate(parameters)]
    return [row for page in pages(parts, database.dialect.most_selects) for row in _union(database, page)]


def _union(database: Database, parts: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Row]:
    return database.rows(" UNION ALL ".join(sql for sql, _ in parts), [value for _, each in parts for value in each])
