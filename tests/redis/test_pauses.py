"""What pauses and lanes leave in Redis."""

from contextlib import closing

import pytest
import redis

from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.support.validation import MAX_NAME
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


def test_a_lane_with_a_name_that_is_too_long_for_a_queue_is_nobodys(rig: Rig, client: redis.Redis) -> None:
    rig.send("a", queue="mail^5")
    client.hset(META, "lane:" + "x" * MAX_NAME + "^5", "")
    assert set(rig.broker.presence.lanes()) == {"mail^5"}


def test_a_heartbeat_removes_a_lane_that_is_too_long_to_be_ours_and_no_other(rig: Rig, client: redis.Redis) -> None:
    lane = "ü" * (MAX_NAME - 2) + "^5"
    rig.send("a", queue=lane)
    client.hset(META, f"lane:{'x' * 4 * MAX_NAME}^5", "")
    client.hset(META, "lane:mail^5", "x" * 4 * MAX_NAME)
    rig.broker.presence.heartbeat(WorkerInfo("w", [], [], 0, 0))
    assert set(client.hkeys(META)) == {b"layout", b"shards", b"worker:w", f"lane:{lane}".encode()}


def test_with_a_store_a_heartbeat_tells_of_no_pause_and_no_lane_in_redis(redis_url: str, client: redis.Redis) -> None:
    with closing(RedisBroker(Alias("default", location=redis_url))) as broker:
        client.hset(META, mapping={"pause:mail:": b"1\x1f\x1fforged", "lane:mail^5": ""})
        heard = broker.presence.heartbeat(WorkerInfo("w", [], [], 0, 0))
    assert (heard.pauses, heard.lanes) == (None, None)
    assert [worker.name for worker in heard.workers or ()] == ["w"]
