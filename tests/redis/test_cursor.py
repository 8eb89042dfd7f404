"""A server that loses its alarms loses the cursor; and whose they are."""

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from django_delayq.brokers.base import Alarm, MaintenanceResult
from django_delayq.brokers.redis import RedisBroker, timer
from django_delayq.brokers.redis.client import Operation, client_of, parse_location
from django_delayq.brokers.redis.maintenance import ShardMonitor
from django_delayq.brokers.redis.shards import Keys
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig, redis_rig
from tests.redis.test_lost_replies import ask
from tests.servers import Server

KEYS = Keys("delayq")
PKS = [f"{n}" for n in range(250)]
ALARMS = [Alarm("q", "k", pk) for pk in PKS]


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


def flush(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def test_a_flush_loses_it_with_the_alarms(own_rig: Rig, own_server: Server, other: RedisBroker) -> None:
    assert own_rig.timer.advance_cursor(ALARMS, None, 1_000) == 1_000
    flush(own_server)
    assert own_rig.timer.cursor() is None
    assert own_rig.timer.advance_cursor(ALARMS, 1_000, 2_000) is None, "the alarms of the pages before are gone"
    assert other.timer.cursor() is None


def test_a_restart_that_kept_the_alarms_kept_it(kept_rig: tuple[Server, Rig]) -> None:
    server, rig = kept_rig
    rig.timer.advance_cursor(ALARMS, None, 1_000)
    server.restart()
    assert rig.timer.cursor() == 1_000
    assert len(rig.timer.find_alarms("q", "k", PKS)) == len(PKS)


def test_an_older_snapshot_has_an_older_one(start_redis: Callable[..., Server]) -> None:
    server = start_redis()
    with server.client() as client:
        rig = redis_rig(server.url, client)
        rig.timer.advance_cursor([], None, 1_000)
        client.save()
        rig.timer.advance_cursor(ALARMS, 1_000, 2_000)
        server.kill()
        server.start()
        assert rig.timer.advance_cursor([], 2_000, 3_000) == 1_000, "whose alarms are gone"
        assert rig.timer.find_alarms("q", "k", PKS) == []
        rig.broker.close()


def test_who_dies_on_his_way_leaves_no_cursor_ahead_of_its_alarms(own_rig: Rig, own_server: Server) -> None:
    links = client_of(parse_location(own_server.url))
    own_rig.timer.advance_cursor([], None, 1_000)
    links.run(ask(next(timer._advance_cursor(KEYS, ALARMS, 1_000, 2_000))))  # its first round trip
    links.close()
    assert own_rig.timer.cursor() == 1_000
    assert own_rig.timer.advance_cursor(ALARMS, 1_000, 2_000) == 2_000
    assert len(own_rig.timer.find_alarms("q", "k", PKS)) == len(PKS)


def test_a_server_that_takes_no_more_alarms_gets_no_cursor(own_rig: Rig, own_server: Server) -> None:
    own_rig.timer.advance_cursor([], None, 1_000)
    with own_server.memory_full(), pytest.raises(BrokerUnavailable, match="no memory left"):
        own_rig.timer.advance_cursor(ALARMS, 1_000, 2_000)
    assert own_rig.timer.cursor() == 1_000


def test_an_upkeep_is_one_round_trip_also_the_first(redis_url: str) -> None:
    links = client_of(parse_location(redis_url))
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

    links.run(counted())
    assert trips == 1
    links.close()


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
