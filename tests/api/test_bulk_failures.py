"""A bulk send that fails on the way says what was accepted, what is unknown, and what was not sent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import (
    BrokerUnavailable,
    Handler,
    Send,
    SendError,
    SentMany,
    asend_delay_messages,
    brokers,
    send_delay_messages,
)
from django_delayq.brokers.memory import MemoryBroker
from tests.api.support import Failing, waiting_ids

pytestmark = pytest.mark.django_db(transaction=True)


def send_many_async(*args: Any, **kwargs: Any) -> SentMany:
    return asyncio.run(asend_delay_messages(*args, **kwargs))


both = pytest.mark.parametrize("send_many", [send_delay_messages, send_many_async])


def sends(handler: Handler[int, None], count: int) -> Iterator[Send]:
    return (handler.prepare(number, id=f"{number}") for number in range(count))


@both
def test_a_broker_that_goes_away(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = BrokerUnavailable("redis is away")
    monkeypatch.setitem(brokers._backends, "default", Failing(broker, away, after=2))
    with pytest.raises(SendError) as raised:
        send_many(sends(close_order, 100), batch_size=10)
    error = raised.value
    assert error.__cause__ is away
    assert (error.accepted, error.unknown) == (20, tuple(f"{number}" for number in range(20, 30)))
    assert str(error) == "redis is away (20 messages were accepted, 10 are unknown, the rest was not sent.)"
    assert len(waiting_ids(broker)) == 20


@both
def test_one_message_is_told_in_the_singular(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(brokers._backends, "default", Failing(broker, BrokerUnavailable("away"), after=1))
    with pytest.raises(SendError, match=r"\(1 message was accepted, 1 is unknown, the rest was not sent\.\)"):
        send_many(sends(close_order, 3), batch_size=1)


@both
def test_resuming_after_a_failure_sends_each_once(
    send_many: Any, close_order: Handler[int, None], broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(
            brokers._backends,
            "default",
            Failing(broker, BrokerUnavailable("away"), after=2),
        )
        with pytest.raises(SendError) as raised:
            send_many(sends(close_order, 50), batch_size=10)
    rest = list(sends(close_order, 50))[raised.value.accepted :]
    assert send_many(rest).created == 30
    assert len(waiting_ids(broker)) == 50


@both
def test_wrong_data_on_the_way(send_many: Any, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    def mixed() -> Iterator[Send]:
        yield from sends(close_order, 25)
        yield Send("order.close", "x", id="wrong")

    with pytest.raises(SendError, match=r"data doesn't fit int.*\(20 messages were accepted") as raised:
        send_many(mixed(), batch_size=10)
    assert isinstance(raised.value.__cause__, TypeError)
    assert (raised.value.accepted, raised.value.unknown) == (20, ())
    assert len(waiting_ids(broker)) == 20


@both
def test_a_generator_that_raises(send_many: Any, close_order: Handler[int, None]) -> None:
    def breaking() -> Iterator[Send]:
        yield from sends(close_order, 11)
        raise OSError("the file ended")

    with pytest.raises(SendError, match="the file ended") as raised:
        send_many(breaking(), batch_size=10)
    assert (raised.value.accepted, raised.value.unknown) == (10, ())


@both
@pytest.mark.parametrize("wrong", [("order.close", 1), "order.close", None])
def test_what_is_no_send(send_many: Any, wrong: Any, broker: MemoryBroker) -> None:
    with pytest.raises(SendError, match=r"give Send\(\.\.\.\) or handler\.prepare\(\.\.\.\)"):
        send_many([wrong])


@both
@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        (Send("order.close", 1), r"sends is one Send; give an iterable of them, such as \[Send"),
        (5, "sends=5 is int; give an iterable of Send"),
    ],
)
def test_what_is_no_iterable_of_sends_is_told_with_its_fix(
    send_many: Any, wrong: Any, fix: str, broker: MemoryBroker
) -> None:
    with pytest.raises(SendError, match=fix):
        send_many(wrong)
    assert waiting_ids(broker) == []


@both
def test_on_commit_is_true_or_false(send_many: Any, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    with pytest.raises(TypeError, match="on_commit='no' is str; give True or False"):
        send_many(sends(close_order, 2), on_commit="no")
    assert waiting_ids(broker) == []
