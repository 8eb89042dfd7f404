"""A connection that is lost under a worker: what it had comes again, charged once, and never gets lost on its way."""

import pytest

from django_delayq.brokers.base import Claimed, Header, Put, Settlement, Verb, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.locations import parse_location
from django_delayq.errors import BrokerUnavailable
from tests.servers import free_port

WANT = [Want("q", "k", 10)]


def claim(broker: RabbitMQBroker) -> Claimed:
    while not (messages := broker.claim(WANT, lease_ms=60_000, worker="w").messages):
        broker.wait(1)
    (message,) = messages
    return message


def finish(claimed: Claimed) -> Settlement:
    return Settlement(claimed.id, claimed.token, Verb.FINISH, "q", "k")


def test_a_claimed_message_comes_again_and_its_old_lease_is_lost(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    first = claim(broker)
    broker._receiver._link.drop()
    again = claim(broker)
    assert (again.id, again.crashes, again.failures) == ("a", 1, 0)
    assert broker.settle([finish(first), finish(again)]) == [False, True]


def test_it_is_kept_while_nothing_can_be_published(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claim(broker)
    broker._receiver._link.drop()
    there = broker._outward.location
    broker._outward.drop()
    broker._outward.location = parse_location(f"amqp://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnavailable):
        claim(broker)
    broker._outward.location = there
    assert claim(broker).crashes == 1
