"""What someone else writes under our keys harms nothing but itself, and a script that would fail changes nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq.brokers.base import (
    BuriedInfo,
    Claimed,
    ClaimRequest,
    Header,
    NewMessage,
    Pause,
    PermitRequest,
    SettleAction,
    WorkerInfo,
)
from django_delayq.brokers.redis.claim import MOST_SETS
from django_delayq.brokers.redis.shards import LimitKeys
from django_delayq.core.errors import BrokerRefused
from django_delayq.core.limits import LINGER_MS, LONGEST_WAIT_MS
from django_delayq.support.timestamps import LAST_MS
from tests.brokers.rig import LEASE_MS, Rig
from tests.servers import Server

TAG = "{delayq:0}:"


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    return redis_server.client()


def everything(client: redis.Redis, but: bytes = b":call:") -> dict[Any, Any]:
    """All keys with their contents, but for the cells of calls."""
    return {key: client.dump(key) for key in client.scan_iter() if b":call:" not in key and but not in key}


def test_a_foreign_wait_set_does_not_stop_the_others(rig: Rig, client: redis.Redis) -> None:
    client.set(f"{TAG}wait:q:foreign", "text")
    rig.send("a")
    claims = rig.broker.queue.claim(
        [ClaimRequest("q", "foreign", 1), ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w"
    )
    assert [message.id for message in claims.messages] == ["a"]


def test_a_forged_line_of_a_limit_delays_by_no_more_than_the_longest_wait(rig: Rig, client: redis.Redis) -> None:
    keys = LimitKeys("delayq", "k", "")
    ask = [PermitRequest("k", "", token, most=1) for token in (1, 2)]
    rig.broker.limiter.acquire(ask[:1], lease_ms=LEASE_MS)
    client.set(keys.line, f"{LAST_MS} 1")
    (refused,) = rig.broker.limiter.acquire(ask[1:], lease_ms=LEASE_MS)
    assert refused is not None
    assert refused.wait_ms <= LONGEST_WAIT_MS
    assert client.pttl(keys.line) <= LONGEST_WAIT_MS + LINGER_MS


@pytest.mark.parametrize("is_async", [False, True])
def test_a_send_over_a_foreign_key_names_it_and_the_fix(rig: Rig, client: redis.Redis, is_async: bool) -> None:
    client.lpush(f"{TAG}wait:q:k", "text")
    puts = [NewMessage("a", Header("q", "k"), b"1")]
    with pytest.raises(BrokerRefused, match=r"WRONGTYPE of \{delayq:0\}:wait:q:k; someone else .*Remove or rename it"):
        asyncio.run(rig.broker.queue.aenqueue(puts)) if is_async else rig.broker.queue.enqueue(puts)


def test_looks_see_past_places_without_a_body(rig: Rig, client: redis.Redis) -> None:
    rig.bury("old")
    rig.advance(5)
    rig.bury("new")
    client.zadd(f"{TAG}error", {b"empty\x1f1": 9e15, b"empty\x1f2": 8e15})
    assert [info.id for info in rig.broker.queue.failed(2)] == ["new", "old"]
    sent = rig.send("a", "b", delay_ms=60_000)
    client.zadd(f"{TAG}wait:q:k", {"empty": "-inf", "empty 2": 1, "empty 3": 2})
    assert [info.id for info in rig.broker.queue.peek("q", 1)] == ["a"]
    assert [info.id for info in rig.broker.queue.peek("q", 9)] == ["a", "b"]
    assert [count.next_due_ms for count in rig.broker.queue.counts().waiting] == [sent[0].due_ms]


def test_the_audit_and_the_counts_name_a_foreign_wait_set(rig: Rig, client: redis.Redis) -> None:
    rig.send("a", delay_ms=60_000)
    client.set(f"{TAG}wait:q:k", "text")
    rig.claim()  # passes over it
    for look in (rig.broker.queue.audit, rig.broker.queue.counts):
        with pytest.raises(BrokerRefused, match=r" \{delayq:0\}:wait:q:k[:;] .*Remove or rename it"):
            look()


MOVES: dict[str, Callable[[Rig, Claimed], object]] = {
    "send": lambda rig, _: rig.send("new"),
    "replace": lambda rig, _: rig.send("waiting", on_conflict="replace"),
    "claim": lambda rig, _: rig.claim(),
    "finish": lambda rig, held: rig.settle(held, SettleAction.FINISH),
    "retry": lambda rig, held: rig.settle(held, SettleAction.RETRY),
    "bury": lambda rig, held: rig.settle(held, SettleAction.BURY),
    "interrupt": lambda rig, held: rig.settle(held, SettleAction.INTERRUPT),
    "renew": lambda rig, held: rig.broker.queue.renew([held], LEASE_MS),
    "upkeep": lambda rig, _: rig.broker.queue.maintain(lease_ms=LEASE_MS),
    "cancel": lambda rig, _: rig.broker.queue.cancel(["waiting"]),
    "reschedule": lambda rig, _: rig.broker.queue.reschedule(["waiting"], delay_ms=1),
    "rescue": lambda rig, _: rig.broker.queue.rescue(["buried"]),
    "purge": lambda rig, _: rig.broker.queue.purge(["waiting"]),
    "purge errors": lambda rig, _: rig.broker.queue.purge_failed(["buried"]),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ["msg", "state", "running", "suspect", "error", "keys", "timer", "count", "epoch"])
def test_a_move_over_a_key_of_another_type_does_all_or_nothing(
    rig: Rig, client: redis.Redis, move: str, name: str
) -> None:
    rig.bury("buried")
    rig.send("held")
    held = rig.claim_one()
    rig.send("waiting")
    rig.advance(LEASE_MS)
    saved = client.dump(TAG + name)
    client.set(TAG + name, "someone else's")
    others = b":timer" if move == "upkeep" else b":call:"  # a look goes along, which is no part of the move
    before = everything(client, but=others)
    refused = _refusal(lambda: MOVES[move](rig, held))
    if refused:
        assert TAG + name in refused
        assert "someone else writes under our prefix" in refused
        assert "Remove or rename it" in refused
        assert everything(client, but=others) == before
    client.delete(TAG + name)
    if saved:
        client.restore(TAG + name, 0, saved)
        assert rig.broker.queue.audit().differences == []


def _refusal(move: Callable[[], object]) -> str:
    try:
        move()
    except BrokerRefused as refused:
        return str(refused)
    return ""


def test_a_member_without_a_body_is_dropped_and_not_given(rig: Rig, client: redis.Redis) -> None:
    rig.send("a")
    client.zadd(f"{TAG}wait:q:k", {"empty": 1})
    client.zadd(f"{TAG}wait:q:k", {b"\xff\xfe": 2})
    claims = rig.broker.queue.claim([ClaimRequest("q", "k", 100)], lease_ms=LEASE_MS, worker="w")
    assert ([message.id for message in claims.messages], claims.without_body) == (["a"], ["empty", "\ufffd\ufffd"])
    assert client.zcard(f"{TAG}running") == 1


def test_a_lease_without_a_body_is_dropped_and_named(rig: Rig, client: redis.Redis) -> None:
    rig.send("a")
    rig.claim_one()
    client.hdel(f"{TAG}msg", "a")
    rig.advance(LEASE_MS)
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).without_body == ["a"]
    assert client.zcard(f"{TAG}running") == 0


def test_a_message_without_our_header_can_be_buried(rig: Rig, client: redis.Redis) -> None:
    client.hset(f"{TAG}msg", "odd", b"\x00not ours")
    client.zadd(f"{TAG}wait:q:k", {"odd": 1})
    (claimed,) = rig.claim()
    assert claimed.header is None
    rig.advance(LEASE_MS)
    (told,) = rig.broker.queue.maintain(lease_ms=LEASE_MS).buried
    (error,) = rig.broker.queue.failed(1)
    assert told == BuriedInfo("odd", "", "", 0, error.error)
    assert "header can not be read" in error.error


def test_messages_without_our_header_let_a_claim_take_no_more_of_another_set(rig: Rig, client: redis.Redis) -> None:
    rig.send(*"abcdef")
    client.hset(f"{TAG}msg", mapping=dict.fromkeys(("odd1", "odd2", "odd3"), b"\x00not ours"))
    client.zadd(f"{TAG}wait:q:other", dict.fromkeys(("odd1", "odd2", "odd3"), 1))
    client.zadd(f"{TAG}keys", {"q:other": 1})
    empty = [ClaimRequest("q", f"empty{n}", 1) for n in range(MOST_SETS)]  # too many sets for one call
    requests = [ClaimRequest("q", "k", 1), ClaimRequest("q", "other", 5), *empty]
    messages = rig.broker.queue.claim(requests, lease_ms=LEASE_MS, worker="w").messages
    assert sorted(message.id for message in messages if message.header is None) == ["odd1", "odd2", "odd3"]
    assert sum(message.header is not None for message in messages) == 1


def test_a_message_with_half_a_header_of_ours_is_moved_like_others(rig: Rig, client: redis.Redis) -> None:
    client.hset(f"{TAG}msg", "odd", b"1\x1fq\x1fk\x1f\x1fsoon")
    client.zadd(f"{TAG}wait:q:k", {"odd": 1})
    assert rig.broker.queue.reschedule(["odd"], delay_ms=60_000) == [True]
    assert rig.claim() == []
    assert rig.broker.queue.cancel(["odd"]) == [True]


@pytest.mark.parametrize("score", ["-inf", "1.5", "-7"])
def test_a_foreign_score_is_due_and_harms_nothing(rig: Rig, client: redis.Redis, score: str) -> None:
    rig.send("a", delay_ms=60_000)
    client.zadd(f"{TAG}wait:q:k", {"a": score})
    claimed = rig.claim_one()
    assert rig.settle(claimed, SettleAction.RELEASE)
    assert rig.settle(rig.claim_one(), SettleAction.FINISH)


NO_TEXT = b"\xff\xfe"


def _write_names_that_are_no_text(client: redis.Redis) -> None:
    """In each place a message or an alarm whose queue is no UTF-8."""
    record = b"1\x1f" + NO_TEXT + b"\x1fk\x1f\x1f1\x1f1\x1f\x1f\x1e1"
    for id in (b"runs", b"waits", b"buried", b"buried\x1f1"):
        client.hset(f"{TAG}msg", id, record)
    client.zadd(f"{TAG}running", {b"runs": 1, b"\x1f" + NO_TEXT + b"\x1fk\x1f7": 1})
    client.zadd(b"{delayq:0}:wait:" + NO_TEXT + b":k", {b"waits": 1})
    client.zadd(f"{TAG}keys", {NO_TEXT + b":k": 1})
    client.zadd(f"{TAG}error", {b"buried\x1f1": 9e15})


def test_a_name_that_is_no_text_stops_neither_upkeep_nor_looks(rig: Rig, client: redis.Redis) -> None:
    rig.send("a")
    rig.claim_one()
    rig.bury("failed")
    _write_names_that_are_no_text(client)
    rig.advance(LEASE_MS)
    maintained = rig.broker.queue.maintain(lease_ms=LEASE_MS)
    assert (maintained.reclaimed, maintained.without_body) == (1, ["runs"])
    assert rig.broker.queue.get("waits") is None
    assert [info.id for info in rig.broker.queue.failed(9)] == ["buried", "failed"]
    assert [info.id for info in rig.broker.queue.peek("q", 9)] == ["a"]
    assert rig.broker.queue.counts().running == 1
    assert [message.id for message in rig.claim()] == ["a"]


def test_what_has_a_name_that_is_no_text_is_not_moved_by_its_id(rig: Rig, client: redis.Redis) -> None:
    rig.send("a", delay_ms=60_000)
    _write_names_that_are_no_text(client)
    assert rig.broker.queue.cancel(["waits", "a"]) == [False, True]
    assert rig.broker.queue.reschedule(["waits"], delay_ms=5) == [False]
    assert rig.broker.queue.purge(["waits"]) == [False]
    assert rig.broker.queue.rescue(["buried"]) == [False]
    with pytest.raises(BrokerRefused, match="Message 'waits' is there with a name that is no text"):
        rig.send("waits")
    assert rig.broker.queue.purge_failed(["buried"]) == [True]


def test_a_state_that_is_not_ours_counts_as_none(rig: Rig, client: redis.Redis) -> None:
    rig.send("a")
    client.hset(f"{TAG}state", "a", b"\xff\x1fgarbage")
    claimed = rig.claim_one()
    assert (claimed.failures, claimed.crashes) == (0, 0)
    assert rig.settle(claimed, SettleAction.FINISH)


def test_the_audit_names_what_someone_else_did(rig: Rig, client: redis.Redis) -> None:
    rig.send("a", "b")
    client.zadd(f"{TAG}wait:q:k", {"empty": 1})
    client.zrem(f"{TAG}wait:q:k", "a")
    client.zadd(f"{TAG}running", {"b": 1})
    told = "\n".join(rig.broker.queue.audit().differences)
    assert "'empty' in {delayq:0}:wait:q:k: no body" in told
    assert "'a' in {delayq:0}:wait:q:k: no place" in told
    assert "'b' in {delayq:0}:wait:q:k: two places" in told


@pytest.mark.parametrize("score", ["inf", "1e300"])
def test_the_audit_names_what_would_wait_or_run_for_ever(rig: Rig, client: redis.Redis, score: str) -> None:
    rig.send("runs")
    rig.claim_one()
    rig.send("waits", "b")
    client.zadd(f"{TAG}wait:q:k", {"waits": score})
    client.zadd(f"{TAG}running", {"runs": score})
    waits, runs = sorted(rig.broker.queue.audit().differences, reverse=True)
    assert waits.startswith("'waits' in {delayq:0}:wait:q:k: its time never comes (")
    assert runs.startswith("'runs' in {delayq:0}:running: its time never comes (")


def test_looks_pass_over_what_they_cannot_read(rig: Rig, client: redis.Redis) -> None:
    rig.send("a")
    client.hset("{delayq:meta}", mapping={"worker:odd": "x", "worker:none": "9999999999999\x1f{}"})
    client.hset(f"{TAG}count", "retried", "many")
    client.zadd(f"{TAG}keys", {b"\xff\xfe": 1})
    assert rig.broker.presence.workers() == []
    assert rig.total("sent") == 1
    assert rig.total("retried") == 0
    assert [info.id for info in rig.broker.queue.peek("q", 5)] == ["a"]
    assert rig.broker.queue.audit().differences == []


def test_a_foreign_wait_set_costs_no_message_that_belongs_there(rig: Rig, client: redis.Redis) -> None:
    rig.bury("buried")
    rig.send("lapsed")
    rig.claim_one()
    rig.advance(LEASE_MS)
    client.delete(f"{TAG}wait:q:k")
    client.set(f"{TAG}wait:q:k", "someone else's")
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    with pytest.raises(BrokerRefused):
        rig.broker.queue.rescue(["buried"])
    client.delete(f"{TAG}wait:q:k")
    assert rig.broker.queue.rescue(["buried"]) == [True]
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1
    assert {message.id for message in rig.claim()} == {"buried", "lapsed"}
    assert rig.broker.queue.audit().differences == []


@pytest.mark.parametrize("total", ["sent", "reclaimed", "finished", "without body"])
def test_a_total_that_is_no_number_stops_no_move(rig: Rig, client: redis.Redis, total: str) -> None:
    client.hset(f"{TAG}count", total, "many")
    rig.send("a")
    rig.claim_one()
    rig.lapse()
    assert rig.settle(rig.claim_one(), SettleAction.FINISH)


@pytest.mark.parametrize("mark", ["q:k", "called q:k"])
def test_a_mark_that_is_no_number_stops_no_move(rig: Rig, client: redis.Redis, mark: str) -> None:
    client.hset(f"{TAG}timer", mark, "soon")
    rig.send("a", "b")
    assert [message.id for message in rig.claim(1)] == ["a"]


@pytest.mark.parametrize("options", [b'{"timeout_ms":"x"}', b"[" * 5_000, b"7"])
def test_options_that_are_not_ours_make_no_header(rig: Rig, client: redis.Redis, options: bytes) -> None:
    rig.send("a", "b")
    client.hset(f"{TAG}msg", "a", b"1\x1fq\x1fk\x1f\x1f1\x1f1\x1f\x1f" + options + b"\x1e1")
    odd, plain = rig.claim()
    assert odd.header is None
    assert plain.header is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pause::", b"1\x1f\x1fx"),
        ("pause:mail", b""),
        ("pause:mail:", b"soon\x1f\x1fx"),
        ("pause:mail:", b"1\x1fnever\x1fx"),
        ("pause:mail:", b"1\x1f\x1f"),
        ("pause:mail:", b"1\x1f\x1f\xff"),
        (b"pause:\xff:", b"1\x1f\x1fx"),
    ],
)
def test_what_is_no_pause_of_ours_pauses_nothing(
    rig: Rig, client: redis.Redis, field: str | bytes, value: bytes
) -> None:
    client.hset("{delayq:meta}", field, value)
    rig.broker.presence.pause(Pause("text", None, "x"))
    rig.broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    assert [pause.names for pause in rig.broker.presence.pauses()] == ["queue 'text'"]
    assert not rig.broker.presence.resume("mail", None)


@pytest.mark.parametrize("until_ms", [10**12, 10**30])
def test_a_pause_whose_end_is_absurd_harms_nothing(rig: Rig, client: redis.Redis, until_ms: int) -> None:
    client.hset("{delayq:meta}", "pause:mail:", b"-7\x1f%d\x1fx" % until_ms)
    rig.broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    assert [pause.until_ms for pause in rig.broker.presence.pauses()] == [LAST_MS] * (until_ms > 10**15)


@pytest.mark.parametrize("due", ["-inf", "1e300", "inf"])
def test_a_due_time_of_a_set_that_is_no_time_stops_no_claim(rig: Rig, client: redis.Redis, due: str) -> None:
    rig.send("a", "b")
    client.zadd(f"{TAG}keys", {"q:k": due, "q:k2": due})
    client.zadd(f"{TAG}wait:q:k2", {"empty": due})
    many = [
        ClaimRequest("q", "k", 1),
        *(ClaimRequest("q", f"k{n}", 1) for n in range(40)),
    ]  # so many are looked at first
    rig.broker.queue.maintain(lease_ms=LEASE_MS)
    rig.broker.queue.claim(many, lease_ms=LEASE_MS, worker="w")
    rig.advance(1_000)
    assert rig.claim() or due != "-inf"
