"""How often a put, and a claim of many sets, asks the server."""

from typing import TypeVar

from django_delayq.brokers.base import BATCH, ClaimRequest, Header, NewMessage, pages
from django_delayq.brokers.redis import RedisBroker, enqueue
from django_delayq.brokers.redis.claim import MOST_DUE, Claimant
from django_delayq.brokers.redis.client import Client, Operation
from django_delayq.brokers.redis.shards import CallCells, Keys
from tests.brokers.rig import LEASE_MS, Rig, ids

R = TypeVar("R")


def counted(operation: Operation[R], calls_of_each: list[int]) -> Operation[R]:
    """The operation; notes how many calls each of its round trips makes."""
    try:
        calls = next(operation)
        while True:
            calls_of_each.append(len(calls))
            calls = operation.send((yield calls))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def test_neighbours_whose_ids_wait_in_several_other_sets_are_found_in_one_more(rig: Rig, links: Client) -> None:
    for key in ("one", "two", "three"):
        rig.send(f"in {key}", key=key)
    header = Header("q", "k")
    batch = [NewMessage(id, header, b"1") for id in ("in one", "in two", "new", "in three")]
    round_trips: list[int] = []
    placed = links.run(counted(enqueue.enqueue(Keys("delayq"), CallCells(), batch, "replace"), round_trips))
    assert round_trips == [1, 3]
    assert [answer and answer.created for answer in placed] == [False, False, True, False]
    assert {rig.get(one.id).header.key for one in batch} == {"k"}


def test_a_claim_of_more_sets_than_a_call_names_looks_at_all_of_them_in_one(rig: Rig, links: Client) -> None:
    assert isinstance(rig.broker, RedisBroker)
    rig.send("a", key="k7")
    wants = [ClaimRequest("q", f"k{n}", 1) for n in range(10 * BATCH)]
    round_trips: list[int] = []
    claims = links.run(counted(rig.broker._access.planner.claim(wants, Claimant("w", LEASE_MS)), round_trips))
    assert round_trips == [10, 1]
    assert ids(claims.messages) == ["a"]


def test_what_is_due_of_very_many_pairs_is_one_call(rig: Rig, links: Client) -> None:
    assert isinstance(rig.broker, RedisBroker)
    rig.send("a", key="k7")
    round_trips: list[int] = []
    pairs = [("q", f"k{n}") for n in range(10 * BATCH)]
    due = links.run(counted(rig.broker._access.planner.due_pairs(pairs), round_trips))
    assert round_trips == [1]
    assert list(due) == [("q", "k7")]


def test_where_more_sets_have_something_due_than_a_look_names_any_may(rig: Rig) -> None:
    puts_ = [NewMessage(f"{n}", Header("other", f"k{n}"), b"1", at_ms=0) for n in range(MOST_DUE)]
    for page in pages([*puts_, NewMessage("last", Header("q", "k"), b"1")], BATCH):
        rig.broker.queue.enqueue(page)
    rig.advance(1)  # due times are rounded up
    asked = [("q", "k"), ("q", "none")]
    assert list(rig.broker.queue.due_pairs(asked)) == asked
