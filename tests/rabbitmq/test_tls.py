"""amqps://: to whom the certificate's authority is named, and to nobody else."""

from contextlib import closing

import pytest

from django_delayq.brokers.base import Alarm, ClaimRequest
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused
from tests.rabbitmq.support import claim, pks
from tests.servers import RabbitMQServer
from tests.servers.rabbitmq import PASSWORD


def broker_at(location: str) -> RabbitMQBroker:
    return RabbitMQBroker(Alias("default", location=location))


def test_alarms_go_there_and_back(rabbitmq_server: RabbitMQServer) -> None:
    with closing(broker_at(rabbitmq_server.tls_url)) as broker:
        sent = {f"{n:0200}" for n in range(200)}  # more than a record of TLS
        broker.timer.schedule([Alarm("q", "k", pk) for pk in sent])
        given: list[str] = []
        while len(given) < len(sent):
            given += pks(claim(broker, [ClaimRequest("q", "k", len(sent))]))
    assert set(given) == sent


def test_a_server_that_nobody_vouches_for_is_refused(rabbitmq_server: RabbitMQServer) -> None:
    location, _, _ = rabbitmq_server.tls_url.partition("?")
    with closing(broker_at(location)) as broker, pytest.raises(BrokerRefused, match="ssl_ca_certs=FILE") as caught:
        broker.open()
    assert PASSWORD not in str(caught.value)
