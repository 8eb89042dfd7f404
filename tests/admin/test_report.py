"""The last report is shown without Spark: what ended in each hour, newest first."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.admin.lists import reported
from django_delayq.models import ReportRow
from tests.admin.support import page, report, text_of, url

OWN, OTHERS = "/admin/delayq/", "/admin/auth/user/"
NINE = datetime(2026, 11, 1, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def rows(stored_delayq: dict[str, Any], database: str) -> None:
    """Two hours of this alias, and one of another."""

    report(database, hour=datetime(2026, 11, 1, 8, tzinfo=UTC))
    report(database, queue="slow", key="sms.send", fingerprint="KeyError in shop", failed=50, hour=NINE)
    report(database, key="hidden", alias="other", hour=NINE)


def test_each_hour_has_its_figures_newest_first(staff: Callable[..., Client]) -> None:
    shown = text_of(staff("view_reportrow", "view_error").get(url("reportrow")))
    assert "slow sms.send 200 50 (25.0 %) 2 30 (15.0 %) 20ms / 1.5s / 1m30s - KeyError in shop" in shown
    assert "default order.close 200 1 (0.5 %) 2 30 (15.0 %) 20ms / 1.5s / 1m30s - -" in shown
    assert shown.index("slow sms.send 200") < shown.index("default order.close 200")
    assert "hidden" not in shown


@pytest.mark.parametrize("query", ["key=order.close", "queue=default"])
def test_it_is_narrowed_to_a_key_or_a_queue(staff: Callable[..., Client], query: str) -> None:
    html = page(staff("view_reportrow").get(url("reportrow", query=f"?{query}")))
    assert html.count('class="field-messages"') == 1
    assert "queue=slow" in html  # the other is offered


def test_it_needs_its_permission_and_has_no_page_that_changes_it(staff: Callable[..., Client]) -> None:
    assert staff("view_readymessage").get(url("reportrow")).status_code == 403
    client = staff("view_reportrow", "add_reportrow", "change_reportrow", "delete_reportrow")
    for parts in (("add",), ("1", "change"), ("1", "delete")):
        assert client.get(url("reportrow", *parts)).status_code == 404


def listed(client: Client, address: str) -> bool:
    """Return whether a page of the admin links to the report."""
    return f'href="{url("reportrow")}"' in page(client.get(address))


@pytest.fixture
def no_rows(rows: None, database: str) -> None:
    """No report is stored."""
    ReportRow.objects.using(database).all().delete()


def test_the_report_is_listed_where_there_is_one(superuser: Client) -> None:
    assert listed(superuser, OWN)
    assert listed(superuser, OTHERS)


@pytest.mark.usefixtures("no_rows")
def test_without_a_report_it_is_not_listed_but_its_page_opens(superuser: Client) -> None:
    assert not listed(superuser, OWN)
    assert not listed(superuser, url("reportrow"))


@pytest.mark.usefixtures("no_rows")
def test_the_first_report_is_listed_once_the_tables_are_asked_again(
    superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not listed(superuser, OWN)
    report(database)
    assert not listed(superuser, OWN)
    monkeypatch.setattr(reported, "_ask_at", 0.0)
    assert listed(superuser, OWN)


@pytest.mark.parametrize("there_is_one", [True, False])
def test_only_own_pages_ask_for_a_report_and_once(
    superuser: Client, database: str, request: pytest.FixtureRequest, there_is_one: bool
) -> None:
    if not there_is_one:
        request.getfixturevalue("no_rows")

    def asked_by(address: str) -> int:
        with CaptureQueriesContext(connections[database]) as queries:
            superuser.get(address)
        return sum("delayq_report" in query["sql"] for query in queries)

    assert [asked_by(address) for address in (OTHERS, OWN, OWN, OTHERS)] == [0, 1, 0, 0]


def test_pages_open_where_the_table_is_missing(superuser: Client, database: str) -> None:
    with connections[database].schema_editor() as editor:
        editor.delete_model(ReportRow)
    try:
        assert not listed(superuser, OWN)
    finally:
        with connections[database].schema_editor() as editor:
            editor.create_model(ReportRow)
