"""Bound the cost of a page, however large the tables are: the rows that it counts, and its time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.paginator import Paginator
from django.db import OperationalError, connections, transaction
from django.utils.functional import cached_property

COUNTED = 10_000
"""The most rows that a list counts: then it shows that there are more."""

FOUND = 1_000
"""The most rows that a search counts."""

LIMIT_S = 2.0
"""The longest time in seconds that finding the rows of a page may take."""

_SQLITE_STEPS = 10_000


class TooSlow(Exception):
    """The rows of a page could not be found within the limit."""


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """Pages of the first `COUNTED` rows: a full count would read the whole table, a far page all rows before it.

    `is_many` says that more than `FOUND` rows are known to match. Then the pages show `FOUND` rows, and none are
    counted.
    """

    is_many = False

    @property
    def most(self) -> int:
        """Return how many rows the pages show at most."""
        return FOUND if self.is_many else COUNTED

    @cached_property
    def counted(self) -> int:
        """Return how many rows there are, at most `most` + 1."""
        rows: Any = self.object_list
        return self.most + 1 if self.is_many else int(rows.order_by()[: self.most + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self.counted, self.most)

    @property
    def is_capped(self) -> bool:
        """Return whether there are more rows than the pages show."""
        return self.counted > self.most


@contextmanager
def time_limit(using: str) -> Iterator[None]:
    """Raise `TooSlow` for queries in the block that take over `LIMIT_S`, on each database that a store can use."""
    limits = {"postgresql": _limit_postgresql, "sqlite": _limit_sqlite, "mysql": _limit_mysql}
    limit = limits.get(connections[using].vendor)
    if limit is None:
        yield
        return
    ends = time.monotonic() + LIMIT_S
    try:
        with limit(using, LIMIT_S):
            yield
    except OperationalError as error:
        if time.monotonic() < ends:
            raise
        raise TooSlow from error


@contextmanager
def _limit_postgresql(using: str, limit_s: float) -> Iterator[None]:
    # Within a transaction, so that the limit ends with it, even behind a pooler that lends connections by transaction.
    with transaction.atomic(using), connections[using].cursor() as cursor:
        outer = connections[using].savepoint_ids
        if outer:
            cursor.execute("SELECT current_setting('statement_timeout')")
            (before,) = cursor.fetchone()
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit_s * 1000:.0f}ms"])
        yield
        if outer:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [before])


@contextmanager
def _limit_mysql(using: str, limit_s: float) -> Iterator[None]:
    connection: Any = connections[using]
    variable, limit = ("max_statement_time", limit_s) if connection.mysql_is_mariadb else _of_mysql(limit_s)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@SESSION.{variable}")
        (before,) = cursor.fetchone()
        cursor.execute(f"SET SESSION {variable} = {limit}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {variable} = {before}")


def _of_mysql(limit_s: float) -> tuple[str, float]:
    return "max_execution_time", round(limit_s * 1000)


@contextmanager
def _limit_sqlite(using: str, limit_s: float) -> Iterator[None]:
    connection = connections[using]
    connection.ensure_connection()
    ends = time.monotonic() + limit_s
    connection.connection.set_progress_handler(lambda: time.monotonic() > ends, _SQLITE_STEPS)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, _SQLITE_STEPS)
