"""The admin shows what RabbitMQ can tell of what it carries, and what is buried can be run again from there."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Header, Put, SettleAction, Want
from tests.admin.support import page, text_of, url
from tests.brokers.rig import claim_some, settlement
from tests.rabbitmq.conftest import delayq_on
from tests.servers import RabbitMQServer


@pytest.fixture
def superuser(db: None) -> Client:
    """A client of somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_what_waits_is_counted_and_what_is_buried_runs_again(
    settings: Settings, rabbitmq_server: RabbitMQServer, superuser: Client
) -> None:
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, None)}
    broker = get_broker()
    header = Header("q", "k")
    broker.put([Put("dead", header, b"1")])
    (claimed,) = claim_some(broker, [Want("q", "k", 1)])
    broker.settle([settlement(claimed, SettleAction.BURY, error="no good")])
    broker.put([Put(f"{n}", header, b"1", delay_ms=3_600_000) for n in range(7)])
    index = superuser.get("/admin/delayq/")
    assert "Waiting 7" in text_of(index)
    assert "no good" in page(index)
    assert "This broker can't list what waits" in text_of(index)
    move = {"move": "rescue", "id": "dead", "sure": "yes"}
    superuser.post(url("readymessage", "dashboard", "carried"), move)
    assert broker.errors(10) == []
