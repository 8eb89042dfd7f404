"""What an action of the lists did is undone on a page that asks first, for the messages that have not run since."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import cancel_delay_messages, undo_delay_action
from django_delayq.admin.bulk import actions, jobs
from django_delayq.brokers.base import Action, SettleAction
from django_delayq.models import ActionRow, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import (
    claim,
    confirm,
    due_times,
    finish,
    ids_in,
    page,
    pk_of,
    send,
    settle,
    take_a_step,
    text_of,
)
from tests.admin.tenants import FOREIGN, OWN
from tests.races import while_another_did

_LINK = re.compile(r'<a href="(/admin/delayq/\w+/undo/\d+/)">Undo</a>')


def undo_address(done: Any) -> str:
    """The address to which the message of an action leads."""
    (found,) = _LINK.findall(page(done))
    return str(found)


def cancelled(client: Client, database: str, *ids: str) -> str:
    """Cancel messages in the list: the address of the undo."""
    return undo_address(confirm(client, ReadyMessage, "cancel", [pk_of(database, id) for id in ids]))


def test_a_cancel_is_undone_once_and_logged_and_looking_changes_nothing(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    send("a", delay="1h")
    send("b", delay="1h")
    address = cancelled(superuser, database, "a", "b")
    asked = text_of(superuser.get(address))
    assert "Undo: Cancel" in asked
    assert "By root" in asked
    assert "2 messages. Each waits again, until its due time; if that is past, it is due now." in asked
    assert ids_in(database, ReadyMessage) == set()
    assert "Undone: 2 messages." in text_of(superuser.post(address, follow=True))
    assert ids_in(database, ReadyMessage) == {"a", "b"}
    last = LogEntry.objects.order_by("-pk")[:2]
    assert {entry.object_repr for entry in last} == {"order.close a", "order.close b"}
    assert all(entry.get_change_message().startswith("Cancel undone: due_at ") for entry in last)
    cancel_delay_messages("a")
    assert "This was undone already, by root." in text_of(superuser.post(address, follow=True))
    assert ids_in(database, ReadyMessage) == {"b"}


def test_an_undo_needs_a_token(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    send("a", delay="1h")
    address = cancelled(superuser, database, "a")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert strict.post(address).status_code == 403
    assert ids_in(database, ReadyMessage) == set()


def test_what_was_made_due_and_has_started_meanwhile_is_left(
    broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    for id in "ab":
        send(id, delay="1h")
    before = due_times(database)
    done = confirm(superuser, ReadyMessage, "run_now", [pk_of(database, id) for id in "ab"])
    started = claim(broker)
    assert "Each gets back its due time from before the action;" in text_of(superuser.get(undo_address(done)))
    said = text_of(superuser.post(undo_address(done), follow=True))
    assert "Undone: 1 message." in said
    assert "1 message was left: it has started, or was changed meanwhile." in said
    (waits,) = {"a", "b"} - {started.id}
    assert due_times(database)[waits] == before[waits]
    settle(broker, started, SettleAction.FINISH)


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.parametrize("in_background", [False, True])
def test_what_another_undo_puts_back_meanwhile_was_not_left(
    broker: DatabaseBackend,
    superuser: Client,
    database: str,
    registry: None,
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_background: bool,
) -> None:
    jobs.register("default")
    send("a", delay="1h")
    address = cancelled(superuser, database, "a")
    name = ActionRow.objects.using(database).get().name
    if in_background:
        monkeypatch.setattr(actions, "AT_ONCE", 0)
        begun = superuser.post(address, follow=True).redirect_chain[0][0]
    else:
        assert broker.store is not None
        broker.store.begin_undo(Action(name))  # so that none waits for the other before it has read the page

    def undo_too() -> str:
        if not in_background:
            return text_of(superuser.post(address, follow=True))
        take_a_step(broker, database)
        return text_of(superuser.get(begun))

    told = while_another_did(database, lambda: undo_delay_action(name), undo_too)
    if in_background:
        assert "Put back 0 Left: they have started, were changed meanwhile, or may not be seen by who asked 0" in told
    else:
        assert "Undone: 0 messages." in told
        assert "left" not in told
    assert ids_in(database, ReadyMessage) & {"a"} == {"a"}


def test_what_was_sent_again_is_cancelled(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    finish(broker, "a")
    done = confirm(superuser, FinishMessage, "send_again", [pk_of(database, "a", FinishMessage)])
    assert "1 message. Each is cancelled." in text_of(superuser.get(undo_address(done)))
    assert "Undone: 1 message." in text_of(superuser.post(undo_address(done), follow=True))
    assert ids_in(database, ReadyMessage) == set()


def test_an_undo_needs_the_permission_of_the_action(
    broker: DatabaseBackend, superuser: Client, staff: Callable[..., Client], database: str
) -> None:
    send("a", delay="1h")
    address = cancelled(superuser, database, "a")
    for refused in (staff("view_readymessage", "reschedule_message"), staff("view_finishmessage", "cancel_message")):
        assert (refused.get(address).status_code, refused.post(address).status_code) == (403, 403)
    assert superuser.post(address.replace("readymessage", "finishmessage")).status_code == 403
    assert ids_in(database, ReadyMessage) == set()
    assert "Undone: 1" in text_of(staff("view_readymessage", "cancel_message").post(address, follow=True))


def test_the_name_of_who_acted_is_escaped(broker: DatabaseBackend, superuser: Client, database: str) -> None:
    User.objects.update(username="<b>x")
    send("a", delay="1h")
    shown = page(superuser.get(cancelled(superuser, database, "a")))
    assert "By &lt;b&gt;x" in shown
    assert "By <b>x" not in shown


@pytest.mark.parametrize("lost", [False, True])
def test_who_sees_a_part_undoes_only_what_was_their_own_and_what_they_see(
    tenants: DatabaseBackend, staff: Callable[..., Client], database: str, lost: bool
) -> None:
    clients = {}
    for name in (OWN, FOREIGN):
        clients[name] = staff("view_readymessage", "cancel_message")
        User.objects.filter(pk=User.objects.latest("pk").pk).update(username=name)
    address = cancelled(clients[OWN], database, f"{OWN}-waits")
    assert clients[FOREIGN].get(address).status_code == clients[FOREIGN].post(address).status_code == 404
    if lost:
        FinishMessage.objects.using(database).filter(message_id=f"{OWN}-waits").update(tag=FOREIGN)
    said = text_of(clients[OWN].post(address, follow=True))
    assert ("Undone: 1 message." in said) is not lost
    assert ("1 message was left: it has started, was changed meanwhile, or is not yours to see." in said) is lost
    assert (f"{OWN}-waits" in ids_in(database, ReadyMessage)) is not lost
