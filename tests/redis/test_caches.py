"""LOCATION "cache:default": the server of a real cache, django-redis' or Django's own, with its login and sentinels."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from pytest_django import Settings

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias, Store
from django_delayq.core.errors import BrokerRefused
from tests import servers
from tests.brokers.rig import LEASE_MS, OPTIONS, ids
from tests.servers import Server, sentinel
from tests.servers.sentinel import Failover

PASSWORD = "hush@1:/"  # must be quoted in a URL
OF_DJANGO_REDIS = "django_redis.cache.RedisCache"


class OwnCache(RedisCache):
    """A site's own subclass of Django's cache."""


CACHES: dict[str, Callable[[Server], dict[str, Any]]] = {
    "django-redis": lambda server: {
        "BACKEND": OF_DJANGO_REDIS,
        "LOCATION": f"unix://{server.socket}?db=3",
        "OPTIONS": {"PASSWORD": PASSWORD, "SOCKET_TIMEOUT": 5},
    },
    "django": lambda server: {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"unix://{server.socket}?db=3",
        "OPTIONS": {"password": PASSWORD},
    },
    "a subclass": lambda server: {
        "BACKEND": f"{__name__}.OwnCache",
        "LOCATION": f"unix://{server.socket}?db=3",
        "OPTIONS": {"password": PASSWORD},
    },
}


def carries_beside_the_cache(settings: Settings, cache: dict[str, Any]) -> None:
    """See that the cache works, and that messages go through the same database."""
    settings.CACHES = {"default": cache}
    caches["default"].set("seen", "by the cache")
    with closing(RedisBroker(Alias("default", location="cache:default", options=OPTIONS))) as broker:
        broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1")])
        claimed = broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w").messages
        assert ids(claimed) == ["a"]
        caches["default"].clear()
        assert broker.queue.get("a") is None, "it was in another database"


@pytest.mark.parametrize("name", CACHES)
def test_messages_go_through_the_server_of_a_cache(
    settings: Settings, start_redis: Callable[..., Server], name: str
) -> None:
    server = start_redis(requirepass=PASSWORD)
    carries_beside_the_cache(settings, CACHES[name](server))


# django-redis passes CONNECTION_POOL_KWARGS to redis-py, Django all of its OPTIONS, and both read the address too.
TLS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "django-redis": lambda address, tls: {
        "BACKEND": OF_DJANGO_REDIS,
        "LOCATION": address,
        "OPTIONS": {"PASSWORD": "hush-hush", "CONNECTION_POOL_KWARGS": tls},
    },
    "django": lambda address, tls: {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": address,
        "OPTIONS": {"password": "hush-hush", **tls},
    },
    "the address": lambda address, tls: {
        "BACKEND": OF_DJANGO_REDIS,
        "LOCATION": f"{address}?{urlencode(tls)}",
        "OPTIONS": {"PASSWORD": "hush-hush"},
    },
}


@pytest.mark.parametrize("name", TLS)
def test_the_tls_options_of_a_cache_are_used(
    settings: Settings, tls_server: Server, certificates: Path, name: str
) -> None:
    address = f"rediss://127.0.0.1:{tls_server.options['tls_port']}/3"
    client = str(certificates / "client.pem")
    tls = {"ssl_ca_certs": str(certificates / "ca.pem"), "ssl_certfile": client, "ssl_keyfile": client}
    carries_beside_the_cache(settings, TLS[name](address, tls))
    settings.CACHES = {"default": TLS[name](address, tls | {"ssl_ca_certs": str(certificates / "other.pem")})}
    with (
        closing(RedisBroker(Alias("default", location="cache:default"))) as broker,
        pytest.raises(BrokerRefused, match="give the file of its CA as ssl_ca_certs"),
    ):
        broker.open()


@pytest.mark.parametrize("name", ["django-redis", "django"])
def test_a_cache_that_checks_no_certificate_is_used_without_a_check(
    settings: Settings, tls_server: Server, certificates: Path, name: str
) -> None:
    address = f"rediss://127.0.0.1:{tls_server.options['tls_port']}/3"
    client = str(certificates / "client.pem")
    tls: dict[str, Any] = {"ssl_cert_reqs": None, "ssl_certfile": client, "ssl_keyfile": client}
    carries_beside_the_cache(settings, TLS[name](address, tls))


@pytest.mark.parametrize(("store", "lost"), [(None, "all messages;"), (Store(), "the alarms, which workers restore")])
def test_a_worker_is_told_what_a_clear_of_the_cache_costs(
    settings: Settings, redis_server: Server, store: Store | None, lost: str
) -> None:
    settings.CACHES = {"default": {"BACKEND": OF_DJANGO_REDIS, "LOCATION": redis_server.url}}
    with closing(RedisBroker(Alias("default", location="cache:default", store=store))) as broker:
        (warning,) = broker.report().warnings
    assert f"cache.clear() empties the database and so removes {lost}" in warning


@pytest.fixture
def failover() -> Iterator[Failover]:
    """Yield the servers of one program: django-redis keeps its connections to sentinels for the process."""
    binaries = servers.redis_binaries() or servers.missing("redis-server")
    with closing(Failover(binaries[0])) as failover:
        yield failover


def test_messages_go_to_the_primary_that_the_sentinels_of_a_cache_name(settings: Settings, failover: Failover) -> None:
    cache = {
        "BACKEND": OF_DJANGO_REDIS,
        "LOCATION": f"redis://{sentinel.NAME}/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "SENTINELS": [("127.0.0.1", failover.sentinel.port)],
            "SENTINEL_KWARGS": {"password": sentinel.PASSWORD, "protocol": 2},
        },
    }
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    carries_beside_the_cache(settings, cache)
