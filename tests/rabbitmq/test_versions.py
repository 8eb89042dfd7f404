"""What a version of RabbitMQ lacks is told, and no version is asked for what it takes for something else."""

import pytest

from django_delayq.brokers.base import Header, Pause, Put, SettleAction, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.looks import CONSUMER_TIMEOUT_MS, report_of
from tests.brokers.rig import claim_some, settlement
from tests.servers import rabbitmq_version


@pytest.mark.parametrize(
    ("version", "is_old", "longest_run_ms"),
    [
        ("3.8.9", True, CONSUMER_TIMEOUT_MS),
        ("3.9.29", True, CONSUMER_TIMEOUT_MS),
        ("3.10.8", False, CONSUMER_TIMEOUT_MS),
        ("3.11.28", False, CONSUMER_TIMEOUT_MS),
        ("3.12.0-rc.1", False, None),
        ("3.13.7+1", False, None),
        ("4.0.5", False, None),
        ("4.1.0", False, None),
        ("10.0.0", False, None),
        ("unheard of", True, CONSUMER_TIMEOUT_MS),
    ],
)
def test_a_worker_is_told_what_its_server_s_version_lacks(
    version: str, is_old: bool, longest_run_ms: int | None
) -> None:
    report = report_of(version, "amqp://host")
    assert report.problems == ([f"RabbitMQ {version} at amqp://host is too old; use 3.10 or newer."] if is_old else [])
    assert report.longest_run_ms == longest_run_ms


def test_the_version_is_what_the_server_says(broker: RabbitMQBroker) -> None:
    assert broker.report().server.startswith(f"RabbitMQ {rabbitmq_version()} at ")


def test_what_is_looked_at_stays_however_often(broker: RabbitMQBroker) -> None:
    """A look takes a message and gives it back: 4.0 and newer drop it at the 21st time, unless told otherwise."""
    broker.pause(Pause("q", None, "to see"))
    broker.put([Put("a", Header("q", "k"), b"1")])
    (claimed,) = claim_some(broker, [Want("q", "k", 1)])
    broker.settle([settlement(claimed, SettleAction.BURY, error="no good")])
    for _ in range(25):
        assert [pause.queue for pause in broker.pauses()] == ["q"]
        assert [info.id for info in broker.errors(10)] == ["a"]
