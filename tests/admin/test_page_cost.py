"""A page gives up on a database that takes too long, and leaves its session as it was."""

import pytest
from django.db import connections

from django_delayq.admin.lists import bounded
from django_delayq.admin.lists.bounded import TooSlow, time_limit


def test_a_query_on_mariadb_ends_with_the_limit_which_leaves_no_trace(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "LIMIT_S", 0.05)
    with connections[mariadb_database].cursor() as cursor:
        with pytest.raises(TooSlow), time_limit(mariadb_database):
            cursor.execute("SELECT SLEEP(30)")
        cursor.execute("SELECT SLEEP(0.1), @@SESSION.max_statement_time")
        assert [int(value) for value in cursor.fetchone()] == [0, 0]
