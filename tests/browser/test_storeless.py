"""The dashboard of an alias without a store in a browser: it lists what the broker carries."""

from typing import Any

import pytest
from playwright.sync_api import Page

from django_delayq.brokers.base import SettleAction, WorkerInfo
from tests.admin.test_storeless import end, send
from tests.browser.test_on_call import violations
from tests.worker.processes import Site


@pytest.fixture
def stored_delayq(stored_delayq: dict[str, Any]) -> dict[str, Any]:
    """Without a store."""
    stored_delayq["STORE"] = None
    return stored_delayq


def test_axe_finds_nothing_without_a_store(page: Page, site: Site) -> None:
    end(site.broker, "buried", SettleAction.BURY, error="ValueError: no", detail="Traceback: here", failed=True)
    end(site.broker, "retried", SettleAction.RETRY, delay_ms=60_000, error="OSError: no")
    send(site.broker, "parked", key="other")
    site.broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto("/admin/delayq/")
        for kind in ("buried", "retried", "parked"):
            assert page.locator(f"#delayq-{kind}").is_visible()
        found[f"dashboard, {scheme}"] = violations(page)
        page.locator("#delayq-buried input[type=checkbox]").first.check()
        with page.expect_navigation():
            page.locator("#delayq-buried").get_by_role("button", name="Rescue").click()
        found[f"confirm, {scheme}"] = violations(page)
    assert {address: rules for address, rules in found.items() if rules} == {}
