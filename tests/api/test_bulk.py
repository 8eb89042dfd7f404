"""Bulk sends: lazily, in bounded memory and round trips. Sync and async alike."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from django_delayq import Handler, Send, SendError, SentMany, asend_delay_messages, delay_execute, send_delay_messages
from django_delayq.api import bulk
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import ClaimRequest
from django_delayq.brokers.memory import MemoryBroker
from tests.api.support import NOW, Noted, waiting

pytestmark = pytest.mark.django_db(transaction=True)


def send_many_async(*args: Any, **kwargs: Any) -> SentMany:
    return asyncio.run(asend_delay_messages(*args, **kwargs))


both = pytest.mark.parametrize("send_many", [send_delay_messages, send_many_async])


@pytest.fixture
def round_trips(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many messages each call of `put` or `aput` took."""
    sizes: list[int] = []
    put = broker.queue.enqueue

    def counted(puts: Any, on_conflict: Any) -> Any:
        sizes.append(len(puts))
        return put(puts, on_conflict)

    monkeypatch.setattr(broker.queue, "enqueue", counted)
    return sizes


@both
def test_many_are_sent_in_few_round_trips(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker, round_trips: list[int]
) -> None:
    sent = send_many(close_order.prepare(number, delay=number) for number in range(2_500))
    assert sent == SentMany(accepted=2_500, created=2_500)
    assert round_trips == [1_000, 1_000, 500]
    assert [info.due_ms - NOW for info in waiting(broker)] == [number * 1_000 for number in range(1_000)]


@both
def test_a_batch_may_be_smaller(send_many: Any, close_order: Handler[int, None], round_trips: list[int]) -> None:
    send_many([close_order.prepare(number) for number in range(5)], batch_size=2)
    assert round_trips == [2, 2, 1]


@both
def test_large_data_makes_smaller_batches(
    send_many: Any, any_data: Handler[Any, None], round_trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_BYTES", 1_000)
    send_many(any_data.prepare("x" * 400) for _ in range(7))
    assert round_trips == [3, 3, 1]


@both
def test_nothing_is_sent_for_nothing(send_many: Any, broker: MemoryBroker, round_trips: list[int]) -> None:
    assert send_many([]) == SentMany()
    assert round_trips == []


def test_an_async_generator_is_read(close_order: Handler[int, None]) -> None:
    async def sends() -> AsyncIterator[Send]:
        for number in range(3):
            yield close_order.prepare(number)

    assert send_many_async(sends()).created == 3


@both
def test_what_was_sent_is_let_go(send_many: Any, close_order: Handler[int, None]) -> None:
    class Seen(Send):
        __slots__ = ("__weakref__",)
        __hash__ = object.__hash__

    alive: weakref.WeakSet[Seen] = weakref.WeakSet()
    most = 0

    def sends() -> Iterator[Send]:
        nonlocal most
        for number in range(1_000):
            send = Seen("order.close", number)
            alive.add(send)
            most = max(most, len(alive))
            yield send

    gc.collect()
    send_many(sends(), batch_size=10)
    assert most <= 20


@both
def test_the_answer_counts_what_was_new_and_what_runs(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    close_order.send(1, id="running")
    broker.queue.claim([ClaimRequest("default", "order.close", 1)], lease_ms=1_000, worker="w")
    close_order.send(1, id="waiting")
    sent = send_many(close_order.prepare(2, id=id) for id in ("running", "waiting", "new"))
    assert sent == SentMany(accepted=3, created=1, running=1)


@both
def test_neighbours_with_another_way_to_meet_conflicts_are_another_batch(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker, round_trips: list[int]
) -> None:
    send_many(
        [
            close_order.prepare(1, id="a"),
            close_order.prepare(2, id="a"),
            close_order.prepare(3, id="a", on_conflict="replace"),
            close_order.prepare(4, id="a"),
        ]
    )
    assert round_trips == [2, 1, 1]
    assert [info.body for info in waiting(broker)] == [b"3"]


@both
def test_each_message_goes_to_its_alias_unless_one_is_given(send_many: Any, settings: Any, registry: None) -> None:
    memory = {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}
    settings.DELAYQ = {"default": memory, "reports": memory}
    for using in ("default", "reports"):
        delay_execute("k", using=using)(lambda message: None)
    send_many([Send("k", 1), Send("k", 2, using="reports")])
    send_many([Send("k", 3, delay=1)], using="reports")
    assert [info.body for info in get_backend("default").queue.peek("default", 9)] == [b"1"]
    assert [info.body for info in get_backend("reports").queue.peek("default", 9)] == [b"2", b"3"]


@both
def test_each_accepted_message_is_told_by_a_signal(
    send_many: Any, close_order: Handler[int, None], sent_signals: Noted
) -> None:
    send_many(close_order.prepare(number, id=f"{number}") for number in range(3))
    assert [(signal["id"], signal["created"]) for signal in sent_signals] == [("0", True), ("1", True), ("2", True)]


@both
@pytest.mark.parametrize(("size", "message"), [(0, "batch_size=0 is too small"), (1_001, "give at most 1000")])
def test_a_wrong_batch_size_is_refused(send_many: Any, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        send_many([], batch_size=size)


def test_it_raises_inside_a_transaction(close_order: Handler[int, None], round_trips: list[int]) -> None:
    expected = pytest.raises(SendError, match=r"call it outside atomic\(\), or with on_commit=False")
    with transaction.atomic(), expected as raised:
        send_delay_messages([close_order.prepare(1)])
    assert isinstance(raised.value.__cause__, TransactionManagementError)
    assert round_trips == []


def test_on_commit_false_sends_at_once_inside_a_transaction(close_order: Handler[int, None]) -> None:
    with transaction.atomic():
        assert send_delay_messages([close_order.prepare(1)], on_commit=False).created == 1


def test_one_batch_is_on_its_way_while_the_next_is_read_and_never_two(
    close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    sent: list[int] = []

    def sends() -> Iterator[Send]:
        for number in range(5):
            sent.append(broker.queue.counts().totals["sent"])  # the memory broker takes a batch when it is waited for
            yield close_order.prepare(number)

    send_delay_messages(sends(), batch_size=1)
    assert sent == [0, 0, 0, 1, 2]
