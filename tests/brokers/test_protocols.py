"""Each broker offers the protocols that it says it does, whole."""

import pytest

from django_delayq.brokers.base import AlarmIndex, Heartbeats, Limiter, Presence, Queue, Timer, Window
from django_delayq.brokers.database import DatabaseBroker
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.conf import Alias
from tests.brokers.conftest import TIMERS, WITHOUT_STORE, name
from tests.brokers.rig import Rig


def methods(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def assert_is(protocol: type, part: object) -> None:
    lacking = {name for name in methods(protocol) if not hasattr(part, name)}
    assert not lacking, f"{type(part).__name__} is no {protocol.__name__}"


def test_a_backend_has_a_queue_presence_and_limits(rig: Rig) -> None:
    assert_is(Queue, rig.broker.queue)
    assert_is(Presence, rig.broker.presence)
    assert_is(Limiter, rig.broker.limiter)


@pytest.mark.parametrize("rig", TIMERS, ids=name, indirect=True)
def test_a_timer_holds_alarms_and_knows_workers(rig: Rig) -> None:
    assert_is(Timer, rig.timer)
    assert_is(Window, rig.timer)
    assert_is(Heartbeats, rig.broker.presence)


@pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True)
def test_memory_and_redis_list_their_alarms(rig: Rig) -> None:
    assert_is(AlarmIndex, rig.timer)


def test_rabbitmq_is_a_timer_and_no_more() -> None:
    broker = RabbitMQBroker(Alias("default", location="amqp://127.0.0.1"))
    assert (broker.queue, broker.limiter, broker.alarm_index) == (None, None, None)
    others: tuple[type, ...] = (Queue, Limiter, AlarmIndex, Presence)
    shared = methods(Timer) | methods(Heartbeats)
    assert not {verb for each in others for verb in methods(each) - shared if hasattr(broker, verb)}


def test_the_database_alone_is_a_timer_and_no_more() -> None:
    broker = DatabaseBroker(Alias("default"))
    assert (broker.queue, broker.window, broker.limiter, broker.alarm_index) == (None, None, None, None)
    assert_is(Timer, broker.timer)
    assert not {verb for verb in methods(Window) if hasattr(broker.timer, verb)}
    assert_is(Heartbeats, broker.presence)


def test_what_waits_is_counted_by_queue_and_key_with_its_next_due_time(rig: Rig) -> None:
    rig.send("a", delay_ms=3_600_000)
    counts = rig.broker.queue.counts()
    assert [(count.pending, count.next_due_ms is None) for count in counts.waiting] == [(1, False)]
