"""Sending one message: what the broker gets and what the sender is told. Sync and async alike."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_delayq import (
    DuplicateMessage,
    Handler,
    Sent,
    UnknownKey,
    asend_delay_message,
    delay_execute,
    get_delay_message,
    send_delay_message,
)
from django_delayq.brokers.base import ClaimRequest
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.support.timestamps import from_ms
from tests.api.support import NOW, Noted, waiting

pytestmark = pytest.mark.django_db(transaction=True)


def send_async(*args: Any, **kwargs: Any) -> Sent:
    return asyncio.run(asend_delay_message(*args, **kwargs))


both = pytest.mark.parametrize("send", [send_delay_message, send_async])


@both
def test_a_message_without_a_delay_is_due_now(send: Any, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    sent = send("order.close", 5, id="a")
    assert sent == Sent("a", NOW, created=True, running=False)
    assert sent.due_at == from_ms(NOW)
    (info,) = waiting(broker)
    assert (info.id, info.header.key, info.body, info.due_ms) == ("a", "order.close", b"5", NOW)


@both
@pytest.mark.parametrize("delay", [0, 1.5, "30m", timedelta(milliseconds=1), timedelta(days=36_600)])
def test_a_delay_counts_on_the_clock_of_the_broker(send: Any, delay: Any, close_order: Handler[int, None]) -> None:
    elapsed = {0: 0, 1.5: 1_500, "30m": 1_800_000}.get(delay, delay)
    if isinstance(elapsed, timedelta):
        elapsed = elapsed // timedelta(milliseconds=1)
    assert send("order.close", 5, delay=delay).due_ms == NOW + elapsed


@pytest.mark.parametrize(
    ("at", "due_ms"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000),
        (datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1_767_225_600_001),
        (datetime(2026, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC), 1_767_225_600_001),
        (datetime(2026, 3, 3, 1, 30, tzinfo=ZoneInfo("America/New_York")), 1_772_519_400_000),
        (datetime(1999, 1, 1, tzinfo=UTC), NOW),
    ],
)
def test_an_instant_is_kept_rounded_up_and_the_past_is_now(
    at: datetime, due_ms: int, close_order: Handler[int, None]
) -> None:
    assert close_order.send(5, at=at).due_ms == due_ms


def test_the_hour_that_exists_twice_is_told_apart(close_order: Handler[int, None]) -> None:
    first = datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    due = [close_order.send(5, at=at).due_ms for at in (first, first.replace(fold=1))]
    assert due == [1_793_511_000_000, 1_793_514_600_000]


def test_a_naive_instant_is_local_time_without_use_tz(settings: Any, close_order: Handler[int, None]) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    assert close_order.send(5, at=datetime(2026, 1, 1)).due_ms == 1_767_243_600_000


@both
def test_every_option_travels_in_the_header(send: Any, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    send(
        "order.close",
        5,
        tag="t",
        trace_id="trace",
        queue="mail",
        max_attempts=9,
        expires="1h",
        timeout="10s",
        at_most_once=True,
    )
    (info,) = waiting(broker, "mail")
    header = info.header
    assert (header.queue, header.tag, header.trace_id, header.max_attempts) == ("mail", "t", "trace", 9)
    assert (header.expires_ms, header.timeout_ms, header.at_most_once) == (3_600_000, 10_000, True)


def test_the_handler_gives_what_the_send_leaves_open(registry: None, broker: MemoryBroker) -> None:
    @delay_execute("k", queue="mail", expires="1h", at_most_once=True)
    def handle(message: Any) -> None: ...

    handle.send(at_most_once=None)
    (info,) = waiting(broker, "mail")
    header = info.header
    assert (header.expires_ms, header.at_most_once) == (3_600_000, True)
    assert (header.max_attempts, header.timeout_ms) == (None, None)  # the handler of the worker's version decides


@both
def test_a_priority_is_the_handlers_unless_the_send_has_one(send: Any, registry: None, broker: MemoryBroker) -> None:
    @delay_execute("k", queue="mail", priority=-5)
    def handle(message: Any) -> None: ...

    sent = [send("k", **options).id for options in ({}, {"priority": 100}, {"priority": 0}, {"queue": "text"})]
    found = [get_delay_message(id) for id in sent]
    assert [(info.queue, info.priority) for info in found if info] == [
        ("mail", -5), ("mail", 100), ("mail", 0), ("text", -5),
    ]  # fmt: skip


@both
def test_a_second_send_of_an_id_is_the_first_message(send: Any, close_order: Handler[int, None]) -> None:
    send("order.close", 1, id="a", delay=5)
    assert send("order.close", 2, id="a") == Sent("a", NOW + 5_000, created=False)
    info = get_delay_message("a")
    assert info is not None
    assert info.data == 1


@both
def test_on_conflict_replaces(send: Any, close_order: Handler[int, None]) -> None:
    send("order.close", 1, id="a", delay=5)
    assert send("order.close", 2, id="a", on_conflict="replace") == Sent("a", NOW, created=False)
    info = get_delay_message("a")
    assert info is not None
    assert info.data == 2


@both
def test_on_conflict_raises(send: Any, close_order: Handler[int, None]) -> None:
    send("order.close", 1, id="a")
    with pytest.raises(DuplicateMessage, match="'a'"):
        send("order.close", 2, id="a", on_conflict="raise")


@both
def test_a_send_to_a_running_message_says_that_it_runs(
    send: Any, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    send("order.close", 1, id="a")
    broker.queue.claim([ClaimRequest("default", "order.close", 1)], lease_ms=1_000, worker="w")
    assert send("order.close", 2, id="a") == Sent("a", NOW, created=False, running=True)


def test_a_former_key_still_reaches_the_handler(registry: None, broker: MemoryBroker) -> None:
    @delay_execute("new", former_keys=["old"], queue="mail")
    def handle(message: Any) -> None: ...

    send_delay_message("old", 1)
    assert [info.header.key for info in waiting(broker, "mail")] == ["old"]


@both
def test_an_unknown_key_is_refused(send: Any, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    message = r"key='order.clsoe' has no handler in alias 'default': did you mean 'order.close'\? Handlers are found in"
    with pytest.raises(UnknownKey, match=message):
        send("order.clsoe", 5)
    assert waiting(broker) == []


def test_an_unknown_key_is_sent_where_that_is_allowed(settings: Any, registry: None) -> None:
    memory = "django_delayq.brokers.memory.MemoryBroker"
    settings.DELAYQ = {"default": {"BROKER": memory, "STORE": None, "OPTIONS": {"unknown_keys": "allow"}}}
    sent = send_delay_message("elsewhere", {"a": 1})
    info = get_delay_message(sent.id)
    assert info is not None
    assert (info.key, info.queue, info.data) == ("elsewhere", "default", {"a": 1})


def test_a_handler_sends_and_prepares_with_its_own_key_and_alias(close_order: Handler[int, None]) -> None:
    prepared = close_order.prepare(5, delay="1s", id="a")
    assert (prepared.key, prepared.data, prepared.using, prepared.delay) == ("order.close", 5, "default", "1s")
    assert close_order.send(5, delay="1s").due_ms == NOW + 1_000
    assert asyncio.run(close_order.asend(5, delay="1s")).due_ms == NOW + 1_000


@both
def test_an_accepted_message_is_told_by_a_signal(
    send: Any, close_order: Handler[int, None], sent_signals: Noted
) -> None:
    send("order.close", 5, id="a", delay=1)
    assert sent_signals == [
        {
            "sender": close_order,
            "using": "default",
            "id": "a",
            "key": "order.close",
            "queue": "default",
            "due_ms": NOW + 1_000,
            "created": True,
            "running": False,
        }
    ]
