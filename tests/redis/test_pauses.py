"""What pauses leave in Redis."""

import pytest
import redis

from django_delayq.brokers.base import Pause, WorkerInfo
from tests.brokers.rig import Rig
from tests.servers import Server

META = "{delayq:meta}"
HOUR = 3_600_000


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    return redis_server.client()


def test_a_pause_that_has_ended_is_forgotten_with_the_next_heartbeat(rig: Rig, client: redis.Redis) -> None:
    rig.broker.presence.pause(Pause("mail", None, "x", rig.now_us() // 1_000 + HOUR))
    rig.broker.presence.pause(Pause("text", None, "y"))
    rig.advance(HOUR)
    assert sorted(client.hkeys(META)) == [b"layout", b"pause:mail:", b"pause:text:", b"shards"]
    rig.broker.presence.heartbeat(WorkerInfo("w", [], [], 0, 0))
    assert sorted(client.hkeys(META)) == [b"layout", b"pause:text:", b"shards", b"worker:w"]


def test_a_pause_that_was_resumed_leaves_nothing(rig: Rig, client: redis.Redis) -> None:
    rig.broker.presence.pause(Pause("mail", "order.close", "x"))
    assert rig.broker.presence.resume("mail", "order.close")
    assert sorted(client.hkeys(META)) == [b"layout", b"shards"]
