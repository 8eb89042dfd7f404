"""A send inside a transaction: after the commit, in order, not at all after a rollback, and due as if sent at once."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from django_delayq import (
    Handler,
    Message,
    Sent,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_messages,
)
from django_delayq.api import on_commit
from django_delayq.brokers.memory import MemoryBroker
from tests.api.support import NOW, Noted, Watch, waiting, waiting_ids

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(on_commit, "time", watch)
    return watch


@pytest.fixture
def round_trips(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of each call of `put`."""
    calls: list[list[str]] = []
    put = broker.queue.enqueue

    def counted(puts: Any, on_conflict: Any) -> Any:
        calls.append([put.id for put in puts])
        return put(puts, on_conflict)

    monkeypatch.setattr(broker.queue, "enqueue", counted)
    return calls


def test_it_is_sent_after_the_commit_and_its_id_is_known_at_once(
    close_order: Handler[int, None], broker: MemoryBroker, sent_signals: Noted
) -> None:
    with transaction.atomic():
        sent = close_order.send(5)
        assert sent == Sent(sent.id, None, created=None)
        assert sent.due_at is None
        assert waiting(broker) == []
        assert sent_signals == []
    assert waiting_ids(broker) == [sent.id]
    assert [signal["id"] for signal in sent_signals] == [sent.id]


def test_an_async_send_waits_for_the_transaction_of_the_sync_code_around_it(
    close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    def place_order() -> Sent:
        with transaction.atomic():
            sent = async_to_sync(close_order.asend)(5)
            assert waiting(broker) == []
        return sent

    sent = asyncio.run(sync_to_async(place_order)())
    assert sent.created is None
    assert waiting_ids(broker) == [sent.id]


def test_a_rollback_takes_the_send_with_it(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    with transaction.atomic():
        close_order.send(5)
        transaction.set_rollback(True)
    assert waiting(broker) == []


def test_a_savepoint_takes_only_its_own_sends_with_it(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    with transaction.atomic():
        close_order.send(1, id="before")
        with transaction.atomic():
            close_order.send(2, id="inside")
            transaction.set_rollback(True)
        with transaction.atomic():
            close_order.send(3, id="kept")
        close_order.send(4, id="after")
    assert set(waiting_ids(broker)) == {"before", "kept", "after"}


def test_on_commit_false_sends_at_once(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    with transaction.atomic():
        assert close_order.send(5, id="a", on_commit=False).created
        transaction.set_rollback(True)
    assert waiting_ids(broker) == ["a"]


def test_a_delay_counts_from_the_call(close_order: Handler[int, None], watch: Watch) -> None:
    with transaction.atomic():
        close_order.send(1, id="half an hour", delay="30m")
        close_order.send(2, id="sooner than the commit", delay="5m")
        watch.move_ms(600_000.5)
        close_order.send(3, id="late in the transaction", delay="30m")
    due = [
        info.due_at.timestamp() * 1_000 - NOW
        for info in map(get_delay_message, ("half an hour", "sooner than the commit", "late in the transaction"))
        if info
    ]
    assert due == [1_200_000, 0, 1_800_000]


def test_the_sends_of_a_loop_are_one_round_trip_in_order(
    close_order: Handler[int, None], round_trips: list[list[str]]
) -> None:
    with transaction.atomic():
        for number in range(1_500):
            close_order.send(number, id=f"{number}")
    assert round_trips == [[f"{n}" for n in range(1_000)], [f"{n}" for n in range(1_000, 1_500)]]


def test_other_callbacks_keep_their_place_between_sends(
    close_order: Handler[int, None], round_trips: list[list[str]]
) -> None:
    with transaction.atomic():
        close_order.send(1, id="a")
        transaction.on_commit(lambda: round_trips.append(["theirs"]))
        close_order.send(2, id="b")
        close_order.send(3, id="b", on_conflict="replace")
    assert round_trips == [["a"], ["theirs"], ["b"], ["b"]]


def test_a_cancel_stops_what_waits_for_the_commit(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    close_order.send(1, id="sent")
    with transaction.atomic():
        close_order.send(2, id="sent")
        close_order.send(3, id="waiting")
        close_order.send(4, id="kept")
        assert cancel_delay_messages("sent", "waiting", "neither") == 2
        assert cancel_delay_messages("waiting") == 0
        assert waiting(broker) == []  # at once, not after the commit
    assert waiting_ids(broker) == ["kept"]


def test_a_reschedule_moves_what_waits_for_the_commit(close_order: Handler[int, None], watch: Watch) -> None:
    with transaction.atomic():
        close_order.send(1, id="a", delay="1h")
        watch.move_ms(600_000)
        assert reschedule_delay_messages("a", delay="30m") == 1
        watch.move_ms(60_000)
    info = get_delay_message("a")
    assert info is not None
    assert info.due_at.timestamp() * 1_000 == NOW + 29 * 60_000


def test_a_transaction_on_another_database_is_not_joined_but_warned_of(close_order: Handler[int, None]) -> None:
    with transaction.atomic(using="other"), pytest.warns(RuntimeWarning) as warned:
        assert close_order.send(5).created
    assert [str(warning.message) for warning in warned] == [
        "A send to 'default' takes no part in the transaction on database 'other': "
        'only one on \'default\' is joined (DELAYQ["default"]["DATABASE"]).'
    ]
    assert warned[0].filename == __file__


def test_a_bulk_send_warns_of_another_database_too(close_order: Handler[int, None]) -> None:
    with transaction.atomic(using="other"), pytest.warns(RuntimeWarning, match="on database 'other'") as warned:
        assert send_delay_messages([close_order.prepare(5)]).created == 1
    assert warned[0].filename == __file__


def test_the_database_of_the_alias_decides(settings: Any, registry: None, broker: MemoryBroker) -> None:
    memory = "django_delayq.brokers.memory.MemoryBroker"
    settings.DELAYQ = {"default": {"BROKER": memory, "STORE": None, "DATABASE": "other"}}

    @delay_execute("k")
    def handler(message: Message[None]) -> None: ...

    with transaction.atomic(using="other"):
        assert handler.send().created is None
