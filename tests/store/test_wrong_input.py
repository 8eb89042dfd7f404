"""Wrong arguments cost the caller an error and nothing else: what its transaction did before is committed."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_delayq import (
    Send,
    SendError,
    acancel_delay_messages,
    areschedule_delay_messages,
    asend_delay_message,
    asend_delay_messages,
    cancel_delay_messages,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.base import BATCH
from django_delayq.core.errors import DuplicateMessage
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend

MOVES = [
    cancel_delay_messages,
    async_to_sync(acancel_delay_messages),
    reschedule_delay_messages,
    async_to_sync(areschedule_delay_messages),
]


def refused_in_a_transaction(database: str, call: Callable[[], object], errors: Any) -> set[str]:
    """The ids that are there after a transaction that sends one, goes on after the error of `call`, and sends another.

    One that is lost refuses the second.
    """
    with transaction.atomic(using=database):
        send_delay_message("k", 1, id="before", delay="1h")
        with pytest.raises(errors):
            call()
        send_delay_message("k", 1, id="after", delay="1h")
    return set(ReadyMessage.objects.using(database).values_list("message_id", flat=True))


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    ("ids", "tag"), [(["a", 5], None), ([["a"]], None), ([""], None), (["a"], 5), (["a"], ""), (["a"], "t\n")]
)
def test_of_a_move(broker: DatabaseBackend, database: str, move: Callable[..., int], ids: list[Any], tag: Any) -> None:
    errors = (TypeError, ValueError)
    assert refused_in_a_transaction(database, lambda: move(*ids, tag=tag), errors) == {"before", "after"}


@pytest.mark.parametrize("move", MOVES[2:])
@pytest.mark.parametrize("when", [{"delay": -1}, {"delay": "soon"}, {"at": 5}, {"delay": 1, "at": 5}])
def test_of_a_move_to_a_time(broker: DatabaseBackend, database: str, move: Callable[..., int], when: Any) -> None:
    errors = (TypeError, ValueError)
    assert refused_in_a_transaction(database, lambda: move("before", **when), errors) == {"before", "after"}


@pytest.mark.parametrize("move", ["cancel", "reschedule", "rescue", "purge", "purge_failed"])
def test_of_more_than_one_call_takes(broker: DatabaseBackend, database: str, move: str) -> None:
    many = ["before"] * (BATCH + 1)
    assert refused_in_a_transaction(database, lambda: getattr(broker.queue, move)(many), ValueError) == {
        "before",
        "after",
    }


@pytest.mark.parametrize("send", [send_delay_message, async_to_sync(asend_delay_message)])
@pytest.mark.parametrize(
    "wrong",
    [{"id": 5}, {"delay": -1}, {"data": object()}, {"on_conflict": "any"}, {"on_commit": True}, {"max_attempts": 0}],
)
def test_of_a_send(broker: DatabaseBackend, database: str, send: Callable[..., Any], wrong: dict[str, Any]) -> None:
    errors = (TypeError, ValueError)
    assert refused_in_a_transaction(database, lambda: send("k", **wrong), errors) == {"before", "after"}


@pytest.mark.parametrize("send", [send_delay_messages, async_to_sync(asend_delay_messages)])
def test_of_a_send_of_many(broker: DatabaseBackend, database: str, send: Callable[..., Any]) -> None:
    wrong: Any = 5
    sends = [Send("k", id=id, delay="1h") for id in ("one", "two", wrong)]
    there = {"before", "one", "after"}  # the second was a batch of its own, not full yet
    assert refused_in_a_transaction(database, lambda: send(sends, batch_size=1), SendError) == there


def test_of_an_id_that_is_there(broker: DatabaseBackend, database: str) -> None:
    def send_again() -> None:
        send_delay_message("k", id="before", on_conflict="raise")

    assert refused_in_a_transaction(database, send_again, DuplicateMessage) == {"before", "after"}
