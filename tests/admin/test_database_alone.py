"""The admin where the tables are all that there is: its actions, its pauses and what it shows of the workers."""

from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, claim, confirm, finish, ids_in, pk_of, send, text_of, url
from tests.database.conftest import ALONE
from tests.databases import SiteTables


@pytest.fixture
def stored_delayq(settings: Settings, database: str) -> dict[str, Any]:
    """DELAYQ["default"] without a server."""
    alias = {"BROKER": ALONE, "DATABASE": database, "STORE": {}, "OPTIONS": {"unknown_keys": "allow"}}
    settings.DELAYQ = {"default": alias}
    settings.DATABASE_ROUTERS = [SiteTables(database)]
    return alias


def test_what_runs_now_or_again_is_there_for_the_next_claim(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("later", delay="1d")
    bury(broker, "failed", key="order.remind")
    confirm(superuser, ReadyMessage, "run_now", [pk_of(database, "later")])
    confirm(superuser, ErrorMessage, "rescue", [pk_of(database, "failed", ErrorMessage)])
    assert claim(broker).id == "later"
    assert claim(broker, "order.remind").id == "failed"


def test_what_is_cancelled_is_gone(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1d")
    confirm(superuser, ReadyMessage, "cancel", [pk_of(database, "a")])
    assert ids_in(database, ReadyMessage) == set()
    assert broker.queue.audit().differences == []


def test_the_dashboard_shows_the_workers_and_pauses_and_resumes(broker: DatabaseBackend, superuser: Client) -> None:
    broker.presence.heartbeat(WorkerInfo("host:1", ["default"], ["order.close"], 0, 0))
    shown = text_of(superuser.get(url("readymessage", "dashboard")))
    assert "host:1" in shown
    paused = superuser.post(url("readymessage", "dashboard", "pause"), {"queue": "mail", "reason": "x"}, follow=True)
    assert "Paused queue 'mail'" in text_of(paused)
    assert [(one.queue, one.reason) for one in broker.presence.pauses()] == [("mail", "x")]
    resume = url("readymessage", "dashboard", "resume", query="?queue=mail")
    assert "Resumed queue 'mail'" in text_of(superuser.post(resume, follow=True))
    assert broker.presence.pauses() == []


def test_a_message_tells_its_history_in_each_table(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    broker.presence.pause(Pause("default", None, "x"))
    bury(broker, "failed", error="ValueError: no card")
    finish(broker, "done")
    send("waits", delay="1h30m")
    for id, model, words in (
        ("failed", ErrorMessage, "ValueError: no card"),
        ("done", FinishMessage, "finished"),
        ("waits", ReadyMessage, "Due in 1h"),
    ):
        shown = superuser.get(url(model._meta.model_name or "", pk_of(database, id, model), "change"))
        assert words in text_of(shown)
