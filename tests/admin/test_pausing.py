"""Pausing and resuming from the dashboard: by POST, with the permission, and it is kept who did it and why."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.brokers.base import Pause
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.store import DatabaseBackend
from tests.admin.support import page, text_of, url

PAUSE = url("readymessage", "dashboard", "pause")
RESUME = url("readymessage", "dashboard", "resume", query="?queue=mail")
HOUR_MS = 3_600_000


def paused(broker: DatabaseBackend) -> list[tuple[str | None, str | None, str]]:
    return [(each.queue, each.key, each.reason) for each in broker.presence.pauses()]


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """A client of somebody who may look, pause and resume."""
    return staff("view_readymessage", "pause_queue")


def test_a_queue_is_paused_and_resumed(broker: DatabaseBackend, operator: Client) -> None:
    response = operator.post(PAUSE, {"queue": "mail", "reason": "the gateway is down"}, follow=True)
    assert "Paused queue 'mail'" in text_of(response)
    assert "the gateway is down" in text_of(response)
    assert paused(broker) == [("mail", None, "the gateway is down")]
    assert "the gateway is down" in text_of(operator.get(RESUME))
    assert "Resumed queue 'mail'" in text_of(operator.post(RESUME, follow=True))
    assert paused(broker) == []
    assert [(entry.object_repr, entry.change_message) for entry in LogEntry.objects.order_by("pk")] == [
        ("queue 'mail'", "Paused: the gateway is down"),
        ("queue 'mail'", "Resumed; it was paused for: the gateway is down"),
    ]


def test_a_pause_ends_after_the_length_that_was_asked_for(broker: DatabaseBackend, operator: Client) -> None:
    operator.post(PAUSE, {"queue": "mail", "key": "k", "reason": "x", "length": "2h"})
    (pause,) = broker.presence.pauses()
    assert (pause.queue, pause.key) == ("mail", "k")
    assert pause.until_ms is not None
    assert abs(pause.until_ms - broker.database.now_ms() - 2 * HOUR_MS) < 60_000


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"reason": "x"}, "name nothing to pause"),
        ({"queue": "mail"}, "This field is required"),
        ({"queue": "a:b", "reason": "x"}, "contains a colon"),
        ({"queue": "mail", "reason": "x", "length": "soon"}, "is no length of time"),
        ({"queue": "mail", "reason": "x", "length": "0s"}, "is too short; give 1ms or more"),
    ],
)
def test_what_can_not_be_paused_is_said(
    broker: DatabaseBackend, operator: Client, asked: dict[str, Any], said: str
) -> None:
    assert said in text_of(operator.post(PAUSE, asked))
    assert paused(broker) == []


def test_the_form_begins_with_what_was_pointed_at(broker: DatabaseBackend, operator: Client) -> None:
    shown = page(operator.get(PAUSE, {"queue": "<mail>", "key": "k"}))
    assert 'name="queue" value="&lt;mail&gt;"' in shown
    assert re.search(r'name="key" value="k"', shown)


def test_looking_at_the_pages_changes_nothing(broker: DatabaseBackend, operator: Client) -> None:
    broker.presence.pause(Pause("mail", None, "x"))
    before = paused(broker)
    operator.get(PAUSE, {"queue": "text", "reason": "x"})
    operator.get(RESUME)
    assert paused(broker) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("address", [PAUSE, RESUME])
def test_it_takes_the_permission(broker: DatabaseBackend, staff: Callable[..., Client], address: str) -> None:
    broker.presence.pause(Pause("mail", None, "x"))
    before = paused(broker)
    client = staff("view_readymessage", "rescue_message")
    for response in (client.get(address), client.post(address, {"queue": "text", "reason": "x"})):
        assert response.status_code == 403
    response = Client().post(address, {"queue": "text", "reason": "x"})
    assert response["Location"].startswith("/admin/login/")
    assert paused(broker) == before


def test_a_post_needs_a_token(broker: DatabaseBackend, operator: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(PAUSE, {"queue": "mail", "reason": "x"}).status_code == 403
    assert paused(broker) == []


def test_what_was_resumed_meanwhile_is_said(broker: DatabaseBackend, operator: Client) -> None:
    assert "It is not paused any more." in text_of(operator.post(RESUME, follow=True))


def test_what_goes_wrong_is_said(broker: DatabaseBackend, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: object) -> None:
        raise BrokerUnavailable("nobody there")

    for verb in ("pause", "pauses"):
        monkeypatch.setattr(broker.presence, verb, away)
    assert "nobody there" in text_of(operator.post(PAUSE, {"queue": "mail", "reason": "x"}))
    assert operator.post(RESUME).status_code == 302
