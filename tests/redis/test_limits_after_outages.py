"""Permits that Redis has forgotten, while what runs goes on: nobody takes their place before their holders renew."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from django_delayq.brokers.base import PermitRequest
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig
from tests.servers import Server

FIRST, SECOND, THIRD = (PermitRequest("k", "", token, 1) for token in (1, 2, 3))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what this process takes for its own time, in seconds."""
    now = [1_000.0]
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.Contact.clock", staticmethod(lambda: now[0]))
    return now


@pytest.fixture
def worker(own_server: Server) -> Iterator[RedisBroker]:
    """The broker of another worker, which is in touch with Redis."""
    with closing(RedisBroker(Alias("default", location=own_server.url, options=OPTIONS))) as broker:
        broker.queue.maintain(lease_ms=LEASE_MS)
        yield broker


def hang(server: Server, *brokers: RedisBroker) -> None:
    server.freeze()
    for broker in brokers:
        with pytest.raises(BrokerUnavailable):
            broker.queue.maintain(lease_ms=LEASE_MS)
    server.thaw()


def lose_all(server: Server, *brokers: RedisBroker) -> None:
    server.kill()
    server.start()


def be_away_a_moment(server: Server, *brokers: RedisBroker) -> None:
    """So short that no call fails: it is made again."""
    lose_all(server)
    for broker in brokers:
        broker.queue.maintain(lease_ms=LEASE_MS)


@pytest.fixture(params=[hang, lose_all, be_away_a_moment], ids=["hangs", "loses all", "is away a moment"])
def outage(request: pytest.FixtureRequest, own_server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what happens to the server of these brokers, for longer than a lease."""

    def outage(rig: Rig, *brokers: RedisBroker) -> None:
        with monkeypatch.context() as patch:
            if request.param is hang:  # waited for a tenth of a second, not two
                patch.setattr("django_delayq.brokers.redis.client.client.BUDGET", 0.1)
            request.param(own_server, *brokers)
        rig.advance(LEASE_MS)

    return outage


def test_one_that_runs_is_not_joined_by_another(
    own_rig: Rig, worker: RedisBroker, outage: Callable[..., None], clock: list[float]
) -> None:
    holder = own_rig.broker
    assert holder.limiter.acquire([FIRST], lease_ms=LEASE_MS) == [None]
    outage(own_rig, worker)
    (refused,) = worker.limiter.acquire([SECOND], lease_ms=LEASE_MS)
    assert refused is not None
    assert 0 < refused.wait_ms <= LEASE_MS
    holder.limiter.renew([FIRST], lease_ms=LEASE_MS)
    clock[0] += LEASE_MS / 1000
    assert worker.limiter.acquire([SECOND], lease_ms=LEASE_MS) != [None]
    holder.limiter.release([FIRST])
    assert worker.limiter.acquire([SECOND], lease_ms=LEASE_MS) == [None]


def test_an_idle_connection_that_was_closed_is_no_outage(own_server: Server, worker: RedisBroker) -> None:
    with own_server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert worker.limiter.acquire([FIRST], lease_ms=LEASE_MS) == [None]


def test_what_is_put_off_keeps_no_permit_and_comes_again_at_different_times(
    own_server: Server, worker: RedisBroker, clock: list[float]
) -> None:
    lose_all(own_server)
    refusals = worker.limiter.acquire([replace(ask, most=2) for ask in (FIRST, SECOND)], lease_ms=LEASE_MS)
    assert all(refusal is not None and refusal.of_key for refusal in refusals)
    assert len({refusal and refusal.wait_ms for refusal in refusals}) == 2
    clock[0] += LEASE_MS / 1000
    assert worker.limiter.acquire([THIRD], lease_ms=LEASE_MS) == [None]


def test_a_rate_waits_for_nobody(own_server: Server, worker: RedisBroker) -> None:
    lose_all(own_server)
    assert worker.limiter.acquire([PermitRequest("k", "", 1, None, 1_000)], lease_ms=LEASE_MS) == [None]
