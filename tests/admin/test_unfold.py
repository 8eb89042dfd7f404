"""The pages in the look of django-unfold, in a process of its own: it puts its site in the place of Django's."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest


class Forms(HTMLParser):
    """Whether a page has a form within a form, which a browser would take for one."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = self.deepest = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depth += tag == "form"
        self.deepest = max(self.deepest, self.depth)

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "form"


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """Each page's HTML."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.admin.unfold_settings"}
    printed = subprocess.run(
        [sys.executable, "-m", "tests.admin.unfold_pages"], env=environment, capture_output=True, text=True, check=False
    )
    assert printed.returncode == 0, printed.stderr
    pages: dict[str, str] = json.loads(printed.stdout)
    return pages


def test_every_page_has_that_look_and_all_that_it_tells(shown: dict[str, str]) -> None:
    told = {
        "dashboard": ["Failed in the last hour", "order.close"],
        "pause": ["Reason"],
        "readymessage": ["order:1:close", "starts in"],
        "finishmessage": ["order:2:close"],
        "errormessage": ["ValueError: no order 3", "By kind of failure", 'x-model="action"'],  # shows Run
        "range": ['name="due_from" value="2026-01-01T00:00"'],
        "messages": ["order:1:close", "order:2:close", "order:3:close"],
        "groups": ["ValueError in shop", "Rescue this 1"],
        "message": ["What happens next", "Rescue", "&quot;order&quot;: 3"],
        "edit": ["Change and rescue"],
        "confirm": ["1 message.", "Rescue"],
        "schedules": ["order:4", "every 15 minutes"],
        "schedule": ["The next occurrences", "Run now", "&quot;order&quot;: 4"],
        "schedule edit": ["Preview", 'value="every 15 minutes"'],
        "schedule backfill": ["Count"],
        "reschedule": ["New due time"],
    }
    assert shown.keys() == told.keys()
    titled = (
        "pause",
        "messages",
        "groups",
        "edit",
        "confirm",
        "reschedule",
        "schedule edit",
    )  # unfold's header names the list at most
    for name in titled:
        assert re.search(r'<h2 class="delayq-title">[^<]+</h2>', shown[name]), name
    for name, texts in told.items():
        assert "/static/unfold/css/styles.css" in shown[name], name
        assert "/static/delayq/unfold.css" in shown[name], name
        assert [text for text in texts if text not in shown[name]] == [], name


def test_no_form_is_within_another(shown: dict[str, str]) -> None:
    for name, html in shown.items():
        forms = Forms()
        forms.feed(html)
        assert forms.deepest == 1, name
        assert not re.search(r"{[{%]", html), name
