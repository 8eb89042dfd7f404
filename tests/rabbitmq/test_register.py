"""What concerns a delayq as a whole is kept, whoever makes it, holds it, or removes it."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from time import monotonic

import pytest
from amqp import Message

from django_delayq.brokers.base import Alarm, WorkerInfo
from django_delayq.brokers.rabbitmq import RabbitMQBroker, shared_state
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.rabbitmq.support import NAMES, broker_on, channel_of
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S


def beat(broker: RabbitMQBroker, name: str) -> None:
    """A heartbeat, which is kept in the register."""
    broker.presence.heartbeat(WorkerInfo(name, [], [], 0, 0))


def beat_until_kept(broker: RabbitMQBroker, name: str) -> None:
    """A heartbeat as a worker gives it: RabbitMQ may answer that a queue which is just being made is not there yet."""
    give_up_at = monotonic() + PATIENCE_S
    while monotonic() < give_up_at:
        with suppress(BrokerUnavailable):
            return beat(broker, name)
    raise AssertionError(f"The heartbeat of {name} was never kept.")


def seen(broker: RabbitMQBroker) -> list[str]:
    return sorted(worker.name for worker in broker.presence.workers())


def test_of_many_who_set_it_up_at_once_none_takes_the_place_of_what_another_noted(
    rabbitmq_server: RabbitMQServer,
) -> None:
    with channel_of(rabbitmq_server) as channel:
        channel.queue_delete(NAMES.register)
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        made = [RabbitMQBroker(Alias("default", location=rabbitmq_server.url)) for _ in range(6)]
        brokers = [stack.enter_context(closing(broker)) for broker in made]
        names = [f"w{n}" for n in range(len(brokers))]
        list(threads.map(beat_until_kept, brokers, names))
        assert seen(brokers[0]) == names


def test_it_is_waited_for_while_another_holds_it(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    beat(broker, "q")
    with channel_of(rabbitmq_server) as channel, ThreadPoolExecutor() as threads:
        message = channel.basic_get(NAMES.register)
        retired = threads.submit(broker.presence.leave, "q")
        channel.basic_reject(message.delivery_tag, requeue=True)
        retired.result()
    assert seen(broker) == []


def test_it_is_held_by_nobody_while_the_server_takes_nothing(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.open()
    counts = set()
    with (
        broker_on(rabbitmq_server) as fresh,  # one that has published is stopped wherever it is
        channel_of(rabbitmq_server) as channel,
        rabbitmq_server.memory_full(),
        ThreadPoolExecutor() as threads,
    ):
        beating = threads.submit(beat, fresh, "w")
        while not beating.done():
            counts.add(channel.queue_declare(NAMES.register, passive=True).message_count)
        with pytest.raises(BrokerUnavailable, match="memory or disk alarm"):
            beating.result()
    assert counts == {1}


def test_one_who_holds_it_for_too_long_is_told_of(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(broker, "q")
    with channel_of(rabbitmq_server) as channel:
        channel.basic_get(NAMES.register)
        monkeypatch.setattr(shared_state, "HELD_S", 0.1)
        with pytest.raises(BrokerUnavailable, match=r"delayq\.register.* is empty"):
            beat(broker, "other")
    monkeypatch.undo()
    assert seen(broker) == ["q"]  # its holder is gone


def test_what_a_later_version_holds_in_it_beside_is_passed_over(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    beat(broker, "q")
    with channel_of(rabbitmq_server) as channel:
        message = channel.basic_get(NAMES.register, no_ack=True)
        held = {**json.loads(message.body), "later": 1}
        held["workers"]["q"]["later"] = 1
        channel.basic_publish_confirm(Message(json.dumps(held), delivery_mode=2), NAMES.direct, NAMES.register)
    beat(broker, "other")
    assert seen(broker) == ["other", "q"]


def test_the_first_store_that_is_named_stays_the_owner_until_it_is_deleted(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    assert broker.timer.owner() == ""
    assert broker.timer.owner("default 1") == "default 1"
    with closing(RabbitMQBroker(Alias("default", location=rabbitmq_server.url))) as other:
        assert other.timer.owner("default 2") == "default 1"
        assert NAMES.register in other.timer.owner_key
        with channel_of(rabbitmq_server) as channel:
            channel.queue_delete(NAMES.register)
        with pytest.raises(BrokerUnavailable, match="is made again"):
            other.timer.owner("default 2")
        assert other.timer.owner("default 2") == "default 2"


def test_it_outlives_the_exchange_that_leads_to_it(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    beat(broker, "q")
    with channel_of(rabbitmq_server) as channel:
        channel.exchange_delete(NAMES.direct)
        channel.exchange_declare(NAMES.direct, "direct", durable=True, auto_delete=False)  # bound to nothing
    with suppress(BrokerUnavailable):  # it has to find out
        beat(broker, "other")
    beat(broker, "other")
    assert seen(broker) == ["other", "q"]


def test_it_outlives_the_exchange_of_the_news(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    beat(broker, "q")
    with channel_of(rabbitmq_server) as channel:
        channel.exchange_delete(NAMES.pause_notices)
    with closing(RabbitMQBroker(Alias("default", location=rabbitmq_server.url))) as other:
        assert seen(other) == ["q"]


def test_who_deletes_it_has_lost_the_cursor(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    assert broker.timer.advance_cursor([Alarm("q", "k", "1")], None, 1_000) == 1_000
    with channel_of(rabbitmq_server) as channel:
        channel.queue_delete(NAMES.register)
    cursor: int | None = 1_000
    give_up_at = monotonic() + PATIENCE_S
    while cursor is not None and monotonic() < give_up_at:
        with suppress(BrokerUnavailable):  # it has to find out, and to make it again
            cursor = broker.timer.cursor()
    assert cursor is None
