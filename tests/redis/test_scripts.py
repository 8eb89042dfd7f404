"""The scripts as they are sent."""

from importlib.resources import files

import pytest

from django_delayq.brokers.redis.shards import load
from tests.brokers.rig import Rig
from tests.servers import Server

LUA = files("django_delayq.brokers.redis") / "lua"
NAMES = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_what_it_takes_and_gives(name: str) -> None:
    head = "".join(line for line in load(name).source.splitlines(keepends=True) if line.startswith("--"))
    assert "KEYS" in head
    assert "ARGV" in head


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_on_this_server_after_its_cache_was_flushed(name: str, redis_server: Server) -> None:
    with redis_server.client() as client:
        assert client.script_load(load(name).source).encode() == load(name).sha.encode()


def test_calls_whose_script_the_server_lost_are_made_again(rig: Rig, redis_server: Server) -> None:
    rig.send("a")
    with redis_server.client() as client:
        client.script_flush()
    rig.send("b", "c")
    assert [message.id for message in rig.claim()] == ["a", "b", "c"]
    assert rig.total("sent") == 3
