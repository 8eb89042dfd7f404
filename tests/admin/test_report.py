"""The last report is shown without Spark: what ended in each hour, newest first."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from django_delayq.models import ReportRow
from tests.admin.support import page, text_of, url

FIGURES = {
    **{"messages": 200, "finished": 197, "failed": 1, "cancelled": 2, "retried": 30, "fingerprint": ""},
    **{"lateness_p50": 20, "lateness_p95": 1500, "lateness_p99": 90_000},
}


@pytest.fixture(autouse=True)
def rows(stored_delayq: dict[str, Any], database: str) -> None:
    """Two hours of this alias, and one of another."""

    def add(at: int, alias: str = "default", **fields: Any) -> None:
        figures = {**FIGURES, "hour": datetime(2026, 11, 1, at, tzinfo=UTC), **fields}
        ReportRow(alias=alias, **figures).save(using=database)

    add(8, queue="default", key="order.close")
    add(9, queue="slow", key="sms.send", fingerprint="KeyError in shop", failed=50)
    add(9, queue="default", key="hidden", alias="other")


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
