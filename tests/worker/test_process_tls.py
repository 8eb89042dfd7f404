"""A worker on a Redis that speaks TLS only, and on one that is not to be trusted."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.brokers.base import Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias, parse_alias
from django_delayq.core.errors import BrokerRefused
from tests.servers import Server
from tests.worker.processes import Site, site_with


@pytest.fixture
def redis_url(tls_server: Server, certificates: Path) -> str:
    files = {"ssl_ca_certs": "ca", "ssl_certfile": "client", "ssl_keyfile": "client"}
    options = "&".join(f"{option}={certificates / name}.pem" for option, name in files.items())
    return f"rediss://:hush-hush@127.0.0.1:{tls_server.options['tls_port']}/0?{options}"


@pytest.fixture
def site(redis_delayq: dict[str, Any], process_env: dict[str, str], tls_server: Server) -> Iterator[Site]:
    """A site on it."""
    with site_with(redis_delayq, RedisBroker(get_alias()), process_env, tls_server.directory) as site:
        yield site


def test_messages_are_sent_and_run_over_tls(site: Site) -> None:
    worker = site.worker()
    site.send("a")
    assert site.line.next_of("a").what == "ran"
    asyncio.run(site.broker.queue.aenqueue([NewMessage("b", Header("default", "arun"), b'""')]))
    assert site.line.next_of("b").what == "ran"
    assert worker.stop() == 0
    assert site.totals()["finished"] == 2


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [("/ca.pem", "/other.pem", "certificate in certificate chain"), ("127.0.0.1", "localhost", "Hostname mismatch")],
    ids=["another CA", "another host"],
)
def test_a_server_that_is_not_to_be_trusted_is_refused_with_the_fix(
    site: Site, redis_delayq: dict[str, Any], redis_url: str, right: str, wrong: str, why: str
) -> None:
    options = redis_delayq | {"LOCATION": redis_url.replace(right, wrong)}
    broker = RedisBroker(parse_alias("default", options))
    with pytest.raises(BrokerRefused, match="give the file of its CA as ssl_ca_certs in LOCATION") as raised:
        broker.open()
    site.env["DELAYQ_TEST"] = json.dumps(options)
    worker = site.worker()
    assert worker.wait() == 1
    for text in (str(raised.value), worker.text):
        assert why in text
        assert "hush-hush" not in text
        assert "Traceback" not in text
