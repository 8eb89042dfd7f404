"""What a job in the background did is undone once it has ended: by another job, if it is much."""

import logging
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq import Undone, undo_delay_action
from django_delayq.admin.bulk import actions, changes, jobs
from django_delayq.admin.bulk.changes import KEY
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ActionRow, ReadyMessage
from django_delayq.store import DatabaseBackend, undo
from django_delayq.testing import run_due
from tests.admin.support import claim, confirm, due_times, ids_in, page, send, settle, take_a_step, text_of, url

ALL = {"a", "b", "c"}


@pytest.fixture
def database(sqlite_database: str) -> str:
    """What a job undoes doesn't depend on the database."""
    return sqlite_database


@pytest.fixture
def cancelling(broker: DatabaseBackend, registry: None, superuser: Client, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of a job that cancels three messages, in pages of two. What is over one message is much."""
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    monkeypatch.setattr(changes, "PAGE", 2)
    monkeypatch.setattr(undo, "PAGE", 2)
    jobs.register("default")
    for id in sorted(ALL):
        send(id, delay="2h")
    done = confirm(superuser, ReadyMessage, "cancel", [0], all_that_match=True, query="?key=order.close")
    return str(done.redirect_chain[0][0])


def undo_address(database: str) -> str:
    return url("readymessage", "undo", ActionRow.objects.using(database).get().pk)


def test_much_is_undone_by_a_job_and_logged(cancelling: str, superuser: Client, database: str) -> None:
    before = {id: due for id, due in due_times(database).items() if id in ALL}
    run_due()
    assert ids_in(database, ReadyMessage) == set()
    assert f'<a href="{undo_address(database)}">Undo</a>' in page(superuser.get(cancelling))
    asked = superuser.get(undo_address(database))
    assert "Undo: Cancel By root" in text_of(asked)
    assert "3 messages." in text_of(asked)
    assert "A worker does this in the background" in text_of(asked)
    (name,) = re.findall(r'name="job" value="(\w{32})"', page(asked))

    def answer() -> Any:
        return superuser.post(undo_address(database), {"job": name}, follow=True)

    begun = answer()
    assert "<h2>Undo: Cancel</h2>" in page(begun)
    assert "It goes on." in text_of(begun)
    assert text_of(answer()) == text_of(begun)
    run_due()
    over = superuser.get(begun.redirect_chain[0][0])
    assert "It is done." in text_of(over)
    assert "Put back 3" in text_of(over)
    assert "Undo</a>" not in page(over)
    assert due_times(database) == before
    said = [entry.get_change_message().partition("\n")[0] for entry in LogEntry.objects.order_by("-pk")[:2]]
    assert said == ["Undo: Cancel: 3 messages", "Undo: Cancel: begun, so far 3 moved"]
    assert "This was undone already, by root." in text_of(answer())


def test_a_job_that_makes_messages_due_now_is_told_so_and_undone(
    broker: DatabaseBackend,
    registry: None,
    superuser: Client,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_delayq.audit")
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    jobs.register("default")
    for id in sorted(ALL):
        send(id, delay="2h")
    before = {id: due for id, due in due_times(database).items() if id in ALL}
    confirm(superuser, ReadyMessage, "run_now", [0], all_that_match=True, query="?key=order.close")
    for _to_move_to_end_and_to_tell in range(3):
        take_a_step(broker, database)
    begun = superuser.post(undo_address(database), {"job": "a" * 32}, follow=True)
    assert "<h2>Undo: Run now</h2>" in page(begun)
    take_a_step(broker, database)
    assert {id: due for id, due in due_times(database).items() if id in ALL} == before
    acts = {each.getMessage().partition(" who=")[0] for each in caplog.records if "audit" in each.name}
    assert acts == {"run_now", "undo run_now"}


def test_it_is_not_undone_while_it_goes_on(
    cancelling: str, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    take_a_step(broker, database)
    assert "Undo</a>" not in page(superuser.get(cancelling))
    refused = superuser.post(undo_address(database), follow=True)
    assert refused.redirect_chain[0][0] == cancelling
    assert "The action still goes on: stop it, or wait for its end" in text_of(refused)
    assert len(ids_in(database, ReadyMessage) & ALL) == 1


@pytest.mark.parametrize("failed", [False, True])
def test_one_that_was_undone_meanwhile_ends_and_says_so(
    cancelling: str, broker: DatabaseBackend, superuser: Client, database: str, *, failed: bool
) -> None:
    take_a_step(broker, database)
    if failed:
        settle(broker, claim(broker, KEY), SettleAction.BURY, error="OperationalError: gone")
        superuser.post(undo_address(database))
        run_due()
        superuser.post(cancelling, {"continue": "1"})
    else:
        assert undo_delay_action(ActionRow.objects.using(database).get().name, by="anna") == Undone(2, 0)
    run_due()
    assert ids_in(database, ReadyMessage) == ALL
    over = text_of(superuser.get(cancelling))
    who = "root" if failed else "anna"
    assert f"It was stopped, and what it has not done is left as it was. It was undone, by {who}." in over
    assert "Moved 2" in over
    said = [entry.get_change_message().partition("\n")[0] for entry in LogEntry.objects.all()]
    assert said.count("Cancel: 2 messages, stopped") == 1
