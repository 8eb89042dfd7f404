"""A call whose reply was lost is made again: it takes nothing twice and gives the same messages."""

import pytest

from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, SettleAction, Transition
from django_delayq.brokers.redis import claim, enqueue, operations, settle
from django_delayq.brokers.redis.client import Call, Client, Operation, Replies
from django_delayq.brokers.redis.shards import CallCells, Keys
from tests.brokers.rig import LEASE_MS, Rig, end_of, settlement
from tests.servers import Server

KEYS = Keys("delayq")


def ask(calls: list[Call]) -> Operation[Replies]:
    return (yield calls)


def put_calls(*ids: str) -> list[Call]:
    return next(enqueue.enqueue(KEYS, CallCells(), [NewMessage(id, Header("q", "k"), b"1") for id in ids], "keep"))


def test_a_send_again_is_answered_as_the_first_time(rig: Rig, links: Client) -> None:
    calls = put_calls("a", "b")
    first = links.run(ask(calls))
    assert links.run(ask(calls)) == first
    assert rig.total("sent") == 2


def test_a_send_again_after_its_message_has_finished_sends_nothing(rig: Rig, links: Client) -> None:
    calls = put_calls("a")
    first = links.run(ask(calls))
    rig.advance(0)
    assert rig.settle(rig.claim_one(), SettleAction.FINISH)
    assert links.run(ask(calls)) == first
    assert rig.broker.queue.get("a") is None


@pytest.mark.parametrize("junk", [b"\xff\xfe", b"\x01", b"\x92\x01", b""])
def test_junk_in_a_call_cell_is_no_answer(rig: Rig, redis_server: Server, junk: bytes) -> None:
    rig.send("a")
    assert rig.claim_one().id == "a"
    with redis_server.client() as client:
        cells = client.keys("*:call:*")
        assert cells
        for cell in cells:
            client.set(cell, junk)
        rig.send("b")
        for cell in cells:
            client.delete(cell)
            client.sadd(cell, b"of another type")
        rig.send("c")
    assert {message.id for message in rig.claim()} == {"b", "c"}


def test_nobody_can_leave_an_answer_for_the_next_call(rig: Rig, redis_server: Server) -> None:
    rig.send("a")
    with redis_server.client() as client:
        for cell in client.keys("*:call:*"):
            forge = """local number = cmsgpack.unpack(redis.call('GET', KEYS[1]))[1]
                redis.call('SET', KEYS[1], cmsgpack.pack({ string.format('%.0f', number + 1), { '1' } }))"""
            client.eval(forge, 1, cell)
    rig.send("b")
    assert {message.id for message in rig.claim()} == {"a", "b"}


def test_a_claim_again_gives_the_same_messages(rig: Rig, links: Client) -> None:
    rig.send("a", "b", "c")
    by = claim.Claimant("w", LEASE_MS)
    calls = next(claim.claim(KEYS, CallCells(), {"q:k": ClaimRequest("q", "k", 2)}, by))
    (first,) = links.run(ask(calls))
    (again,) = links.run(ask(calls))
    given = [4, 5, 6, 8, 9, 10]  # id, due time and message of each
    assert [again[i] for i in given] == [first[i] for i in given]
    assert [first[4], first[8]] == [b"a", b"b"]
    assert [message.id for message in rig.claim()] == ["c"]


def test_a_claim_again_does_not_give_what_it_settled(rig: Rig, links: Client) -> None:
    rig.send("a")
    calls = next(claim.claim(KEYS, CallCells(), {"q:k": ClaimRequest("q", "k", 1)}, claim.Claimant("w", LEASE_MS)))
    (first,) = links.run(ask(calls))
    token = calls[0].arguments[0]
    assert isinstance(token, int)
    assert rig.broker.queue.apply([end_of("a", token, SettleAction.FINISH, "q", "k")]) == [True]
    (again,) = links.run(ask(calls))
    assert b"a" in first
    assert again[6:7] in ([], [b""])


def test_a_settle_whose_first_reply_was_lost_is_not_taken_for_a_lost_lease(rig: Rig, links: Client) -> None:
    rig.send("a")
    claimed = rig.claim_one()
    operation = settle.settle(KEYS, [settlement(claimed, SettleAction.FINISH)])
    calls = next(operation)
    links.run(ask(calls))
    replies = Replies(links.run(ask(calls)))
    replies.repeated_at = [0]
    with pytest.raises(StopIteration) as stop:
        operation.send(replies)
    assert stop.value.value == [True]


def test_ends_that_nobody_sends_again_are_not_kept_for_ever() -> None:
    unconfirmed = settle.Unconfirmed()
    ends = [Transition(f"{n}", n, "q", "k", SettleAction.FINISH) for n in range(settle.MOST_UNCONFIRMED + 1)]
    sent_again, dropped, *others, last = ends
    for end in [sent_again, dropped, *others, sent_again, last]:
        assert unconfirmed.heard([end], [None]) == [None]
    assert unconfirmed.heard([sent_again, dropped, last], [False] * 3) == [True, False, True]


def test_a_cancel_again_tells_what_it_stopped_the_first_time(rig: Rig, links: Client) -> None:
    rig.send("a", delay_ms=60_000)
    operation = operations.cancel(KEYS, CallCells(), ["a", "b"])
    look = next(operation)
    move = operation.send(links.run(ask(look)))
    first = links.run(ask(move))
    assert links.run(ask(move)) == first == [[1]]
    assert rig.total("cancelled") == 1


def test_cells_are_few(rig: Rig, redis_server: Server) -> None:
    for n in range(50):
        rig.send(f"{n}")
    with redis_server.client() as client:
        assert len(client.keys("*:call:*")) == 1
