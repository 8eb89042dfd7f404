"""LOCATION of RabbitMQ: what it says, what is wrong with it, and never its password."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.locations import parse_location
from django_delayq.conf import Alias

WRONG = [
    ("redis://u:s3cret@h/0", "no address of RabbitMQ"),
    ("amqp://u:s3cret@", "names no host"),
    ("amqp://u:s3cret@h:port/", "can't be read"),
    ("amqp://u:s3cret@h/v/w", "more after the host than a vhost"),
    ("amqp://u:s3cret@h/v?ssl_ca_certs=/ca.pem", "has the option 'ssl_ca_certs', and takes none without TLS"),
    ("amqps://u:s3cret@h/v?ssl=1", "has the option 'ssl', and takes ssl_ca_certs, ssl_certfile, ssl_keyfile"),
    ("amqps://u:s3cret@h/v?ssl_ca_certs=/nope.pem", "has ssl_ca_certs='/nope.pem', which is no file here"),
    ("amqp://u:s3c@s3c/ret@h/v", "more after the host than a vhost"),
    ("u:s3cret@h", "no address of RabbitMQ"),
    ("amqp://h/v?password=s3cret", "has the option 'password'"),
    ("amqps://h/v?pass=s3cret&ssl_ca_certs=/ca.pem", "has the option 'pass'"),
]


def test_an_address_in_full() -> None:
    location = parse_location("amqp://us%40er:p%2Fw@host:5673/a%2Fb")
    assert (location.user, location.vhost) == ("us@er", "a/b")
    assert (location.options["host"], location.options["password"]) == ("host:5673", "p/w")
    assert location.shown == "amqp://us%40er:***@host:5673/a%2Fb"


def test_an_address_in_short() -> None:
    location = parse_location("amqp://host")
    assert (location.user, location.vhost, location.options["host"]) == ("guest", "/", "host:5672")


@pytest.mark.parametrize(("location", "what"), WRONG)
def test_a_wrong_one_is_told_with_the_fix_and_without_its_password(location: str, what: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        RabbitMQBroker.check(Alias("default", location=location))
    assert what in str(caught.value)
    assert "amqp://USER:PASSWORD@HOST" in str(caught.value)
    assert "s3c" not in str(caught.value)
