"""Messages in: what a broker takes, it gives back unchanged, and once."""

import asyncio
from dataclasses import replace

import pytest

from django_delayq.brokers.base import BATCH, Header, NewMessage, SettleAction
from django_delayq.core.message import State
from tests.brokers.rig import Rig, ids


def test_a_message_comes_back_as_it_was_sent(rig: Rig) -> None:
    header = Header("q", "k", True, 90_000, 7, 5_000, "tag|1", "trace:2")
    (placed,) = rig.broker.queue.enqueue([NewMessage("a", header, b'{"n":1}', at_ms=0)])
    claimed = rig.claim_one()
    assert (claimed.id, claimed.body, claimed.due_ms) == ("a", b'{"n":1}', placed.due_ms)
    assert claimed.header == replace(header, sent_ms=placed.due_ms, scheduled_ms=placed.due_ms)
    assert (claimed.failures, claimed.crashes) == (0, 0)


def test_the_version_of_the_data_stays_until_other_data_takes_its_place(rig: Rig) -> None:
    rig.send("a", version=3)
    assert rig.get("a").header.version == 3
    claimed = rig.claim_one()
    assert claimed.header is not None
    assert claimed.header.version == 3
    assert rig.settle(claimed, SettleAction.RETRY, error="x")
    rig.advance(1)
    assert rig.settle(rig.claim_one(), SettleAction.BURY, error="y")
    assert rig.get("a").header.version == 3
    assert rig.broker.queue.rescue(["a"]) == [True]
    assert rig.get("a").header.version == 3
    rig.send("a", on_conflict="replace", version=4)
    assert rig.get("a").header.version == 4
    rig.send("a", on_conflict="replace")
    assert rig.get("a").header.version is None


def test_options_left_to_the_handler_stay_left(rig: Rig) -> None:
    rig.send("a")
    header = rig.claim_one().header
    assert header is not None
    assert (header.expires_ms, header.max_attempts, header.timeout_ms) == (None, None, None)
    assert (header.tag, header.trace_id, header.at_most_once) == (None, None, False)


@pytest.mark.parametrize("id", ["ключ", "日本", "a:b", "{x}", "a|b,c;d", "a b", "%d\\*?[x]", "'\"", "🐢" * 200])
def test_any_text_is_an_id_a_key_a_queue_and_data(rig: Rig, id: str) -> None:
    queue = id.replace(":", "")  # a colon in a queue is refused at send
    body = f'"{id.encode("unicode_escape").hex()} ⏰"'.encode()
    rig.send(id, queue=queue, key=id, body=body, tag=id, trace_id=id)
    claimed = rig.claim_one(key=id, queue=queue)
    assert (claimed.id, claimed.body) == (id, body)
    assert claimed.header is not None
    assert (claimed.header.queue, claimed.header.key, claimed.header.tag) == (queue, id, id)
    assert [(info.id, info.state) for info in [rig.get(id)]] == [(id, State.RUNNING)]


def test_the_caller_s_header_is_not_changed_and_not_shared(rig: Rig) -> None:
    header = Header("q", "k")
    rig.broker.queue.enqueue([NewMessage("a", header, b"1", at_ms=0)])
    header.tag = "changed later"
    assert rig.get("a").header.tag is None
    assert header.sent_ms == 0


def test_one_id_twice_in_a_batch_is_one_message(rig: Rig) -> None:
    placed = rig.send("a", "b", "a", "a")
    assert [answer.created for answer in placed] == [True, True, False, False]
    assert sorted(ids(rig.claim())) == ["a", "b"]  # in shards one may be due a moment before the other
    rig.assert_counted("sent", 2)


def test_answers_come_in_the_order_of_a_mixed_batch(rig: Rig) -> None:
    rig.send("old", delay_ms=60_000)
    rig.send("runs", key="other")
    rig.claim_one(key="other")
    batch = [("new", "k"), ("old", "k"), ("runs", "other"), ("new2", "other"), ("old", "other")]
    placed = rig.broker.queue.enqueue([NewMessage(id, Header("q", key), b"1") for id, key in batch])
    assert [answer.id for answer in placed] == ["new", "old", "runs", "new2", "old"]
    assert [answer.created for answer in placed] == [True, False, False, True, False]
    assert [answer.running for answer in placed] == [False, False, True, False, False]


def test_options_of_one_message_are_not_those_of_its_neighbours(rig: Rig) -> None:
    shared = Header("q", "k")
    own = Header("q", "k", True, 90_000, 7, 5_000, "tag", "trace")
    headers = {"before": shared, "own": own, "after": shared}
    rig.broker.queue.enqueue([NewMessage(id, header, b"1") for id, header in headers.items()])
    assert {id: replace(rig.get(id).header, sent_ms=0, scheduled_ms=0) for id in headers} == headers


def test_the_first_of_an_id_counts_whatever_its_options(rig: Rig) -> None:
    once = Header("q", "k", at_most_once=True)
    placed = rig.broker.queue.enqueue(
        [NewMessage("x", once, b"1"), NewMessage("a", Header("q", "k"), b"1"), NewMessage("a", once, b"2")]
    )
    assert [answer.created for answer in placed] == [True, True, False]
    assert rig.get("a").body == b"1"


def test_each_answer_has_its_own_due_time(rig: Rig) -> None:
    rig.send("old", delay_ms=60_000)
    delays = {"a": 1_000, "old": 5_000, "b": 0, "c": 1_000}
    placed = rig.broker.queue.enqueue([NewMessage(id, Header("q", "k"), b"1", delay) for id, delay in delays.items()])
    due = {answer.id: answer.due_ms for answer in placed}
    assert due == {id: rig.get(id).due_ms for id in delays}
    assert due["b"] < due["a"] <= due["c"] < due["old"]


def test_a_full_batch_is_taken(rig: Rig) -> None:
    many = [f"{n:04}" for n in range(BATCH)]
    assert all(answer.created for answer in rig.send(*many))
    assert sorted(ids(rig.claim_all())) == many


def test_an_instant_in_the_past_means_now(rig: Rig) -> None:
    (placed,) = rig.send("a")
    assert rig.get("a").state is State.READY
    assert placed.due_ms == rig.get("a").header.sent_ms


def test_an_instant_is_kept_to_the_millisecond(rig: Rig) -> None:
    at_ms = rig.broker.queue.counts().now_ms + 86_400_123
    (placed,) = rig.broker.queue.enqueue([NewMessage("a", Header("q", "k"), b"1", at_ms=at_ms)])
    assert placed.due_ms == at_ms == rig.get("a").due_ms == rig.get("a").header.scheduled_ms


def test_a_delay_of_a_hundred_years_is_kept(rig: Rig) -> None:
    century = 100 * 366 * 86_400_000
    (placed,) = rig.send("a", delay_ms=century)
    assert placed.due_ms - rig.get("a").header.sent_ms in (century, century + 1)


def test_an_id_is_free_again_when_its_message_is_finished(rig: Rig) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.FINISH)
    (placed,) = rig.send("a")
    assert placed.created
    rig.assert_counted("sent", 2)


def test_the_async_twins_answer_alike(rig: Rig) -> None:
    async def use() -> None:
        put = NewMessage("a", Header("q", "k"), b"1", delay_ms=60_000)
        assert [answer.created for answer in await rig.broker.queue.aenqueue([put])] == [True]
        assert [answer.created for answer in await rig.broker.queue.aenqueue([put])] == [False]
        info = await rig.broker.queue.aget("a")
        assert info is not None
        assert info.state is State.PENDING
        assert await rig.broker.queue.areschedule(["a", "b"], delay_ms=1) == [True, False]
        assert await rig.broker.queue.acancel(["a", "b"]) == [True, False]

    asyncio.run(use())
    rig.assert_ended(State.CANCELLED, "a")


def test_a_put_that_was_begun_is_answered_when_it_is_waited_for(rig: Rig) -> None:
    wait = rig.broker.queue.begin_enqueue([NewMessage("a", Header("q", "k"), b"1", at_ms=0)])
    rig.send("b")
    (placed,) = wait()
    assert (placed.id, placed.created) == ("a", True)
    assert sorted(ids(rig.claim())) == ["a", "b"]
