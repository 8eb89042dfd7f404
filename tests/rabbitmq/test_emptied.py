"""The shared node is handed to the next test with nothing in it, and nothing on its way."""

from time import monotonic

from django_delayq.brokers.rabbitmq import RabbitMQBroker
from tests.rabbitmq.support import NAMES, WANT, channel_of, put
from tests.servers import RabbitMQServer


def test_what_a_level_was_handing_on_does_not_arrive_in_the_next_test(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.timer.take_due(WANT, lease_ms=60_000, worker="w")  # its queue is there
    while not _caught_handing_on(broker, rabbitmq_server):
        pass  # it was over before anybody looked
    rabbitmq_server.empty()
    assert not rabbitmq_server.hands_on()
    with channel_of(rabbitmq_server) as channel:
        assert channel.queue_declare(NAMES.stray, passive=True).message_count == 0


def _caught_handing_on(broker: RabbitMQBroker, server: RabbitMQServer) -> bool:
    """Let a level hand on many alarms, and return whether that was seen while it went on."""
    for part in range(8):
        put(broker, {f"{part}.{n}": 1_300 for n in range(40)})
    until = monotonic() + 3
    while monotonic() < until:
        if server.hands_on():
            return True
    return False
