"""A send outside a transaction is one round trip to the database, whose clock is an expression in its statement."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_delayq import Send, send_delay_message, send_delay_messages
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.store.support import claim

MOST_STATEMENTS = {"postgresql": 1, "sqlite": 1, "mysql": 4}
"""BEGIN and COMMIT included."""

SENDS: dict[str, Callable[[], object]] = {
    "no id": lambda: send_delay_message("k", 1, delay="1h"),
    "a new id": lambda: send_delay_message("k", 1, id="a", delay="1h"),
    "a new id that may replace": lambda: send_delay_message("k", 1, id="a", delay="1h", on_conflict="replace"),
    "several": lambda: send_delay_messages(Send("k", n, delay="1h") for n in range(50)),
}


@pytest.mark.parametrize("name", SENDS)
def test_a_send_is_one_statement(broker: DatabaseBackend, database: str, name: str) -> None:
    send = SENDS[name]
    with CaptureQueriesContext(connections[database]) as captured:
        send()
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor], list(captured)
    # Nobody else can have an id that is made up: a plain INSERT costs less.
    is_plain = "ON CONFLICT" not in captured[0]["sql"]
    assert is_plain == (name in ("no id", "several")) or connections[database].vendor == "mysql"
    rows = list(ReadyMessage.objects.using(database))
    assert {round((row.due_at - row.sent_at).total_seconds()) for row in rows} == {3_600}


def test_a_send_names_no_column_that_it_leaves_empty(broker: DatabaseBackend, database: str) -> None:
    with CaptureQueriesContext(connections[database]) as captured:
        send_delay_message("k", 1, delay="1h")
    (insert,) = [each["sql"] for each in captured if "INSERT" in each["sql"]]
    assert [
        column
        for column in ("tag", "trace_id", "expires_at", "max_attempts", "timeout_ms", "version")
        if column in insert
    ] == []


def test_each_message_of_a_bulk_send_fills_its_own_columns(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(
        [Send("k", 1, id="a", expires="1h"), Send("k", 2, id="b", tag="t", max_attempts=2), Send("k", 3)]
    )
    rows = ReadyMessage.objects.using(database).order_by("data")
    assert [(row.tag, row.max_attempts, row.expires_at is None) for row in rows] == [
        (None, None, False),
        ("t", 2, True),
        (None, None, True),
    ]
    assert rows[0].expires_at == rows[0].scheduled_at + timedelta(hours=1)


@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
def test_postgresql_keeps_the_plan_of_a_send_if_the_site_has_it_prepare_statements(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[database]
    options = {"server_side_binding": True, "prepare_threshold": 1}
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "OPTIONS", options)
        connection.close()
        for _ in range(8):  # from the sixth on, it may use a plan for any values
            send_delay_message("k", 1)
        kept = broker.database.rows(
            "SELECT generic_plans + custom_plans FROM pg_prepared_statements"
            " WHERE statement LIKE 'INSERT INTO delayq_ready%%'"
        )
        assert [uses for (uses,) in kept] == [7]
        assert len(claim(broker)) == 8
    connection.close()
