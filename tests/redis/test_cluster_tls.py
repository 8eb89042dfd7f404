"""A cluster that speaks TLS only and asks for a password: every node is reached, and nothing is trusted that is not."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused
from tests import servers
from tests.brokers.rig import LEASE_MS, OPTIONS, ids
from tests.servers import ClusterServers

PASSWORD = "hush-hush"


@pytest.fixture
def cluster(certificates: Path) -> Iterator[ClusterServers]:
    files = {"tls_cert_file": "server", "tls_key_file": "server", "tls_ca_cert_file": "ca"}
    options = {option: str(certificates / f"{name}.pem") for option, name in files.items()}
    with closing(_start_tls(options) or servers.missing("a redis-server that knows TLS")) as cluster:
        yield cluster


def _start_tls(options: dict[str, str]) -> ClusterServers | None:
    for binary in filter(None, [*servers.redis_binaries(), shutil.which("redis-server")]):
        with contextlib.suppress(RuntimeError):  # one that was built without TLS does not know the options
            return ClusterServers(binary, tls=True, tls_auth_clients="no", requirepass=PASSWORD, **options)  # type: ignore[arg-type]
    return None


def test_a_dict_names_the_nodes_and_how_to_trust_them(cluster: ClusterServers, certificates: Path) -> None:
    location: dict[str, Any] = {"cluster": cluster.addresses[:1], "password": PASSWORD}
    trusting = location | {"tls": {"ca_certs": str(certificates / "ca.pem")}}
    with closing(RedisBroker(Alias("default", location=trusting, options=replace(OPTIONS, shards=3)))) as broker:
        broker.queue.enqueue([NewMessage(f"{n}", Header("q", "k"), b"1") for n in range(5)])
        asyncio.run(broker.queue.aenqueue([NewMessage(f"{n}", Header("q", "k"), b"1") for n in range(5, 9)]))
        claims = broker.queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LEASE_MS, worker="w")
        assert sorted(ids(claims.messages)) == [f"{n}" for n in range(9)]
    for wrong, why in (
        (location | {"tls": True}, "give the file of its CA as ssl_ca_certs in LOCATION"),
        (trusting | {"password": "s3cr3t"}, "check user and password in LOCATION"),
    ):
        with (
            closing(RedisBroker(Alias("default", location=wrong))) as broker,
            pytest.raises(BrokerRefused, match=why) as refused,
        ):
            broker.open()
        assert "s3cr3t" not in str(refused.value)
        assert PASSWORD not in str(refused.value)
