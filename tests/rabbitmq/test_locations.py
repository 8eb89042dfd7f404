"""LOCATION of RabbitMQ: what it says, what is wrong with it, and never its password."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    as_dict = {"host": "host", "port": 5673, "username": "us@er", "password": "p/w", "vhost": "a/b"}
    assert parse_location(as_dict) == location


def test_an_address_in_short() -> None:
    location = parse_location("amqp://host")
    assert (location.user, location.vhost, location.options["host"]) == ("guest", "/", "host:5672")
    assert parse_location({"host": "host", "port": None}) == location


def test_a_dict_says_how_to_trust_the_server(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    location = parse_location(f"amqps://[::1]?ssl_ca_certs={quote(str(tmp_path), safe='')}%2Fca.pem")
    assert parse_location({"host": "::1", "tls": {"ca_certs": tmp_path / "ca.pem"}}) == location
    assert parse_location({"host": "mq", "tls": True}) == parse_location("amqps://mq")
    assert parse_location({"host": "mq", "tls": False}) == parse_location("amqp://mq")


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ({"password": "s3cret"}, r'LOCATION\["host"\] is no host'),
        ({"host": "u:s3cret@h"}, r'LOCATION\["host"\] is no host'),
        ({"host": "h", "pasword": "s3cret"}, "no setting 'pasword': did you mean 'password'"),
        ({"host": "h", "password": b"s3cret"}, r'LOCATION\["password"\] is bytes; give a str'),
        ({"host": "h", "port": "1"}, r'LOCATION\["port"\] is \'1\'; give a number'),
        (
            {"host": "h", "tls": "s3cret"},
            r'LOCATION\["tls"\] is str; give True, or a dict of ca_certs, certfile, keyfile',
        ),
        ({"host": "h", "tls": {"cert_reqs": "none"}}, r"LOCATION\[\"tls\"\] has no setting 'cert_reqs'"),
        (["s3cret"], "LOCATION is list; give the URL of RabbitMQ, or a dict"),
    ],
)
def test_a_wrong_dict_is_told_with_the_fix_and_without_its_password(location: Any, what: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=what) as caught:
        parse_location(location)
    assert "s3c" not in str(caught.value)


@pytest.mark.parametrize(("location", "what"), WRONG)
def test_a_wrong_one_is_told_with_the_fix_and_without_its_password(location: str, what: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        RabbitMQBroker.check(Alias("default", location=location))
    assert what in str(caught.value)
    assert "amqp://USER:PASSWORD@HOST" in str(caught.value)
    assert "s3c" not in str(caught.value)
