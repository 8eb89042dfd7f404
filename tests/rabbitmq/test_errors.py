"""What is wrong with the node or the login is told with the way to mend it, and without the password."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from amqp.exceptions import AccessRefused
from django.core.exceptions import ImproperlyConfigured

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.link import as_ours
from django_delayq.brokers.rabbitmq.locations import parse_location
from django_delayq.conf import Alias, Options
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, DelayqError
from tests.servers import RabbitMQServer, free_port
from tests.servers.rabbitmq import PASSWORD, USER


@contextmanager
def broker_at(location: str, **options: Any) -> Iterator[RabbitMQBroker]:
    with closing(RabbitMQBroker(Alias("default", location=location, options=Options(**options)))) as broker:
        yield broker


def told(location: str, kind: type[DelayqError], **options: Any) -> str:
    """Return what is said at the first use."""
    with broker_at(location, **options) as broker, pytest.raises(kind) as caught:
        broker.open()
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_a_wrong_password(rabbitmq_server: RabbitMQServer) -> None:
    text = told(rabbitmq_server.url.replace(PASSWORD, "wrong"), BrokerRefused)
    assert f"check the user {USER!r} and the password in LOCATION" in text
    assert "wrong" not in text


def test_an_unknown_vhost(rabbitmq_server: RabbitMQServer) -> None:
    text = told(rabbitmq_server.url + "shop", BrokerRefused)
    assert "create the vhost 'shop' (rabbitmqctl add_vhost)" in text


def test_a_missing_permission(rabbitmq_server: RabbitMQServer) -> None:
    text = told(rabbitmq_server.url, BrokerRefused, prefix="shop")
    assert f"rabbitmqctl set_permissions -p / {USER} '^shop[.]' '^shop[.]' '^shop[.]'" in text
    assert "shop.setup" in text


def test_a_fault_is_told_in_the_same_words_whatever_name_was_made_up() -> None:
    refused = [AccessRefused(f"access to queue 'delayq.news.{name}' refused") for name in ("a-1_B", "c")]
    location = parse_location("amqp://host")
    assert len({str(as_ours(error, location, "delayq")) for error in refused}) == 1


def test_an_exchange_of_that_name_with_other_arguments(rabbitmq_server: RabbitMQServer) -> None:
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.exchange_declare("delayq.other.due", "fanout", auto_delete=False)
    text = told(rabbitmq_server.url, BrokerRefused, prefix="delayq.other")
    assert "'delayq.other.due'" in text
    assert "other arguments" in text


def test_a_node_that_is_away() -> None:
    assert "is away" in told(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{free_port()}/", BrokerUnavailable)


def test_a_fault_that_stays_ends_a_call_for_a_new_queue(rabbitmq_server: RabbitMQServer) -> None:
    with broker_at(rabbitmq_server.url) as broker:
        too_long = Alarm("q", "never seen", "x" * 200_000)  # the server ends the connection for it
        with pytest.raises(BrokerUnavailable, match="is away"):
            broker.timer.schedule([too_long])


def test_a_prefix_that_no_name_has_room_for(rabbitmq_server: RabbitMQServer) -> None:
    longest = "delayq." + "x" * 81
    alias = Alias("default", location=rabbitmq_server.url, options=Options(prefix=longest + "x"))
    with pytest.raises(ImproperlyConfigured, match="at most 88 bytes"):
        RabbitMQBroker.check(alias)
    with broker_at(rabbitmq_server.url, prefix=longest) as broker:
        broker.timer.schedule([Alarm("q" * 200, "k" * 200, "1")])


def test_a_memory_alarm(rabbitmq_server: RabbitMQServer) -> None:
    with broker_at(rabbitmq_server.url) as broker:
        alarm = Alarm("q", "k", "1")
        broker.timer.schedule([alarm])
        with rabbitmq_server.memory_full(), pytest.raises(BrokerUnavailable, match="memory or disk alarm"):
            broker.timer.schedule([alarm] * 2)  # it stops behind the first one
        broker.timer.schedule([alarm])
