"""What a person on call does, in a browser, with the worker running."""

import re
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from django_delayq import Every, cancel_delay_messages, schedule_delay_message
from django_delayq.models import ActionRow, ErrorMessage, Schedule
from tests.worker.processes import Site

LIST = "/admin/delayq/errormessage/"


def test_a_failing_key_is_found_its_payload_mended_and_watched_until_it_finishes(
    page: Page, site: Site, faults: list[str]
) -> None:
    site.worker()
    site.send("order:42:close", key="close", data={"order": -42})
    site.send("order:7:close", key="close", data={"order": 7})
    assert site.line.next().id == "order:7:close"

    page.goto(LIST)
    while not page.get_by_role("link", name="order:42:close").count():
        page.reload()
    page.get_by_role("link", name="By kind of failure").click()
    page.get_by_role("link", name=re.compile("ValueError in tests.worker.site")).click()
    page.get_by_role("link", name="order:42:close").click()
    expect(page.get_by_role("region", name="Traceback")).to_contain_text("there is no order -42")

    page.get_by_role("link", name="Change the payload and rescue").click()
    page.get_by_label("Payload").fill('{"order": 42')
    page.get_by_role("button", name="Change and rescue").click()
    expect(page.get_by_text("Nothing was changed.")).to_be_visible()
    page.get_by_label("Payload").fill('{"order": 42}')
    page.get_by_role("button", name="Change and rescue").click()

    assert site.line.next().id == "order:42:close"
    while "/finishmessage/" not in page.url:
        page.reload()
    expect(page.get_by_text("Nothing: it is over.")).to_be_visible()
    expect(page.get_by_text('+  "order": 42')).to_be_visible()
    assert faults == []


def test_failed_messages_are_run_again_by_filter(page: Page, site: Site, database: str, faults: list[str]) -> None:
    fail(site, database, page, *(f"a{number}" for number in range(60)))
    page.goto(LIST)
    page.get_by_role("link", name="close", exact=True).click()
    page.locator("#action-toggle").check()
    page.get_by_role("button", name=re.compile("Select all 60")).click()
    page.get_by_label("Action:").select_option(label="Rescue")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("60 messages.")).to_be_visible()
    page.get_by_role("button", name="Rescue").click()
    expect(page.get_by_text("Rescued: 60 messages.")).to_be_visible()
    assert faults == []


def test_axe_finds_nothing(page: Page, site: Site, database: str) -> None:
    fail(site, database, page, "a", "b")
    site.send("waits", tag="order:42")
    found = {}
    schedule_delay_message("close", {"order": 1}, name="s", every=Every(minutes=15))
    schedule = f"schedule/{Schedule.objects.using(database).get().pk}"
    cancel_delay_messages("waits", action="ticket 7", by="anna")
    undo = f"readymessage/undo/{ActionRow.objects.using(database).get().pk}/"
    for address in (
        *(
            "actionrow/",
            undo,
            "anymessage/",
            "readymessage/?due_from=2026-01-01T00:00",
            "errormessage/",
            "errormessage/groups/",
        ),
        *("schedule/", "schedule/add/", f"{schedule}/change/", f"{schedule}/edit/", f"{schedule}/backfill/"),
    ):
        page.goto(f"/admin/delayq/{address}")
        found[address] = violations(page)
    page.goto(LIST)
    with page.expect_navigation():
        page.get_by_role("link", name="a", exact=True).click()
    found["message"] = violations(page)
    with page.expect_navigation():
        page.get_by_role("link", name="Change the payload and rescue").click()
    found["edit"] = violations(page)
    page.go_back()
    with page.expect_navigation():
        page.get_by_role("button", name="Rescue").click()
    found["confirm"] = violations(page)
    assert {address: rules for address, rules in found.items() if rules} == {}


def fail(site: Site, database: str, page: Page, *ids: str) -> None:
    """Messages that a worker has tried, and that failed for good."""
    worker = site.worker()
    site.send(*ids, key="close", data={"order": -1})
    while ErrorMessage.objects.using(database).count() < len(ids):
        page.wait_for_timeout(50)  # lets the browser's own events go on meanwhile
    assert worker.stop() == 0


COLORS_CHANGED = "Promise.all(document.getAnimations().map((each) => each.finished)).then(() => null)"
"""Script that ends when all colors are those of the scheme: Django's links change theirs little by little."""


def violations(page: Page) -> list[str]:
    """Return what axe has against a page, and against its colors in the dark.

    Not against the search box of a list, which is in a template of Django's own (5.2: admin/search_form.html): its
    label is an icon, which axe takes for none (`label-title-only`). A copy of that template would hide a theme's.
    """
    found = []
    schemes: dict[Literal["light", "dark"], Any] = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
    for scheme, options in schemes.items():
        page.emulate_media(color_scheme=scheme)
        page.evaluate(COLORS_CHANGED)
        rules = Axe().run(page, {"exclude": [["#searchbar"]]}, options).response["violations"]
        found += [f"{scheme}, {rule['id']}: {node['html']}" for rule in rules for node in rule["nodes"]]
    return found
