"""What scheduling costs the network."""

import socket
import struct

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.rabbitmq import RabbitMQBroker

DATA_SEGMENTS_OUT = 156
"""Where Linux tells in `struct tcp_info` how many packets with data were sent."""


def packets(broker: RabbitMQBroker) -> int:
    """Return how many packets the connection that publishes has sent."""
    with broker._publisher.looking() as connection:
        told = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_OUT + 4)
    return int(struct.unpack_from("I", told, DATA_SEGMENTS_OUT)[0])


def test_many_alarms_leave_in_few_packets(broker: RabbitMQBroker) -> None:
    broker.timer.schedule([Alarm("q", "k", "first")])  # its queue is there now
    before = packets(broker)
    broker.timer.schedule([Alarm("q", "k", f"{n}") for n in range(500)])
    assert packets(broker) - before < 50
