"""LOCATION: every form gives a connection, a wrong one an error with the fix, and a password is never shown."""

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from django_delayq.brokers.redis.client import Location, hide_password, parse_location
from django_delayq.brokers.redis.client.client import async_connection_to, connection_to
from tests.servers import Server, free_port

SECRET = "s3cr3t"


def ping(location: Location) -> object:
    connection = connection_to(location)
    try:
        connection.send_command("PING")
        return connection.read_response()
    finally:
        connection.disconnect()


async def aping(location: Location) -> object:
    connection = async_connection_to(location)
    try:
        await connection.send_command("PING")
        return await connection.read_response()
    finally:
        await connection.disconnect()


@pytest.fixture
def locked_server(start_redis: Callable[..., Server]) -> Server:
    """A server that asks for a password, on TCP too."""
    return start_redis(requirepass=SECRET, port=free_port(), bind="127.0.0.1")


@pytest.mark.parametrize("where", ["url", "tcp_url"])
def test_a_url_reaches_its_server_both_ways(locked_server: Server, where: str) -> None:
    location = parse_location(getattr(locked_server, where))
    assert ping(location) == b"PONG"
    assert asyncio.run(aping(location)) == b"PONG"


def test_the_database_of_a_url_is_selected(redis_server: Server) -> None:
    connection = connection_to(parse_location(redis_server.url.replace("db=0", "db=3")))
    connection.send_command("SET", "in-3", "yes")
    connection.read_response()
    connection.disconnect()
    with redis.Redis(unix_socket_path=str(redis_server.socket), db=3) as client:
        assert client.get("in-3") == b"yes"


def test_a_connection_names_itself_and_never_repeats(redis_url: str) -> None:
    connection = connection_to(parse_location(redis_url))
    connection.send_command("CLIENT", "GETNAME")
    assert connection.read_response() == b"delayq"
    assert connection.retry._retries == 0
    assert connection.retry_on_error == []
    assert connection.health_check_interval == 0
    assert connection.protocol == 2
    connection.disconnect()


def test_an_async_connection_never_repeats(redis_url: str) -> None:
    connection = async_connection_to(parse_location(redis_url))
    assert connection.retry._retries == 0
    assert connection.retry_on_error == []
    assert connection.health_check_interval == 0
    assert connection.protocol == 2


def test_the_time_out_holds_for_connecting_and_for_replies(start_redis: Callable[..., Server]) -> None:
    server = start_redis()
    server.freeze()
    connection = connection_to(parse_location(server.url), timeout=0.05)
    with pytest.raises(redis.TimeoutError):
        connection.connect()
    server.thaw()
    assert isinstance(connection, UnixDomainSocketConnection)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.05, 0.05)


def test_tls_is_checked_unless_told_otherwise() -> None:
    connection = connection_to(parse_location("rediss://there:6380/0"))
    assert isinstance(connection, SSLConnection)
    assert (connection.cert_reqs.name, connection.check_hostname) == ("CERT_REQUIRED", True)
    loose = connection_to(parse_location("rediss://there:6380/0?ssl_cert_reqs=none"))
    assert isinstance(loose, SSLConnection)
    assert (loose.cert_reqs.name, loose.check_hostname) == ("CERT_NONE", False)
    named = connection_to(parse_location("rediss://there:6380/0?ssl_check_hostname=False"))
    assert isinstance(named, SSLConnection)
    assert not named.check_hostname


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:s3cr3t@h/0", "redis://:***@h/0"),
        ("redis://site:s3cr3t@h/0", "redis://site:***@h/0"),
        ("redis://s3cr3t@h/0", "redis://***@h/0"),
        ("redis://site:s3c@s3cr3t@h/0", "redis://site:***@h/0"),
        ("redis://:s3c/s3cr3t@h/0", "redis://:***@h/0"),
        ("redis://s3c/s3cr3t@h/0", "redis://***@h/0"),
        ("redis:site:s3cr3t@h/0", "redis:***@h/0"),
        (":s3cr3t@h/0", ":***@h/0"),
        ("unix://:s3cr3t@/run/r.sock", "unix://:***@/run/r.sock"),
        ("unix:///run/a@b.sock", "unix:///run/a@b.sock"),
        ("redis://h/0?password=s3cr3t&db=1", "redis://h/0?password=***&db=1"),
        ("rediss://h/0?db=1&ssl_password=s3cr3t", "rediss://h/0?db=1&ssl_password=***"),
        ("redis://h/0?pasword=s3cr3t&db=1", "redis://h/0?pasword=***&db=1"),
        ("redis://h/0?Password=s3cr3t", "redis://h/0?Password=***"),
        ("unix:///run/r.sock?auth=s3cr3t", "unix:///run/r.sock?auth=***"),
        ("redis://h/0?password=s3c&s3cr3t", "redis://h/0?password=***&***"),
        ("rediss://h/0?ssl_ca_certs=/ca.pem&username=site", "rediss://h/0?ssl_ca_certs=/ca.pem&username=site"),
        ("redis://h/0?", "redis://h/0?"),
        ("embedded:///srv/a@b", "embedded:///srv/a@b"),
        ("cache:default", "cache:default"),
    ],
)
def test_a_shown_location_has_no_secret(location: str, shown: str) -> None:
    assert hide_password(location) == shown


@pytest.mark.parametrize(
    ("location", "fix"),
    [
        ("127.0.0.1:6379", "redis://HOST:PORT/DB"),
        ("http://:s3cr3t@h", "redis://HOST:PORT/DB"),
        ("redis+cluster://:s3cr3t@h/sessions", "redis://HOST:PORT/DB"),
        ("redis://:s3cr3t@h:123456/0", "redis://HOST:PORT/DB"),
        ("redis://:s3cr3t/x@h/0", "percent-encoded"),
        ("redis://:12?s3cr3t=x@h/0", "percent-encoded"),
        ("redis://:12#s3cr3t@h/0", "percent-encoded"),
        ("redis://:s3cr3t@h/sessions", "the number of a database"),
        ("redis://:s3cr3t@h?db=-1", "0 or more"),
        ("redis://:s3cr3t@h?db=one", "redis://HOST:PORT/DB"),
        ("redis://:s3cr3t@h?socket_timeout=3", "'socket_timeout'"),
        ("redis://:s3cr3t@h?ssl_cert_reqs=none", "'ssl_cert_reqs'"),
        ("redis://h/0?pasword=s3cr3t", "'pasword'"),
        ("redis://h/0?auth=s3cr3t", "'auth'"),
        ("redis://h/0?password=12&s3cr3t", "percent-encoded"),
        ("unix://run/r.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("", "redis://HOST:PORT/DB"),
        (None, "redis://HOST:PORT/DB"),
        (6379, "redis://HOST:PORT/DB"),
    ],
)
def test_a_wrong_location_names_value_and_fix_without_the_secret(location: object, fix: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="LOCATION") as raised:
        parse_location(location)
    assert fix in str(raised.value)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_no_error_of_a_connection_shows_the_password(locked_server: Server) -> None:
    wrong = parse_location(f"redis://site:{SECRET}@127.0.0.1:{locked_server.options['port']}/0")
    with pytest.raises(redis.RedisError) as refused:
        ping(wrong)
    with pytest.raises(redis.RedisError) as refused_async:
        asyncio.run(aping(wrong))
    locked_server.kill()
    with pytest.raises(redis.ConnectionError) as away:
        ping(wrong)
    for error in (refused.value, refused_async.value, away.value):
        assert SECRET not in "".join(traceback.format_exception(error)) + repr(error)


def test_no_repr_shows_the_password() -> None:
    location = parse_location(f"redis://site:{SECRET}@h/0?password={SECRET}")
    assert SECRET not in repr(location) + repr(connection_to(location))


@pytest.mark.parametrize(
    "cache",
    [
        {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "rediss://h:6380/2",
            "OPTIONS": {
                "PASSWORD": SECRET,
                "SOCKET_TIMEOUT": 9,
                "CONNECTION_POOL_KWARGS": {"ssl_ca_certs": "ca.pem", "max_connections": 3, "health_check_interval": 9},
            },
        },
        {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": ["rediss://h:6380/2", "rediss://replica:6380/2"],
            "OPTIONS": {"password": SECRET, "ssl_ca_certs": "ca.pem", "health_check_interval": 9},
        },
    ],
    ids=["django-redis", "django"],
)
def test_a_cache_gives_its_address_login_and_tls_only(
    settings: Settings, cache: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").touch()
    settings.CACHES = {"default": cache}
    location = parse_location("cache:default")
    connection = connection_to(location)
    assert isinstance(connection, SSLConnection)
    assert (connection.host, connection.port, connection.db) == ("h", 6380, 2)
    assert (connection.password, connection.ca_certs) == (SECRET, "ca.pem")
    assert connection.health_check_interval == 0
    assert location.shown == "cache:default (rediss://h:6380/2)"
    assert SECRET not in repr(location)


def test_tls_options_of_a_cache_without_tls_are_left_out(settings: Settings) -> None:
    options = {"ssl_cert_reqs": None, "ssl_ca_certs": "ca.pem", "db": 4}
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "redis://h",
            "OPTIONS": options,
        }
    }
    connection = connection_to(parse_location("cache:default"))
    assert type(connection) is Connection
    assert connection.db == 4


def test_a_shared_cache_is_known_to_be_one(settings: Settings) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///run/r.sock?db=1"}}
    location = parse_location("cache:default")
    assert isinstance(connection_to(location), UnixDomainSocketConnection)
    assert location.cache == "cache:default"
    assert parse_location("redis://h").cache == ""


@pytest.mark.parametrize(
    ("cache", "fix"),
    [
        (None, "it has: other"),
        ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "locmem"),
        (
            {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://m/0", "OPTIONS": {"SENTINELS": []}},
            "a list of (host, port)",
        ),
        (
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": "redis:///0",
                "OPTIONS": {"SENTINELS": [("h", 1)]},
            },
            "the primary's name",
        ),
        ({"BACKEND": "nowhere.Cache"}, "nowhere.Cache"),
        ({"BACKEND": "django_redis.cache.RedisCache"}, "redis://HOST:PORT/DB"),
    ],
    ids=["unknown alias", "no Redis", "no sentinel", "no primary", "no class", "no address"],
)
def test_a_cache_that_is_no_single_redis_is_refused(
    settings: Settings, cache: dict[str, object] | None, fix: str
) -> None:
    other = {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
    settings.CACHES = {"other": other} if cache is None else {"other": other, "default": cache}
    with pytest.raises(ImproperlyConfigured, match="cache:default") as raised:
        parse_location("cache:default")
    assert fix in str(raised.value)


@pytest.mark.parametrize(
    ("location", "directory"),
    [("embedded://", "/srv/site/var/delayq"), ("embedded://data/q", "/srv/site/data/q"), ("embedded:///data", "/data")],
)
def test_an_embedded_directory_is_relative_to_base_dir(settings: Settings, location: str, directory: str) -> None:
    settings.BASE_DIR = "/srv/site"
    assert parse_location(location).shown == f"embedded://{directory}"


def test_a_relative_embedded_directory_needs_base_dir(settings: Settings) -> None:
    assert not hasattr(settings, "BASE_DIR")
    with pytest.raises(ImproperlyConfigured, match="set BASE_DIR"):
        parse_location("embedded://")
    assert parse_location("embedded:///data").shown == "embedded:///data"
