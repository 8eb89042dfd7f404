"""What a version of RabbitMQ lacks is told, and no version is asked for what it takes for something else."""

import pytest

from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.broker import report_of
from tests.rabbitmq.support import NAMES, channel_of, put
from tests.servers import RabbitMQServer, rabbitmq_version


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("3.8.9", True),
        ("3.9.29", True),
        ("3.10.8", False),
        ("3.11.28", False),
        ("3.12.0-rc.1", False),
        ("3.13.7+1", False),
        ("4.0.5", False),
        ("4.1.0", False),
        ("10.0.0", False),
        ("unheard of", True),
    ],
)
def test_a_worker_is_told_what_its_server_s_version_lacks(version: str, is_old: bool) -> None:
    report = report_of(version, "amqp://host")
    assert report.problems == ([f"RabbitMQ {version} (amqp://host) is too old; use 3.10 or newer."] if is_old else [])


def test_the_version_is_what_the_server_says(broker: RabbitMQBroker) -> None:
    assert broker.report().server.startswith(f"RabbitMQ {rabbitmq_version()} (")


def test_what_is_looked_at_stays_however_often(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    """A look takes a message and gives it back: 4.0 and newer drop it at the 21st time, unless told otherwise."""
    assert broker.timer.owner("default 1") == "default 1"
    for _ in range(25):
        assert broker.timer.owner() == "default 1"
    put(broker, {"a": 0})
    with channel_of(rabbitmq_server) as channel:
        while (message := channel.basic_get(NAMES.ready("q", "k"))) is None:
            pass
        for _ in range(25):
            channel.basic_reject(message.delivery_tag, requeue=True)
            while (message := channel.basic_get(NAMES.ready("q", "k"))) is None:
                pass
