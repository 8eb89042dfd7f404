"""Claims: never early, in order, bounded, and one lease at a time."""

import threading

import pytest

from django_delayq.brokers.base import BATCH, ClaimRequest, Header, NewMessage, SettleAction
from django_delayq.core.message import State
from tests.brokers.conftest import REDIS, SHARDED, WITHOUT_STORE, name
from tests.brokers.rig import LEASE_MS, Rig, ids, memory_rig
from tests.scale import scaled

MINUTE = 60_000


def test_never_early_to_the_millisecond_by_a_clock_in_hand() -> None:
    rig = memory_rig()
    rig.send("a", delay_ms=1_000)
    rig.advance(999)
    assert rig.claim() == []
    rig.advance(1)
    assert ids(rig.claim()) == ["a"]


def test_due_times_are_rounded_up(rig: Rig) -> None:
    for n in range(30):  # rounded down, three of four would be early by a part of a millisecond
        before_us = rig.now_us()
        (placed,) = rig.send(f"{n}", delay_ms=n)
        assert placed.due_ms * 1000 >= before_us + n * 1000


def test_what_is_not_due_is_not_given(rig: Rig) -> None:
    rig.send("later", delay_ms=MINUTE)
    assert rig.claim() == []
    rig.advance(MINUTE - 10_000)
    assert rig.claim() == []
    rig.advance(10_000)
    assert ids(rig.claim()) == ["later"]


def test_earliest_due_first_whatever_the_order_of_sending(rig: Rig) -> None:
    for minutes in (5, 1, 4, 2, 3):
        rig.send(f"{minutes}", delay_ms=minutes * MINUTE)
    rig.advance(6 * MINUTE)
    assert [ids(rig.claim(2)) for _ in range(3)] == [["1", "2"], ["3", "4"], ["5"]]


def test_at_most_what_is_wanted_of_each_set(rig: Rig) -> None:
    for key in ("a", "b", "c"):
        rig.send(*(f"{key}{n}" for n in range(3)), key=key)
    wants = [ClaimRequest("q", "a", 2), ClaimRequest("q", "b", 1), ClaimRequest("q", "none", 5)]
    claims = rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
    assert sorted(id[0] for id in ids(claims.messages)) == ["a", "a", "b"]
    assert claims.more_available


def test_a_look_tells_of_which_pairs_anything_is_due_that_are_asked_for(rig: Rig) -> None:
    rig.send("a", key="due")
    rig.send("b", key="taken")
    assert ids(rig.claim(key="taken")) == ["b"]
    rig.send("c", key="later", delay_ms=MINUTE)
    rig.send("d", key="not asked for")
    asked = [("q", key) for key in ("due", "taken", "later", "none")]
    due = list(rig.broker.queue.due_pairs(asked))
    assert due == [("q", "due")]
    rig.advance(MINUTE)
    assert ("q", "later") in rig.broker.queue.due_pairs(asked)


def once(n: int) -> NewMessage:
    return NewMessage(f"once-{n}", Header("q", "k", at_most_once=True), b"1", at_ms=n)


def plain(n: int) -> NewMessage:
    return NewMessage(f"plain-{n}", Header("q", "k"), b"1", at_ms=n)


def test_what_must_not_start_twice_is_given_only_where_it_would_start_at_once(rig: Rig) -> None:
    in_order = [once, plain, plain, plain, once, plain]
    for n, put in enumerate(in_order):  # one at a time: the past means now
        rig.broker.queue.enqueue([put(n)])
        rig.advance(1)
    claimed = rig.broker.queue.claim([ClaimRequest("q", "k", 100, idle_slots=1)], lease_ms=LEASE_MS, worker="w")
    assert ids(claimed.messages)[:4] == ["once-0", "plain-1", "plain-2", "plain-3"]
    rig.advance(1_000)  # for a store, which looks again at what it passed over
    none_free = rig.broker.queue.claim([ClaimRequest("q", "k", 1, idle_slots=0)], lease_ms=LEASE_MS, worker="w")
    assert none_free.messages == []
    assert rig.get("once-4").state is State.READY
    rig.advance(1_000)
    free = rig.broker.queue.claim([ClaimRequest("q", "k", 100, idle_slots=2)], lease_ms=LEASE_MS, worker="w")
    assert ids(free.messages)[0] == "once-4"
    assert not free.more_available


def test_each_set_has_its_own_slots_for_what_must_not_start_twice(rig: Rig) -> None:
    for key in ("a", "b", "c"):
        rig.send(f"{key}1", f"{key}2", key=key, at_most_once=key != "c")
    wants = [
        ClaimRequest("q", "a", 9, idle_slots=1),
        ClaimRequest("q", "b", 9, idle_slots=2),
        ClaimRequest("q", "c", 9, idle_slots=0),
    ]
    claims = rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
    assert sorted(id[0] for id in ids(claims.messages)) == ["a", "b", "b", "c", "c"]


def test_a_full_set_does_not_starve_another(rig: Rig) -> None:
    rig.send(*(f"{n}" for n in range(200)), key="flood")
    rig.send("other", key="other")
    claims = rig.broker.queue.claim(
        [ClaimRequest("q", "flood", 10), ClaimRequest("q", "other", 10)], lease_ms=LEASE_MS, worker="w"
    )
    assert len(claims.messages) == 11
    assert "other" in ids(claims.messages)


@pytest.mark.parametrize("rig", ["memory", *REDIS, SHARDED], indirect=True, ids=name)
def test_what_a_call_can_not_give_all_of_is_given_of_the_sets_wanted_first(rig: Rig) -> None:
    rig.send(*(f"{n}" for n in range(BATCH)), key="flood")
    rig.send("other", key="other")
    claims = rig.broker.queue.claim(
        [ClaimRequest("q", "other", 1), ClaimRequest("q", "flood", BATCH)], lease_ms=LEASE_MS, worker="w"
    )
    assert "other" in ids(claims.messages)
    assert claims.more_available


def test_queues_and_keys_are_apart(rig: Rig) -> None:
    rig.send("1", queue="x", key="k")
    rig.send("2", queue="y", key="k")
    rig.send("3", queue="x", key="l")
    assert ids(rig.claim(queue="x")) == ["1"]
    assert ids(rig.claim(queue="x", key="l")) == ["3"]
    assert ids(rig.claim(queue="y")) == ["2"]


def test_a_key_that_nobody_asks_for_is_parked(rig: Rig) -> None:
    rig.send("parked", key="unknown")
    assert rig.claim(key="known") == []
    assert rig.get("parked").state is State.READY


@pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True)  # with a store, what is far has no alarm yet
def test_next_due_time_and_what_was_left(rig: Rig) -> None:
    rig.send("now", "now too")
    (later,) = rig.send("later", delay_ms=MINUTE)
    first = rig.broker.queue.claim([ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
    assert first.more_available
    assert first.next_due_ms is not None
    assert first.next_due_ms <= first.now_ms
    second = rig.broker.queue.claim([ClaimRequest("q", "k", 9)], lease_ms=LEASE_MS, worker="w")
    assert (second.more_available, second.next_due_ms) == (False, later.due_ms)
    empty = rig.broker.queue.claim([ClaimRequest("q", "none", 9)], lease_ms=LEASE_MS, worker="w")
    assert (empty.more_available, empty.next_due_ms) == (False, None)


def test_a_claim_of_nothing_gives_nothing(rig: Rig) -> None:
    rig.send("a")
    assert rig.broker.queue.claim([], lease_ms=LEASE_MS, worker="w").messages == []
    assert rig.claim(0) == []


def test_a_set_wanted_twice_gives_each_message_once(rig: Rig) -> None:
    rig.send("a", "b", "c")
    claims = rig.broker.queue.claim(
        [ClaimRequest("q", "k", 1), ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w"
    )
    assert len(claims.messages) == 2
    assert sorted(ids([*claims.messages, *rig.claim()])) == ["a", "b", "c"]


def test_a_leased_message_is_not_given_again(rig: Rig) -> None:
    rig.send("a")
    assert ids(rig.claim(worker="one")) == ["a"]
    assert rig.claim(worker="two") == []
    info = rig.get("a")
    assert (info.state, info.holder) == (State.RUNNING, "one")


def test_a_token_is_never_used_twice(rig: Rig) -> None:
    tokens = []
    rig.send("a")
    for _ in range(20):
        claimed = rig.claim_one()
        tokens.append((claimed.id, claimed.token))
        rig.settle(claimed, SettleAction.RELEASE)
    assert len(set(tokens)) == 20
    assert all(token for _, token in tokens)


def test_two_who_claim_at_once_share_nothing(rig: Rig) -> None:
    rig.send(*(f"{n}" for n in range(400)))
    start = threading.Barrier(4)
    given: list[str] = []

    def work() -> None:
        start.wait()
        while claimed := rig.claim(7):
            given.extend(ids(claimed))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == sorted(f"{n}" for n in range(400))


@pytest.mark.parametrize("sets", [1, 3, 40])
def test_more_due_than_a_claim_gives(rig: Rig, sets: int) -> None:
    _send_and_claim_all(rig, sets, scaled(2 * BATCH + 200))


@pytest.mark.parametrize("rig", REDIS, indirect=True, ids=name)
def test_more_due_in_a_set_than_a_script_can_unpack(rig: Rig) -> None:
    _send_and_claim_all(rig, 1, 9_000)


def _send_and_claim_all(rig: Rig, sets: int, size: int) -> None:
    names = [f"{n:06}" for n in range(size)]
    for first in range(0, size, BATCH):
        batch = range(first, min(first + BATCH, size))
        rig.broker.queue.enqueue([NewMessage(names[n], Header("q", f"k{n % sets}"), b"1", at_ms=0) for n in batch])
    wants = [ClaimRequest("q", f"k{n}", size) for n in range(sets)]
    given: list[str] = []
    while True:
        claims = rig.broker.queue.claim(wants, lease_ms=LEASE_MS, worker="w")
        assert len(claims.messages) <= BATCH
        if not claims.messages:
            break
        given += ids(claims.messages)
        rig.advance(0)
    assert sorted(given) == names
