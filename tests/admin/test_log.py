"""What the log keeps of each move, in which language, and what is shown of it."""

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import translation
from pytest_django import Settings

from django_delayq.admin.bulk import actions, jobs
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import bury, claim, confirm, pk_of, send, text_of, url

PAUSE = url("readymessage", "dashboard", "pause")


def said() -> list[str]:
    """Return what the log says was done, oldest first."""
    return [entry.get_change_message().partition("\n")[0] for entry in LogEntry.objects.order_by("pk")]


def test_it_is_kept_in_english_and_shown_in_the_language_of_the_page(
    broker: DatabaseBackend, superuser: Client, database: str, settings: Settings
) -> None:
    settings.LANGUAGE_CODE = "zh-hans"
    bury(broker, "a")
    with translation.override("zh-hans"):
        confirm(superuser, ErrorMessage, "rescue", [pk_of(database, "a", ErrorMessage)])
        superuser.post(PAUSE, {"queue": "default", "key": "", "reason": "mail is down", "length": "1h"})
        shown = text_of(superuser.get(url("readymessage", pk_of(database, "a"), "change")))
    rescued, paused = said()
    assert re.fullmatch(r"Rescued: ValueError #\w{16}", rescued)
    assert paused.startswith("Paused: mail is down, until 20")
    assert "重新运行: ValueError #" in shown


@pytest.mark.parametrize(
    ("fields", "by"),
    [({"how": "shift", "length": "90m"}, "(+1h30m)"), ({"how": "reschedule", "length": "2h"}, "(= now + 2h)")],
)
def test_a_job_says_by_how_much_it_moved_how_many_and_what_it_left(
    broker: DatabaseBackend,
    registry: None,
    superuser: Client,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    by: str,
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 0)
    jobs.register("default")
    send("runs")
    claim(broker)
    send("a", delay="1h")
    pks = [pk_of(database, "a")]
    confirm(superuser, ReadyMessage, "reschedule", pks, all_that_match=True, query="?key=order.close", **fields)
    run_due()
    assert said() == [f"Reschedule {by}: begun, so far 1 moved, 1 left", f"Reschedule {by}: 1 message, left 1"]
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {"key=order.close"}
