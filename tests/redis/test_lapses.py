"""A lease that ran out: after a look it is decided what becomes of its message, and written where it is so still."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import redis

from django_delayq.brokers.base import Claimed, SettleAction
from django_delayq.brokers.redis.client import Client, Operation
from django_delayq.brokers.redis.maintenance import ShardMonitor
from django_delayq.brokers.redis.shards import Keys
from django_delayq.core.message import State
from django_delayq.core.requests import MaintenanceResult
from django_delayq.core.transitions import LAPSED_AT_MOST_ONCE, UNREADABLE
from tests.brokers.rig import LEASE_MS, OPTIONS, Rig
from tests.servers import Server

R = TypeVar("R")
KEYS = Keys("delayq")


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    return redis_server.client()


def after_the_look(operation: Operation[R], meanwhile: Callable[[], object], calls_of_each: list[int]) -> Operation[R]:
    """The operation, between whose first and second round trip something else is done; counts the calls of each."""
    try:
        calls = next(operation)
        while True:
            calls_of_each.append(len(calls))
            replies = yield calls
            if len(calls_of_each) == 1:
                meanwhile()
            calls = operation.send(replies)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def maintain(links: Client, meanwhile: Callable[[], object] = lambda: None) -> tuple[MaintenanceResult, list[int]]:
    """One maintenance of the shard, and how many calls each of its round trips made."""
    calls_of_each: list[int] = []
    operation = ShardMonitor(KEYS, links).maintain(OPTIONS, LEASE_MS)
    return links.run(after_the_look(operation, meanwhile, calls_of_each)), calls_of_each


MEANWHILE: dict[str, Callable[[Rig, Claimed], object]] = {
    "renewed": lambda rig, held: rig.broker.queue.renew([held], LEASE_MS),
    "interrupted": lambda rig, held: rig.settle(held, SettleAction.INTERRUPT),
}


@pytest.mark.parametrize("move", MEANWHILE)
@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_lease_that_its_holder_makes_last_longer_after_the_look_is_left_to_it(
    rig: Rig, links: Client, move: str, at_most_once: bool
) -> None:
    rig.send("a", at_most_once=at_most_once)
    held = rig.claim_one()
    rig.advance(LEASE_MS)
    upkept, calls_of_each = maintain(links, lambda: MEANWHILE[move](rig, held))
    assert (upkept.reclaimed, upkept.buried, calls_of_each) == (0, [], [1, 1])
    info = rig.get("a")
    assert (info.state, info.crashes, info.holder) == (State.RUNNING, 0, "w")
    assert rig.settle(held, SettleAction.FINISH)


def test_what_its_holder_ends_after_the_look_has_ended(rig: Rig, links: Client) -> None:
    rig.send("a", "b")
    first, second = rig.claim()
    rig.advance(LEASE_MS)

    def end() -> None:
        assert rig.settle(first, SettleAction.FINISH)
        assert rig.settle(second, SettleAction.RETRY, error="x")

    upkept, _ = maintain(links, end)
    assert (upkept.reclaimed, rig.total("reclaimed"), rig.broker.queue.get("a")) == (0, 0, None)
    info = rig.get("b")
    assert (info.failures, info.crashes) == (1, 0)
    assert rig.broker.queue.audit().differences == []


def test_of_two_workers_that_look_at_once_one_counts_the_crash(rig: Rig, links: Client) -> None:
    rig.send("a", at_most_once=True)
    rig.send("b")
    rig.claim()
    rig.advance(LEASE_MS)
    others: list[MaintenanceResult] = []
    upkept, _ = maintain(links, lambda: others.append(maintain(links)[0]))
    assert [one.reclaimed for one in (upkept, *others)] == [0, 1]
    assert [len(one.buried) for one in (upkept, *others)] == [0, 1]
    assert (rig.get("b").crashes, rig.total("reclaimed"), rig.total("buried")) == (1, 1, 1)


def test_what_is_claimed_again_after_the_look_runs_on(rig: Rig, links: Client) -> None:
    rig.send("a")
    rig.claim_one()
    rig.advance(LEASE_MS)
    again: list[Claimed] = []

    def claim_again() -> None:
        maintain(links)
        again.append(rig.claim_one())
        rig.advance(LEASE_MS)  # this one has run out too

    assert maintain(links, claim_again)[0].reclaimed == 0
    assert rig.get("a").crashes == 1
    assert rig.settle(again[0], SettleAction.FINISH)


def test_leases_that_ran_out_cost_one_round_trip_more_whatever_their_sets(rig: Rig, links: Client) -> None:
    assert maintain(links)[1] == [1]
    for key in ("k1", "k2", "k3"):
        rig.send(f"of {key}", f"other of {key}", key=key)
        rig.claim(key=key)
    rig.advance(LEASE_MS)
    upkept, calls_of_each = maintain(links)
    assert (upkept.reclaimed, calls_of_each) == (6, [1, 3])


def test_a_suspect_is_told_by_the_maintenance_that_makes_it_one(rig: Rig, links: Client) -> None:
    rig.send("a")
    rig.crash(times=1)
    rig.claim_one()
    rig.advance(LEASE_MS)
    assert maintain(links)[0].suspects_due == 1
    assert maintain(links)[0].suspects_due == 1


def test_what_is_buried_says_what_the_transitions_say(rig: Rig, links: Client, client: redis.Redis) -> None:
    rig.send("once", at_most_once=True)
    client.hset(KEYS.msg, "odd", b"\x00not ours")
    client.zadd(KEYS.wait("q:k"), {"odd": 1})
    assert len(rig.claim()) == 2
    rig.advance(LEASE_MS)
    told = {info.id: info.error for info in maintain(links)[0].buried}
    assert told == {"once": LAPSED_AT_MOST_ONCE, "odd": UNREADABLE}
    assert {info.id: info.error for info in rig.broker.queue.failed(9)} == told


@pytest.mark.parametrize("score", ["-inf", "-7", "1.5"])
def test_a_lease_whose_end_someone_else_wrote_runs_out(
    rig: Rig, links: Client, client: redis.Redis, score: str
) -> None:
    rig.send("a")
    rig.claim_one()
    client.zadd(KEYS.running, {"a": score})
    assert maintain(links)[0].reclaimed == 1
    assert rig.get("a").state is State.READY


@pytest.mark.parametrize("state", [None, b"", b"\xff\x1fgarbage", b"9" * 5_000 + b"\x1f0\x1f0\x1f\x1f\x1f"])
def test_a_state_that_is_not_ours_stops_no_maintain(
    rig: Rig, links: Client, client: redis.Redis, state: bytes | None
) -> None:
    rig.send("a", "odd")
    rig.claim()
    client.hdel(KEYS.state, "odd")
    if state is not None:
        client.hset(KEYS.state, "odd", state)
    rig.advance(LEASE_MS)
    is_endless = len(state or b"") > 5_000  # no token has so many digits: its lease is nobody's
    assert maintain(links)[0].reclaimed == (1 if is_endless else 2)
    assert rig.get("a").state is State.READY
