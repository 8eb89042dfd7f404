"""Many failed messages are rescued in the background, also when the worker that does it is killed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from playwright.sync_api import Page, Route, expect

from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.actions import AT_ONCE
from django_delayq.models import ErrorMessage, ReadyMessage
from tests.browser.test_on_call import violations
from tests.scale import scaled
from tests.worker.processes import Site

FAILED = max(scaled(1_200), AT_ONCE + 1)


@pytest.fixture
def stored_delayq(stored_delayq: dict[str, Any], registry: None) -> dict[str, Any]:
    """With the handler of jobs, and leases of a second, so that another worker goes on soon."""
    stored_delayq["OPTIONS"] |= {"lease": "1s"}
    jobs.register("default")
    return stored_delayq


def test_another_worker_goes_on_with_a_job_and_counts_each_message_once(
    page: Page, site: Site, database: str, faults: list[str]
) -> None:
    failed = ErrorMessage.objects.using(database)
    fail(database)
    start(page)
    expect(page.get_by_role("progressbar")).to_be_visible()
    with endless(database, FAILED):
        worker = site.worker()
        while failed.count() == FAILED:
            page.wait_for_timeout(20)
        worker.kill()
    assert 0 < failed.count() < FAILED
    # The page loads itself again every two seconds, so it is not told to.
    expect(page.get_by_text(re.compile("If its worker dies|runs it|parked"))).to_be_visible(timeout=30_000)
    site.worker()
    expect(page.get_by_text("It is done.")).to_be_visible(timeout=60_000 + 30 * FAILED)
    expect(page.get_by_role("row", name=f"Moved {FAILED}")).to_be_visible()
    assert not failed.exists()
    assert ReadyMessage.objects.using(database).filter(key="order.close").count() == FAILED
    assert faults == []


def test_axe_finds_nothing_on_the_progress_of_a_job(page: Page, database: str) -> None:
    fail(database)
    start(page)
    page.route(page.url, without_refresh)
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(page.url)  # on a page that is open, colors fade to those of the other scheme
        expect(page.get_by_role("progressbar")).to_be_visible()
        found[scheme] = violations(page)
    assert {scheme: rules for scheme, rules in found.items() if rules} == {}


def start(page: Page) -> None:
    """Have all that failed rescued in the background."""
    page.goto("/admin/delayq/errormessage/?key=order.close")
    page.locator("#action-toggle").check()
    page.get_by_role("button", name=re.compile(f"Select all {FAILED}")).click()
    page.get_by_label("Action:").select_option(label="Rescue")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("A worker does this in the background")).to_be_visible()
    page.get_by_role("button", name="Rescue").click()
    expect(page.get_by_text("It goes on.")).to_be_visible()


def without_refresh(route: Route) -> None:
    """Serve the page so that it does not load itself again while axe looks at it."""
    response = route.fetch()
    headers = {name: value for name, value in response.headers.items() if name != "refresh"}
    route.fulfill(response=response, headers=headers)


@contextmanager
def endless(database: str, pk: int) -> Iterator[None]:
    """Who deletes this failed message never comes to an end."""
    with connections[database].cursor() as cursor:
        cursor.execute(
            "CREATE VIEW numbers AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        )
        cursor.execute(
            f"CREATE TRIGGER endless BEFORE DELETE ON delayq_error WHEN old.id = {pk}"  # noqa: S608 - a number of ours
            " BEGIN SELECT count(*) FROM numbers; END"
        )
        yield
        cursor.execute("DROP TRIGGER endless")
        cursor.execute("DROP VIEW numbers")


def fail(database: str) -> None:
    """Rows as burying makes them, of a key that no worker asks for, and what sends next gets later primary keys."""
    now = datetime.now(UTC)
    row: dict[str, Any] = {
        "alias": "default",
        "queue": "default",
        "key": "order.close",
        "data": "null",
        "history": "[]",
    }
    row |= dict.fromkeys(("due_at", "scheduled_at", "sent_at"), now) | {"at_most_once": False, "crashes": 0}
    ended = row | {"failures": 1, "ended_at": now}
    ErrorMessage.objects.using(database).bulk_create(
        ErrorMessage(pk=number, message_id=f"order:{number}", **ended) for number in range(1, FAILED + 1)
    )
    ReadyMessage.objects.using(database).create(pk=FAILED + 1, failures=0, **row).delete()
