"""A server that loses its alarms, also in the middle of a rebuild, and whose they are."""

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from django_delayq.brokers.base import MaintenanceResult
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.client import Client, Operation, parse_location
from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.maintenance import ShardMonitor
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, redis_rig
from tests.servers import Server

LOCK_MS = 60_000
KEYS = Keys("delayq")


@pytest.fixture
def other(own_server: Server) -> Iterator[RedisBroker]:
    """The broker of another process."""
    broker = RedisBroker(Alias("default", location=own_server.url, options=OPTIONS))
    yield broker
    broker.close()


@pytest.fixture
def kept_rig(start_redis: Callable[..., Server]) -> Iterator[tuple[Server, Rig]]:
    """A broker on a server that keeps its data over a restart."""
    server = start_redis(appendonly="yes")
    with server.client() as client:
        rig = redis_rig(server.url, client)
        yield server, rig
        rig.broker.close()


def rebuild(rig: Rig) -> bool:
    return rig.timer.begin_rebuild(LOCK_MS) and rig.timer.end_rebuild()


def flush(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def test_two_processes_do_not_rebuild_at_once(own_rig: Rig, other: RedisBroker) -> None:
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    assert not other.timer.begin_rebuild(LOCK_MS)
    assert own_rig.timer.end_rebuild()
    assert not other.queue.maintain(lease_ms=LEASE_MS).alarms_lost


def test_a_flush_loses_the_alarms(own_rig: Rig, own_server: Server) -> None:
    assert rebuild(own_rig)
    flush(own_server)
    assert own_rig.alarms_lost()
    assert rebuild(own_rig)
    assert not own_rig.alarms_lost()


def test_a_rebuild_that_was_flushed_on_its_way_does_not_count(own_rig: Rig, own_server: Server) -> None:
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    flush(own_server)
    assert not own_rig.timer.end_rebuild()
    assert own_rig.alarms_lost()


def test_who_holds_on_is_told_of_a_flush(own_rig: Rig, own_server: Server, other: RedisBroker) -> None:
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    flush(own_server)
    assert other.timer.begin_rebuild(LOCK_MS)
    assert not own_rig.timer.begin_rebuild(LOCK_MS)
    assert not own_rig.timer.end_rebuild()
    assert other.timer.end_rebuild()


def test_a_restart_may_have_lost_alarms_also_when_it_kept_its_data(kept_rig: tuple[Server, Rig]) -> None:
    server, rig = kept_rig
    assert rebuild(rig)
    server.restart()
    assert rig.alarms_lost()
    assert rebuild(rig)
    assert not rig.alarms_lost()


def test_a_rebuild_that_a_restart_fell_into_does_not_count(kept_rig: tuple[Server, Rig]) -> None:
    server, rig = kept_rig
    assert rig.timer.begin_rebuild(LOCK_MS)
    server.restart()
    assert not rig.timer.end_rebuild()
    assert rig.alarms_lost()
    assert rebuild(rig)  # the lock that came back with the data binds nobody


def test_an_older_snapshot_has_lost_alarms(start_redis: Callable[..., Server]) -> None:
    server = start_redis()
    with server.client() as client:
        rig = redis_rig(server.url, client)
        assert rebuild(rig)
        client.save()
        server.kill()
        server.start()
        assert client.hget(KEYS.epoch, "rebuilt") is not None  # so that is not what tells
        assert rig.alarms_lost()
        rig.broker.close()


def test_a_server_that_took_another_place_in_its_replication_has_lost_alarms(own_rig: Rig, own_server: Server) -> None:
    assert rebuild(own_rig)
    with own_server.read_only():
        pass
    assert own_rig.alarms_lost()


def test_an_upkeep_is_one_round_trip_also_the_first(redis_url: str) -> None:
    links = Client(parse_location(redis_url))
    trips = 0

    def counted() -> Operation[MaintenanceResult]:
        nonlocal trips
        maintenance = ShardMonitor(KEYS, links).maintain(OPTIONS, LEASE_MS)
        calls = next(maintenance)
        while True:
            trips += 1
            replies = yield calls
            try:
                calls = maintenance.send(replies)
            except StopIteration as stop:
                return cast(MaintenanceResult, stop.value)

    assert links.run(counted()).alarms_lost
    assert trips == 1
    links.close()


def test_a_full_server_refuses_to_begin_and_lets_who_began_end(own_rig: Rig, own_server: Server) -> None:
    with own_server.memory_full(), pytest.raises(BrokerUnavailable, match="no memory left"):
        own_rig.timer.begin_rebuild(LOCK_MS)
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    with own_server.memory_full():
        assert own_rig.timer.begin_rebuild(LOCK_MS)
        assert own_rig.timer.end_rebuild()
    assert not own_rig.alarms_lost()


def test_who_could_not_reach_the_server_still_holds_the_lock(own_rig: Rig, own_server: Server) -> None:
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    own_server.freeze()
    with pytest.raises(BrokerUnavailable):
        own_rig.timer.end_rebuild()
    own_server.thaw()
    assert own_rig.timer.begin_rebuild(LOCK_MS)
    assert own_rig.timer.end_rebuild()


def test_the_first_store_that_is_named_stays_the_owner_until_the_data_are_lost(
    own_rig: Rig, own_server: Server, other: RedisBroker
) -> None:
    assert own_rig.timer.owner() == ""
    assert own_rig.timer.owner("default 1") == "default 1"
    assert (other.timer.owner("default 2"), other.timer.owner()) == ("default 1", "default 1")
    flush(own_server)
    assert other.timer.owner("default 2") == "default 2"
    assert own_rig.timer.owner("default 1") == "default 2"


def test_a_full_server_keeps_nobody_from_starting(own_rig: Rig, own_server: Server) -> None:
    with own_server.memory_full():
        assert own_rig.timer.owner("default 1") == "default 1"
    assert own_rig.timer.owner() == ""


def test_a_server_that_is_away_has_no_owner_to_tell(own_rig: Rig, own_server: Server) -> None:
    own_rig.broker.open()
    own_server.kill()
    with pytest.raises(BrokerUnavailable):
        own_rig.timer.owner("default 1")
