"""The dashboard in a browser, with the worker running: it shows what happens, and stops what should not."""

import re

import pytest
from playwright.sync_api import Page, expect

from django_delayq import send_delay_message
from tests.browser.conftest import PATIENCE_MS
from tests.browser.test_on_call import violations
from tests.worker.processes import Site

INDEX = "/admin/delayq/"


def test_figures_are_updated_in_place_and_keep_the_focus(page: Page, site: Site, faults: list[str]) -> None:
    page.goto(INDEX)
    pause = page.get_by_role("link", name="Pause a queue or a key…")
    pause.focus()
    page.get_by_text("As a table").click()
    pause.focus()
    site.send("a", key="nobody asks for it")
    expect(page.get_by_text("parked: no live worker asks for it")).to_be_visible(timeout=PATIENCE_MS)
    expect(pause).to_be_focused()
    expect(page.locator("#delayq-forecast-figures")).to_have_attribute("open", "")
    assert faults == []


def test_a_table_stays_where_it_was_scrolled_to_on_a_phone(page: Page, site: Site, faults: list[str]) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    site.send("a", key="nobody asks for this key, which has a long name")
    page.goto(INDEX)
    page.locator("#delayq-queues-table").evaluate("table => table.scrollTo(50, 0)")
    site.send("b", key="nobody asks for this one either")
    expect(page.get_by_text("nobody asks for this one either")).to_be_visible(timeout=PATIENCE_MS)
    assert page.locator("#delayq-queues-table").evaluate("table => table.scrollLeft") == 50
    assert faults == []


@pytest.mark.usefixtures("site")
def test_the_table_of_the_hours_ahead_scrolls_for_itself_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    send_delay_message("close", {"order": 2}, delay="2h")
    page.goto(INDEX)
    page.locator("#delayq-forecast-summary").click()
    expect(page.get_by_role("region", name="Due in the next hours")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert violations(page) == []


def test_a_queue_is_paused_seen_as_paused_and_resumed(page: Page, site: Site, faults: list[str]) -> None:
    site.worker()
    page.goto(INDEX)
    expect(page.locator("#delayq-workers tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    page.get_by_role("link", name="Pause a queue or a key…").click()
    page.get_by_label("Queue").fill("default")
    page.get_by_label("Reason").fill("the gateway is down")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("row", name=re.compile("queue 'default'.*the gateway is down"))).to_be_visible()
    page.get_by_role("link", name="Resume queue 'default'").click()
    expect(page.get_by_text("It was paused for: the gateway is down")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Resumed queue 'default'")).to_be_visible()
    assert faults == []


def test_who_wants_to_read_in_peace_stops_the_updates(page: Page, site: Site) -> None:
    page.clock.install()
    page.goto(INDEX)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_label("Keep these figures up to date").uncheck()
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_request("**/dashboard/"):
        page.get_by_label("Keep these figures up to date").check()


def test_axe_finds_nothing_on_the_dashboard(page: Page, site: Site) -> None:
    site.worker()
    site.send("done", key="close", data={"order": 1})
    assert site.line.next().id == "done"
    site.send("runs", key="hold")
    assert site.line.next().id == "runs"
    site.send("parked", key="nobody asks for it")
    send_delay_message("close", {"order": 2}, delay="2h")
    found = {}
    for width, height in ((390, 844), (1280, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(INDEX)
        expect(page.get_by_role("link", name="runs", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        found[f"dashboard, {width} wide"] = violations(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    with page.expect_navigation():
        page.get_by_role("link", name="Pause a queue or a key…").click()
    found["pause"] = violations(page)
    assert {address: rules for address, rules in found.items() if rules} == {}
