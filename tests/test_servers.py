"""The servers that tests start behave as the fault tests need."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.servers import RabbitMQServer, Server, free_port


def test_a_shared_server_is_empty_at_each_test(redis_server: Server) -> None:
    with redis_server.client() as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_data_survive_a_restart_with_appendonly(start_redis: Callable[..., Server]) -> None:
    server = start_redis(appendonly="yes")
    with server.client() as client:
        client.set("kept", "yes")
    server.restart()
    with server.client() as client:
        assert client.get("kept") == b"yes"


def test_a_frozen_server_answers_nothing_until_thawed(start_redis: Callable[..., Server]) -> None:
    server = start_redis()
    server.freeze()
    with redis.Redis.from_url(server.url, socket_timeout=0.1, retry=None) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    server.thaw()
    with server.client() as client:
        assert client.ping()


def test_a_killed_server_refuses_connections(start_redis: Callable[..., Server]) -> None:
    server = start_redis()
    server.kill()
    with server.client() as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_node_of_rabbitmq_starts_with_other_ports_where_one_was_taken_meanwhile(
    start_rabbitmq: Callable[..., RabbitMQServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = iter([free_port(), free_port(), free_port(), other.getsockname()[1]])
        monkeypatch.setattr("tests.servers.rabbitmq.free_port", lambda: next(ports, None) or free_port())
        assert start_rabbitmq().running


def test_a_node_of_rabbitmq_answers_calls_that_meet(rabbitmq_server: RabbitMQServer) -> None:
    with ThreadPoolExecutor(3) as threads:
        said = set(threads.map(rabbitmq_server.run, ["timer:sleep(50)"] * 6))
    assert said == {"{ok, ok}"}
