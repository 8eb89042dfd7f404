"""Jobs that failed or can not begin: who may run one again, that nobody makes another of it, what a pause holds up."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.admin.bulk import actions, changes, jobs
from django_delayq.admin.bulk.changes import KEY
from django_delayq.brokers.base import Pause, SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.testing import run_due
from tests.admin.support import ask, claim, confirm, ids_in, page, pk_of, send, settle, take_a_step, text_of, url


@pytest.fixture
def purge_all(
    broker: DatabaseBackend, registry: None, monkeypatch: pytest.MonkeyPatch, superuser: Client, database: str
) -> Callable[[], Any]:
    """Has what waits of a key purged in the background."""
    monkeypatch.setattr(actions, "AT_ONCE", 1)
    jobs.register("default")
    send("a", delay="2h")
    send("b", delay="2h")

    def answer() -> Any:
        one = [pk_of(database, "a")]
        return confirm(superuser, ReadyMessage, "purge", one, all_that_match=True, query="?key=order.close")

    return answer


@pytest.fixture
def failed(purge_all: Callable[[], Any], broker: DatabaseBackend) -> str:
    """The page of such a job that failed."""
    (address, _), *_ = purge_all().redirect_chain
    settle(broker, claim(broker, KEY), SettleAction.BURY, error="OperationalError: gone")
    return str(address)


def test_the_log_says_how_far_a_job_came_that_ended_half_way(
    purge_all: Callable[[], Any], broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PAGE", 1)
    purge_all()
    take_a_step(broker, database)
    settle(broker, claim(broker, KEY), SettleAction.BURY, error="killed its worker 3 times")
    assert ids_in(database, ReadyMessage) == {"b"}
    assert LogEntry.objects.get().change_message.startswith("Purge: begun, so far 1 moved\n")


def of_the_job(database: str) -> int:
    return ErrorMessage.objects.using(database).get(key=KEY).pk


def test_who_may_run_messages_again_runs_no_job_again(
    failed: str, staff: Callable[..., Client], superuser: Client, database: str
) -> None:
    may_rescue = staff("view_errormessage", "rescue_message")
    for client in (may_rescue, superuser):
        for options in ({}, {"all_that_match": True}):
            told = confirm(client, ErrorMessage, "rescue", [of_the_job(database)], **options)
            assert "1 message was left" in text_of(told)
    run_due()
    assert ids_in(database, ReadyMessage) == {"a", "b"}


def test_who_may_do_what_a_failed_job_does_has_it_go_on(
    failed: str, staff: Callable[..., Client], database: str
) -> None:
    others = staff("view_readymessage", "view_errormessage", "rescue_message", "cancel_message")
    assert 'name="continue"' not in page(others.get(failed))
    assert others.post(failed, {"continue": "1"}).status_code == 403
    may = staff("view_readymessage", "delete_readymessage")
    assert 'name="continue"' in page(may.get(failed))
    assert "It goes on." in text_of(may.post(failed, {"continue": "1"}, follow=True))
    may.post(failed, {"continue": "1"})  # a second time it is not told to stop
    run_due()
    assert "It is done." in text_of(may.get(failed))
    assert ids_in(database, ReadyMessage) == set()


def test_the_payload_of_a_job_is_not_changed(failed: str, superuser: Client, database: str) -> None:
    pk = of_the_job(database)
    address = url("errormessage", pk, "payload")
    assert address not in page(superuser.get(url("errormessage", pk, "change")))
    assert superuser.get(address).status_code == superuser.post(address, {"payload": "{}"}).status_code == 403


@pytest.mark.parametrize("pause", [Pause("default", None, "x"), Pause(None, KEY, "x"), Pause("default", KEY, "x")])
def test_who_begins_a_job_is_told_what_is_paused_of_it(
    purge_all: Callable[[], Any], broker: DatabaseBackend, superuser: Client, database: str, pause: Pause
) -> None:
    def asked() -> str:
        one = [pk_of(database, "a")]
        return text_of(ask(superuser, ReadyMessage, "purge", one, all_that_match=True, query="?key=order.close"))

    broker.presence.pause(Pause("mail", None, "x"))
    assert "It does not begin" not in asked()
    broker.presence.pause(pause)
    assert f"It does not begin while this is paused: {pause.names}. Once that is resumed" in asked()
