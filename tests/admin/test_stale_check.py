"""What another has changed since an operator was asked is left, and said."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import ask, bury, claim, confirm, due_times, ids_in, page, pk_of, send, settle, text_of
from tests.races import while_another_did


def seen_in(response: Any) -> dict[str, Any]:
    """Return what the question sends along of how the messages are."""
    return {"seen": re.findall(r'name="seen" value="([^"]+)"', page(response))}


def reschedule(superuser: Client, pks: list[int], **fields: Any) -> str:
    """Move messages by an hour, and give what is told."""
    return text_of(confirm(superuser, ReadyMessage, "reschedule", pks, how="shift", length="1h", **fields))


def test_what_another_has_rescheduled_since_the_question_is_left_and_said(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    for id in ("a", "b", "gone"):
        send(id, delay="2h")
    before = due_times(database)
    pks = [pk_of(database, id) for id in before]
    asked = seen_in(ask(superuser, ReadyMessage, "reschedule", pks))
    reschedule(superuser, [pk_of(database, "a")])
    broker.queue.cancel(["gone"])
    again = confirm(superuser, ReadyMessage, "reschedule", pks, how="shift", length="soon", **asked)
    assert seen_in(again) == asked, "asked once more, it is still about what was seen first"
    told = reschedule(superuser, pks, **asked)
    assert "1 message was left: it has changed since you were asked. Look at it again. (a)" in told
    assert "1 message was left: it runs, has moved on" in told
    assert due_times(database) == {id: before[id] + timedelta(hours=1) for id in ("a", "b")}
    now = (before["a"] + timedelta(hours=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert f'datetime="{now}"' in page(ask(superuser, ReadyMessage, "reschedule", [pk_of(database, "a")]))


def test_an_answer_for_all_that_match_that_is_sent_twice_moves_each_once(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    for id in ("a", "b"):
        send(id, delay="2h")
    before = due_times(database)
    pks = [pk_of(database, "a")]
    asked = seen_in(ask(superuser, ReadyMessage, "reschedule", pks, all_that_match=True))
    send("matches since", delay="2h")
    assert "Rescheduled: 3 messages." in reschedule(superuser, pks, all_that_match=True, **asked)
    assert "2 messages were left: they have changed since" in reschedule(superuser, pks, all_that_match=True, **asked)
    moved = due_times(database)
    assert {id: moved[id] - due for id, due in before.items()} == dict.fromkeys(before, timedelta(hours=1))


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.parametrize("all_that_match", [False, True])
def test_an_answer_that_is_sent_twice_at_once_moves_each_once(
    broker: DatabaseBackend, superuser: Client, database: str, *, all_that_match: bool
) -> None:
    send("a", delay="2h")
    before = due_times(database)["a"]
    pks = [pk_of(database, "a")]
    asked = seen_in(ask(superuser, ReadyMessage, "reschedule", pks, all_that_match=all_that_match))
    other = Client()  # with a session of its own: the one is not to wait for the session of the other
    other.force_login(User.objects.get())

    def answer(client: Client) -> str:
        return reschedule(client, pks, all_that_match=all_that_match, **asked)

    told = while_another_did(database, lambda: answer(superuser), lambda: answer(other))
    assert "1 message was left: it has changed since" in told
    assert due_times(database)["a"] - before == timedelta(hours=1)


def test_what_failed_again_since_the_question_is_left(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    bury(broker, "a")
    pks = [pk_of(database, "a", ErrorMessage)]
    asked = seen_in(ask(superuser, ErrorMessage, "rescue", pks))
    broker.queue.rescue(["a"])
    settle(broker, claim(broker), SettleAction.BURY, error="KeyError: other")
    assert "it has changed since" in text_of(confirm(superuser, ErrorMessage, "rescue", pks, **asked))
    assert ids_in(database, ErrorMessage) == {"a"}
    asked = seen_in(ask(superuser, ErrorMessage, "rescue", pks))
    assert "Rescued: 1 message." in text_of(confirm(superuser, ErrorMessage, "rescue", pks, **asked))
