"""What a worker is told about its Redis at start."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq.brokers.base import ServerReport
from django_delayq.brokers.redis.broker import report_on
from django_delayq.brokers.redis.client import parse_location
from django_delayq.brokers.redis.client.client import connection_to
from django_delayq.brokers.redis.client.errors import broker_error
from django_delayq.core.errors import BrokerUnavailable
from tests.servers import Server, free_port

StartRedis = Callable[..., Server]


def report(url: str) -> ServerReport:
    location = parse_location(url)
    connection = connection_to(location)

    def run(*command: str) -> Any:
        connection.send_command(*command)
        try:
            return connection.read_response()
        except redis.RedisError as error:
            raise broker_error(error, location.shown) from None

    try:
        return report_on(run, location.shown)
    finally:
        connection.disconnect()


def report_from(info: str, config: dict[str, str] | None = None) -> ServerReport:
    """The report on a server that answers INFO with `info`, and CONFIG GET from `config`."""

    def run(command: str, *arguments: str) -> Any:
        if command == "INFO":
            return info.replace("\n", "\r\n").encode()
        if command == "TIME":
            return [b"1700000000", b"123456"]
        value = (config or {}).get(arguments[1])
        return [arguments[1].encode(), value.encode()] if value is not None else []

    return report_on(run, "redis://there")


def test_a_fit_server_has_no_problem_and_says_what_it_is(start_redis: StartRedis) -> None:
    server = start_redis(requirepass="geheim")
    found = report(server.url)
    assert (found.problems, found.warnings) == ([], [])
    assert found.server.startswith(("Redis 6.", "Redis 7.", "Redis 8.", "Valkey "))
    assert str(server.socket) in found.server
    assert "geheim" not in repr(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "loses nothing"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "last second or two"),
        ({"appendonly": "yes", "appendfsync": "no"}, "half a minute"),
        ({"appendonly": "no", "save": "3600 1"}, "snapshots only"),
        ({"appendonly": "no", "save": ""}, "loses every message"),
    ],
)
def test_durability_says_what_a_crash_can_lose(start_redis: StartRedis, options: dict[str, str], said: str) -> None:
    assert said in report(start_redis(**options).url).durability


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_policy_that_evicts_messages_is_refused(start_redis: StartRedis, policy: str) -> None:
    problems = report(start_redis(maxmemory="50mb", maxmemory_policy=policy).url).problems
    assert len(problems) == 1
    assert policy in problems[0]
    assert "noeviction" in problems[0]


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_policy_that_spares_messages_is_silent(start_redis: StartRedis, policy: str) -> None:
    found = report(start_redis(maxmemory="50mb", maxmemory_policy=policy).url)
    assert found.problems + found.warnings == []


def test_a_replica_is_refused_and_its_primary_named(start_redis: StartRedis) -> None:
    port = free_port()
    (problem,) = report(start_redis(replicaof=f"127.0.0.1 {port}").url).problems
    assert f"127.0.0.1:{port}" in problem


def test_a_forbidden_config_is_lived_with(start_redis: StartRedis) -> None:
    server = start_redis(appendonly="yes")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "site", "on", ">pw", "~*", "&*", "+@all", "-config")
    found = report(server.url.replace("unix://", "unix://site:pw@"))
    assert found.problems == []
    assert "if not set otherwise" in found.durability


def test_an_old_server_is_refused_with_its_version() -> None:
    (problem,) = report_from("redis_version:6.0.16\nmaxmemory_policy:noeviction").problems
    assert "6.0.16" in problem
    assert "6.2" in problem


def test_a_server_without_a_version_is_refused() -> None:
    (problem,) = report_from("maxmemory_policy:noeviction").problems
    assert "unknown version" in problem


def test_valkey_is_recognised() -> None:
    found = report_from("redis_version:7.2.4\nvalkey_version:8.1.0\nmaxmemory_policy:noeviction")
    assert found.server == "Valkey 8.1.0 (redis://there)"
    assert found.problems == []


@pytest.mark.parametrize("mode", ["redis_mode", "server_mode"], ids=["redis", "valkey 9"])
def test_a_sentinel_is_refused(mode: str) -> None:
    (problem,) = report_from(f"redis_version:7.2.4\n{mode}:sentinel\nmaxmemory_policy:noeviction").problems
    assert "redis+sentinel://" in problem


def test_an_unknown_policy_is_a_warning() -> None:
    (warning,) = report_from("redis_version:7.0.0").warnings
    assert "allkeys" in warning


def test_a_failed_write_to_the_file_is_a_warning() -> None:
    info = "redis_version:7.0.0\nmaxmemory_policy:noeviction\naof_last_write_status:err"
    (warning,) = report_from(info).warnings
    assert "append" in warning


def test_a_server_that_loads_its_data_is_waited_for_since_it_does_not_know_its_durability_yet() -> None:
    with pytest.raises(BrokerUnavailable, match=r"Redis 7\.2\.0 \(redis://there\) is loading its data"):
        report_from("redis_version:7.2.0\nloading:1\naof_enabled:0\n", {"save": ""})
