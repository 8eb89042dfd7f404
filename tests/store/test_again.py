"""Messages that have ended are sent again on purpose, from the rows that are kept of them."""

from datetime import timedelta

import pytest
from django.db import transaction
from pytest_django import Settings

from django_delayq import (
    Unsupported,
    cancel_delay_messages,
    get_delay_message,
    send_delay_message,
    send_delay_messages_again,
)
from django_delayq.api.send import send_own_message
from django_delayq.brokers.base import ClaimRequest, Header, NewMessage
from django_delayq.core import transitions
from django_delayq.core.message import State
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.commands.support import delayq
from tests.store.support import LEASE_MS, claim


def finish(broker: DatabaseBackend, *ids: str, **options: object) -> None:
    for id in ids:
        send_delay_message("k", {"id": id}, id=id, **options)  # type: ignore[arg-type]
    assert all(broker.queue.apply([transitions.finish(one) for one in claim(broker)]))


def test_a_finished_message_is_sent_again_as_it_was_and_its_row_stays(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a", tag=("one", "two"), max_attempts=2, timeout="5s", expires="1h")
    assert send_delay_messages_again("a", "unknown") == 1
    new = ReadyMessage.objects.using(database).get()
    old = FinishMessage.objects.using(database).get()
    assert new.pk != old.pk
    for name in ("message_id", "queue", "key", "data", "tag", "max_attempts", "timeout_ms", "at_most_once", "version"):
        assert getattr(new, name) == getattr(old, name), name
    assert new.expires_at - new.due_at == timedelta(hours=1)
    info = get_delay_message("a")
    assert info is not None
    assert (info.state, info.failures, info.tags) == (State.READY, 0, ("one", "two"))


def test_the_version_of_the_data_goes_with_it(broker: DatabaseBackend) -> None:
    broker.queue.enqueue([NewMessage("a", Header("default", "k", version=3), b"1")])
    assert all(broker.queue.apply([transitions.finish(one) for one in claim(broker)]))
    assert send_delay_messages_again("a") == 1
    info = broker.queue.get("a")
    assert info is not None
    assert info.header.version == 3


def test_a_cancelled_message_is_sent_again_too(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    cancel_delay_messages("a")
    assert send_delay_messages_again("a", delay="2h") == 1


def test_an_id_that_waits_is_left_alone(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a")
    assert (send_delay_messages_again("a", "a"), send_delay_messages_again("a")) == (1, 0)
    assert ReadyMessage.objects.using(database).count() == 1


def test_a_rate_spreads_their_due_times(broker: DatabaseBackend, database: str) -> None:
    finish(broker, *"abc")
    assert send_delay_messages_again(*"cab", delay="1h", rate="60/m") == 3
    rows = ReadyMessage.objects.using(database).order_by("due_at")
    assert [row.message_id for row in rows] == ["c", "a", "b"]
    first = rows[0].due_at
    assert [round((row.due_at - first).total_seconds()) for row in rows] == [0, 1, 2]
    with pytest.raises(ValueError, match="rate='fast' is no rate"):
        send_delay_messages_again("a", rate="fast")


def test_it_is_a_part_of_the_transaction(broker: DatabaseBackend, database: str) -> None:
    finish(broker, "a")
    with transaction.atomic(using=database):
        assert send_delay_messages_again("a") == 1
        transaction.set_rollback(True, using=database)
    assert ReadyMessage.objects.using(database).count() == 0


def test_a_message_of_delayq_itself_is_not_sent_again(broker: DatabaseBackend) -> None:
    send_own_message("delayq.move", {}, id="delayq.move:x")
    request = ClaimRequest("default", "delayq.move", 1)
    claims = broker.queue.claim([request], lease_ms=LEASE_MS, worker="w").messages
    assert all(broker.queue.apply([transitions.finish(one) for one in claims]))
    assert send_delay_messages_again("delayq.move:x") == 0


def test_without_a_store_nothing_can_be_sent_again(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(Unsupported, match="Sending again needs a store"):
        send_delay_messages_again("a")


def test_the_command_sends_again_what_was_named_or_found(broker: DatabaseBackend, database: str) -> None:
    finish(broker, *"abc", tag="t")
    assert delayq("send-again", "a") == "sent again 1 of 1\n"
    said = delayq("send-again", "--tag", "t", "--rate", "1/h", "--no-input")
    assert said == "sent again 2 of 3\nleft 1: their ids wait or run again, or their rows are gone\n"
    assert ReadyMessage.objects.using(database).count() == 3
