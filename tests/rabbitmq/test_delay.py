"""The levels: every delay takes its own way, none waits behind a longer one, and none ends early."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from amqp import Message
from django.db import connections
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Alarm, ClaimRequest, Header, NewMessage, pages
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.alarms import Envelope, Outgoing, outgoing, unpack
from django_delayq.brokers.rabbitmq.names import LEVELS, address
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from tests.rabbitmq.conftest import delayq_on
from tests.rabbitmq.support import (
    NAMES,
    WANT,
    Clock,
    broker_on,
    channel_of,
    claim,
    levels,
    pks,
    put,
    ready,
)
from tests.scale import scaled
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S

HOUR = 3_600_000


def test_a_second_behind_an_hour_is_a_second(broker: RabbitMQBroker) -> None:
    put(broker, {"hour": HOUR})
    started_at = time.monotonic()
    put(broker, {"second": 1_000})
    assert pks(claim(broker)) == ["second"]
    assert time.monotonic() - started_at >= 1.0


def test_waits_end_in_their_order_and_none_early(broker: RabbitMQBroker) -> None:
    waits_ms = [3_210, 5, 1_999, 1_001, 2_000, 700, 3_000, 0]
    started_at = time.monotonic()
    put(broker, {f"{wait_ms}": wait_ms for wait_ms in waits_ms})
    claimed: list[int] = []
    while len(claimed) < len(waits_ms):
        for alarm in claim(broker):
            claimed.append(int(alarm.pk))
            assert time.monotonic() - started_at >= claimed[-1] / 1000
    assert sorted(claimed) == sorted(waits_ms)


def test_what_arrived_late_is_not_held_for_longer(broker: RabbitMQBroker) -> None:
    put(broker, {"a": 200})
    time.sleep(0.201)  # a clock that is moved is that of no machine
    while not (claims := broker.timer.take_due(WANT, lease_ms=60_000, worker="w")).alarms:
        assert claims.next_due_ms is None
        broker.timer.wait(1)


def test_the_clock_of_another_machine_makes_nothing_early(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    with broker_on(rabbitmq_server, monotonic=lambda: time.monotonic() - 3_600) as other:
        put(other, {"a": 0})
        claim(broker)  # all is set up
        sent_at = time.monotonic()
        put(other, {"b": 400})
        claim(broker)
    assert time.monotonic() - sent_at >= 0.4


def test_a_queue_that_was_deleted_holds_up_nobody_and_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {f"{n}": 1_300 for n in range(40)}, key="gone")  # more than a level hands on at once
    with channel_of(rabbitmq_server) as channel:
        channel.queue_delete(NAMES.ready("q", "gone"))
    put(broker, {"other": 1_400})
    assert pks(claim(broker)) == ["other"]
    found: set[str] = set()
    until = time.monotonic() + PATIENCE_S
    while len(found) < 40:
        assert time.monotonic() < until
        broker.timer.maintain(lease_ms=60_000)
        with broker_on(rabbitmq_server) as looks:
            found.update(pks(looks.timer.take_due([ClaimRequest("q", "gone", 40)], lease_ms=60_000, worker="w").alarms))


@pytest.mark.parametrize(("exchange", "wait_ms"), [("entry.04", 20_000), ("direct", 0)])
def test_an_exchange_that_was_deleted_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, exchange: str, wait_ms: int
) -> None:
    put(broker, {"a": wait_ms})
    with channel_of(rabbitmq_server) as channel:
        channel.exchange_delete(f"delayq.{exchange}")
    put(broker, {"a": wait_ms})
    assert ready(rabbitmq_server) + sum(levels(rabbitmq_server)) == 2


def test_what_was_deleted_between_the_levels_is_made_again_and_loses_nothing(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.timer.take_due(WANT, lease_ms=60_000, worker="w")  # its queue is there and bound: no claim asks for it again
    sent_at = time.monotonic()
    put(broker, {"a": 3_300})  # two seconds, one second, the rest
    with channel_of(rabbitmq_server) as channel:
        channel.exchange_delete(NAMES.level(0))
        channel.queue_delete(NAMES.level(0))
        channel.exchange_delete(NAMES.due)
    until = time.monotonic() + PATIENCE_S
    while not broker.timer.take_due(WANT, lease_ms=60_000, worker="w").alarms:
        assert time.monotonic() < until
        broker.timer.maintain(lease_ms=60_000)
        broker.timer.wait(0.1)
    assert time.monotonic() - sent_at >= 3.3
    put(broker, {"b": 1_400})
    assert pks(claim(broker)) == ["b"]  # without upkeep: its queue is bound once more


def test_an_alarm_for_a_level_whose_queue_was_deleted_makes_it_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.open()
    with channel_of(rabbitmq_server) as channel:
        channel.queue_delete(NAMES.level(4))
    put(broker, {"a": 20_000})
    assert levels(rabbitmq_server)[4] == 1


@contextmanager
def declared_otherwise(server: RabbitMQServer, exchange: str) -> Iterator[None]:
    """Somebody has this exchange, with arguments that are not ours; and takes it away again."""
    with server.client() as client, client.channel() as channel:
        channel.exchange_delete(exchange)
        channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
        try:
            yield
        finally:
            channel.exchange_delete(exchange)


def test_a_level_that_somebody_has_declared_otherwise_is_told_and_holds_up_no_other(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.open()
    with declared_otherwise(rabbitmq_server, NAMES.level(5)):
        broker._publisher.redeclare()
        put(broker, {"a": 1_300})
        assert "delayq.level.05" in caplog.text
        assert pks(claim(broker)) == ["a"]


def test_workers_outlive_that_the_queue_of_strays_is_deleted(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.timer.maintain(lease_ms=60_000)
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(NAMES.stray)
    with pytest.raises(BrokerUnavailable, match="is made again"):
        broker.timer.maintain(lease_ms=60_000)
    broker.timer.maintain(lease_ms=60_000)


def end_levels_early(broker: RabbitMQBroker, out: Outgoing) -> None:
    """Have an alarm arrive at once, as if the node's clock had jumped ahead."""
    assert out.pair is not None
    out.exchange, out.routing_key = NAMES.route(0, *out.pair)
    broker._publisher.publish([out])


def test_what_its_levels_end_early_is_claimed_at_its_time(broker: RabbitMQBroker) -> None:
    broker.open()
    sent_at = time.monotonic()
    end_levels_early(broker, outgoing(NAMES, Alarm("q", "k", "a", 1_900), broker._clock))
    claim(broker)
    assert time.monotonic() - sent_at >= 1.9


def test_what_its_levels_end_long_before_its_time_is_told_and_a_pass_schedules_it_again(
    settings: Settings, rabbitmq_server: RabbitMQServer, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, database)}
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    timer = broker.queue.timer
    assert isinstance(timer, RabbitMQBroker)
    broker.queue.enqueue([NewMessage("far", Header("q", "k"), b"1", delay_ms=HOUR)])
    with connections[database].cursor() as cursor:
        ((pk,),) = cursor.execute("SELECT id FROM delayq_ready").fetchall()
    end_levels_early(timer, outgoing(NAMES, Alarm("q", "k", str(pk), HOUR), timer._clock))
    until = time.monotonic() + PATIENCE_S
    while not any("has jumped ahead" in record.message for record in caplog.records):
        assert time.monotonic() < until
        assert broker.queue.claim(WANT, lease_ms=60_000, worker="w").messages == []
        broker.queue.maintain(lease_ms=60_000)
    schedule_window(broker.database, timer, 2 * HOUR)
    assert levels(rabbitmq_server)[11] == 1  # 2,048 seconds and more
    with channel_of(rabbitmq_server) as channel:
        envelope = unpack(channel.basic_get(NAMES.level(11)))
    assert envelope
    assert (envelope.id, envelope.pair) == (str(pk), ("q", "k"))
    assert envelope.due_s - time.monotonic() > HOUR / 1000 - PATIENCE_S
    assert ready(rabbitmq_server) == 0
    assert [record.levelname for record in caplog.records if "has jumped ahead" in record.message] == ["WARNING"]


def test_each_bit_of_a_wait_is_a_level(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    put(broker, {f"{level}": 2**level * 1000 + 999 for level in range(LEVELS)})
    # The lowest may have ended meanwhile.
    assert levels(rabbitmq_server)[4:] == [1] * (LEVELS - 4)


def test_what_is_too_far_for_the_levels_comes_as_late_as_they_can(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {"far": 100 * 365 * 24 * HOUR})
    assert levels(rabbitmq_server)[LEVELS - 1] == 1


def test_an_expired_level_leads_to_the_next_that_the_wait_asks_for() -> None:
    exchange, routing_key = NAMES.route(18, "q", "k")
    assert exchange == NAMES.entry(4)
    bits, _, word = routing_key.rpartition(".")
    assert (int(bits.replace(".", ""), 2), word) == (18, address("q", "k"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a.b", "c"), ("a", "b.c")),
        (("q", "order.close"), ("order", "close")),
        (("#", "k"), ("*", "k")),
        (("q", "k" * 199 + "a"), ("q", "k" * 199 + "b")),
        (("q", "%2E"), ("q", ".")),
    ],
)
def test_two_sets_never_share_an_address(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert address(*one) != address(*other)
    for word in (address(*one), address(*other)):
        assert not set(word) & set(".*# ")
        assert len(word.encode()) + 2 * LEVELS < 256


def test_a_worker_that_sleeps_hears_of_what_is_due_before_all_that_it_holds(rabbitmq_server: RabbitMQServer) -> None:
    with broker_on(rabbitmq_server, wall=Clock(), monotonic=Clock()) as broker:  # time stands still
        put(broker, {f"later {n}": 900 for n in range(3)})
        put(broker, {"soon": 400})
        broker.timer.take_due([ClaimRequest("q", "k", 1)], lease_ms=60_000, worker="w")
        until = time.monotonic() + PATIENCE_S
        while broker._next_ready_in_s() > 0.4:
            assert time.monotonic() < until
            broker.timer.wait(0.05)


@pytest.fixture
def there(broker: RabbitMQBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, Envelope]:
    """Return what the node has handed on, by pk: the test takes out what is claimed."""
    there: dict[str, Envelope] = {}

    def read(message: Message) -> Envelope | None:
        envelope = unpack(message)
        assert envelope is not None
        there[envelope.id] = envelope
        return envelope

    monkeypatch.setattr("django_delayq.brokers.rabbitmq.consumer.unpack", read)
    return there


def test_many_shuffled_waits_end_in_due_order(broker: RabbitMQBroker, there: dict[str, Envelope]) -> None:
    """When the node hands an alarm on is the node's; what has come is claimed in due order, and none early."""
    size = scaled(400)
    waits_ms = random.sample(range(1_000, 1_000 + 3 * size), size)
    broker._publisher.declare([("q", "k")])  # that takes longer than some waits
    sent_at: list[float] = []
    for page in pages(waits_ms, 500):
        first = len(sent_at)
        sent_at += [time.monotonic()] * len(page)
        broker.timer.schedule([Alarm("q", "k", f"{first + n}", wait_ms) for n, wait_ms in enumerate(page)])
    claimed: set[int] = set()
    while len(claimed) < size:
        (want,) = wants = [ClaimRequest("q", "k", random.choice([1, 10, 100]))]  # as slots free, and handlers are fast
        due = [each for each in there.values() if each.due_s <= time.monotonic()]
        alarms = broker.timer.take_due(wants, lease_ms=60_000, worker="w").alarms
        last_ms = max((there[alarm.pk].due_ms for alarm in alarms), default=0)
        for alarm in alarms:
            number = int(alarm.pk)
            assert (time.monotonic() - sent_at[number]) * 1000 >= waits_ms[number]
            claimed.add(number)
            del there[alarm.pk]
        if left := [each.due_ms for each in due if each.id in there]:
            assert len(alarms) == want.count
            assert last_ms <= min(left)
        broker.timer.drop(alarms)
        if not alarms:
            broker.timer.wait(1)
