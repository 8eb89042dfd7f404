"""amqps://: to whom the certificate's authority is named, and to nobody else."""

from contextlib import closing

import pytest

from django_delayq.brokers.base import Header, Put, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused
from tests.servers import RabbitMQServer
from tests.servers.rabbitmq import PASSWORD


def broker_at(location: str) -> RabbitMQBroker:
    return RabbitMQBroker(Alias("default", location=location))


def test_a_message_goes_there_and_back(rabbitmq_server: RabbitMQServer) -> None:
    with closing(broker_at(rabbitmq_server.tls_url)) as broker:
        broker.put([Put(f"{n}", Header("q", "k"), b"1" * 20_000) for n in range(20)])
        given: list[str] = []
        while len(given) < 20:
            claims = broker.claim([Want("q", "k", 20)], lease_ms=60_000, worker="w")
            given += [message.id for message in claims.messages]
            broker.wait(1)
    assert sorted(given, key=int) == [f"{n}" for n in range(20)]


def test_a_server_that_nobody_vouches_for_is_refused(rabbitmq_server: RabbitMQServer) -> None:
    location, _, _ = rabbitmq_server.tls_url.partition("?")
    with closing(broker_at(location)) as broker, pytest.raises(BrokerRefused, match="ssl_ca_certs=FILE") as caught:
        broker.open()
    assert PASSWORD not in str(caught.value)
