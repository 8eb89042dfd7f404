"""What this version writes into Redis, frozen, and what it does with messages of a later format.

Workers of two versions share the queues while a site is deployed. A change of wire/format_1.json is one that they
must survive: docs/how-to/upgrading.md says what may change under which number.
"""

import itertools
import json
import re
import secrets
from pathlib import Path
from typing import Any

import pytest

from django_delayq.brokers.base import (
    Alarm,
    ClaimRequest,
    ExecutorInfo,
    Header,
    Pause,
    PermitRequest,
    ProcessInfo,
    RunInfo,
    SettleAction,
    WorkerInfo,
)
from django_delayq.brokers.redis import claim
from django_delayq.core.message import State
from tests.brokers.rig import LEASE_MS, Rig, end_of
from tests.redis.later_format import as_format_2
from tests.servers import Server

GOLDEN = Path(__file__).parent / "wire" / "format_1.json"
MARKED = Path(__file__).parent / "wire" / "format_1_marked.json"
"""Of versions that marked the worker's name of an interrupted lease with "!"."""
OPTIONS: dict[str, Any] = {"expires_ms": 9_000, "max_attempts": 3, "timeout_ms": 1_000, "tag": "vip", "trace_id": "t"}
LATER = 60_000


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that are all of one length."""
    tokens = itertools.count(2**61)
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(tokens))


@pytest.fixture
def client(redis_server: Server) -> Any:
    return redis_server.client()


def write_one_of_each(rig: Rig) -> None:
    """Have each kind of thing in Redis, in each of its states."""
    rig.send("plain", delay_ms=LATER)
    rig.send("options", delay_ms=LATER, body=b'{"order":7}', at_most_once=True, **OPTIONS)
    for key in ("running", "interrupted", "retried", "buried", "suspect"):
        rig.send(key, key=key)
        claimed = rig.claim_one(key)
        match key:
            case "interrupted":
                rig.settle(claimed, SettleAction.INTERRUPT)
            case "retried":
                rig.settle(claimed, SettleAction.RETRY, delay_ms=LATER, error="ValueError: no")
            case "buried":
                rig.settle(claimed, SettleAction.BURY, error="ValueError: no", detail="Traceback")
            case "suspect":
                rig.crash_child(claimed)
                rig.crash_child(rig.claim_one(key))
    broker = rig.broker
    rig.timer.schedule([Alarm("q", "alarm", "7", LATER), Alarm("q", "ringing", "8", -5)])
    assert broker.queue.claim([ClaimRequest("q", "ringing", 1)], lease_ms=LEASE_MS, worker="w").alarms
    broker.presence.heartbeat(
        WorkerInfo(
            "w",
            ["q"],
            ["k"],
            2,
            1_700_000_000_000,
            runs=[RunInfo("a", "q", "k", 1_700_000_000_000)],
            executors=[ExecutorInfo(4, {"k": 4})],
            processes=[ProcessInfo("h", 17, 123)],
        )
    )
    broker.presence.pause(Pause("q", "k", "why", 4_000_000_000_000))
    for token in (2**61, 2**61 + 1):  # the second finds no slot
        broker.limiter.acquire([PermitRequest("limited", "value", token, 1, 60_000_000)], lease_ms=LEASE_MS)


def contents(client: Any) -> dict[str, Any]:
    """Return what Redis holds, but for the answers of call cells. What differs each time has a name."""
    return {
        key.decode(): _named(_value(client, key))
        for key in sorted(client.scan_iter())
        if b":call:" not in key and not key.endswith(b"epoch")
    }


def _value(client: Any, key: bytes) -> Any:
    match client.type(key):
        case b"hash":
            return dict(sorted((name.decode(), value.decode()) for name, value in client.hgetall(key).items()))
        case b"zset":
            return sorted(
                [member.decode(), f"{score:.0f}"] for member, score in client.zrange(key, 0, -1, withscores=True)
            )
    return (client.get(key) or b"").decode()


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {_named(name): _named(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_named(inner) for inner in value]
    for form, name in [(r"\d{19}", "TOKEN"), (r"1\d{15}", "MICROS"), (r"1[7-9]\d{11}", "TIME")]:
        value = re.sub(rf"\b{form}\b", name, value)
    return value


def test_what_is_written_is_what_other_versions_read(rig: Rig, client: Any) -> None:
    write_one_of_each(rig)
    assert contents(client) == json.loads(GOLDEN.read_text())


def write(client: Any, written: Path, now_ms: int) -> None:
    """Have in Redis what a version wrote, at a time."""
    text = written.read_text().replace("TIME", str(now_ms)).replace("TOKEN", str(2**61))
    text = text.replace("MICROS", str(now_ms * 1000))
    for key, value in json.loads(text).items():
        if isinstance(value, dict):
            client.hset(key, mapping=value)
        elif isinstance(value, list):
            client.zadd(key, dict(value))
        else:
            client.set(key, value)


@pytest.mark.parametrize("written", [GOLDEN, MARKED], ids=lambda path: path.stem)
def test_what_other_versions_wrote_is_read(rig: Rig, client: Any, written: Path) -> None:
    now_ms = rig.now_us() // 1000
    write(client, written, now_ms)
    broker = rig.broker
    seen = {id: broker.queue.get(id) for id in ("plain", "options", "running", "retried", "suspect")}
    states = {id: info.state for id, info in seen.items() if info}
    assert states == dict.fromkeys(seen, State.READY) | {"running": State.RUNNING}
    assert seen["options"] is not None
    assert seen["options"].header == Header("q", "k", at_most_once=True, sent_ms=now_ms, scheduled_ms=now_ms, **OPTIONS)
    assert seen["options"].body == b'{"order":7}'
    assert [(info.id, info.error, info.detail) for info in broker.queue.failed(9)] == [
        ("buried", "ValueError: no", "Traceback")
    ]
    retried = rig.claim_one("retried")
    assert (retried.failures, retried.body) == (1, b"{}")
    assert [worker.name for worker in broker.presence.workers()] == ["w"]
    assert [pause.reason for pause in broker.presence.pauses()] == ["why"]
    assert [
        refusal is None
        for refusal in broker.limiter.acquire([PermitRequest("limited", "value", 5, 1, 1_000)], lease_ms=LEASE_MS)
    ]
    assert [
        alarm.pk for alarm in broker.queue.claim([ClaimRequest("q", "alarm", 1)], lease_ms=LEASE_MS, worker="w").alarms
    ] == ["7"]


@pytest.mark.parametrize("written", [GOLDEN, MARKED], ids=lambda path: path.stem)
def test_what_other_versions_leased_runs_out_as_they_meant_it(rig: Rig, client: Any, written: Path) -> None:
    write(client, written, rig.now_us() // 1000)
    held = {key: rig.get(key) for key in ("running", "interrupted")}
    assert {(info.state, info.holder, info.error) for info in held.values()} == {(State.RUNNING, "w", "")}
    interrupted = end_of("interrupted", 2**61, SettleAction.INTERRUPT, "q", "interrupted")
    assert rig.broker.queue.apply([interrupted]) == [False]  # it is so already
    rig.lapse()
    assert {key: (rig.get(key).state, rig.get(key).crashes) for key in held} == {
        "running": (State.READY, 1),
        "interrupted": (State.READY, 0),
    }
    states = client.hgetall("{delayq:0}:state")
    assert (states[b"interrupted"], states[b"running"]) == (b"\x1f0\x1f0\x1f\x1f\x1f", b"\x1f0\x1f1\x1f\x1f\x1f")
    for key in ("running", "interrupted", "k"):
        for claimed in rig.claim_all(key=key):
            assert rig.settle(claimed, SettleAction.FINISH)
    assert rig.total("finished") == 4  # what ran, and what waited
    assert rig.broker.queue.audit().differences == []


@pytest.mark.parametrize("written", [GOLDEN, MARKED], ids=lambda path: path.stem)
def test_a_handler_that_ends_after_the_interrupt_of_another_version_still_finishes(
    rig: Rig, client: Any, written: Path
) -> None:
    write(client, written, rig.now_us() // 1000)
    assert rig.broker.queue.apply([end_of("interrupted", 2**61, SettleAction.FINISH, "q", "interrupted")]) == [True]


def test_an_interrupted_lease_leaves_no_trace_in_the_next(rig: Rig, client: Any) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.INTERRUPT)
    assert client.hget("{delayq:0}:state", "a").endswith(b"\x1f1")
    rig.lapse()
    rig.claim_one()
    assert client.hget("{delayq:0}:state", "a").endswith(b"\x1f")
    rig.lapse()
    assert rig.get("a").crashes == 1


def test_a_message_of_a_later_format_is_left_to_a_later_version(
    rig: Rig, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    claim._warn_of_newer.cache_clear()
    rig.send("a", "b", "c", at_most_once=True)
    message = client.hget("{delayq:0}:msg", "b") or b""
    as_format_2(client, "b")
    client.hset("{delayq:0}:state", "b", "whatever a later version keeps")
    kept = [client.hget(key, "b") for key in ("{delayq:0}:msg", "{delayq:0}:state")]
    for _ in range(2):
        assert "b" not in [claimed.id for claimed in rig.claim()]
        rig.advance(5_000)
    assert [client.hget(key, "b") for key in ("{delayq:0}:msg", "{delayq:0}:state")] == kept
    assert [record.getMessage() for record in caplog.records] == [
        "Messages of format 2 wait here, which a later version of django-delayq has sent. They are left to workers of "
        "that version: start some."
    ]
    assert (rig.total("sent"), rig.total("buried"), rig.broker.queue.audit().differences) == (3, 0, [])
    client.hset("{delayq:0}:msg", "b", message)  # here comes one that can read it
    client.hdel("{delayq:0}:state", "b")
    assert [claimed.id for claimed in rig.claim()] == ["b"]


def test_the_lease_of_a_later_format_is_ended_by_a_later_version(rig: Rig, client: Any) -> None:
    rig.send("a", "b")
    rig.claim()
    as_format_2(client, "b")
    rig.lapse()
    assert [info and info.state for info in map(rig.broker.queue.get, ("a", "b"))] == [State.READY, State.RUNNING]
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).next_lease_end_ms is None  # nothing that it would wake for


def test_a_suspect_of_a_later_format_is_left_and_holds_up_no_other(rig: Rig, client: Any) -> None:
    rig.send("a", "b")
    rig.crash(2)
    as_format_2(client, "a")
    assert [claimed.id for claimed in rig.claim_suspect()] == ["b"]
    assert rig.claim_suspect() == []


def test_looks_tell_of_a_later_format_what_stands_first(rig: Rig, client: Any) -> None:
    rig.bury("buried")
    rig.send("waits", delay_ms=LATER)
    as_format_2(client, *client.hkeys("{delayq:0}:msg"))
    for id in client.hkeys("{delayq:0}:state"):
        client.hset("{delayq:0}:state", id, "whatever\x1fa later\x1fversion\x1fkeeps")
    (waits,), (buried,) = rig.broker.queue.peek("q", 9), rig.broker.queue.failed(9)
    assert [(info.id, info.header.key) for info in (waits, buried)] == [("waits", "k"), ("buried", "k")]
    assert (buried.failures, buried.error) == (0, "")


def test_by_its_id_a_message_of_a_later_format_is_moved_as_any_other(rig: Rig, client: Any) -> None:
    rig.send("moved", "cancelled", "replaced", delay_ms=LATER)
    as_format_2(client, "moved", "cancelled", "replaced")
    moved = rig.broker.queue.get("moved")
    assert moved is not None
    assert (moved.header.queue, moved.header.key) == ("q", "k")
    assert rig.broker.queue.reschedule(["moved"], delay_ms=2 * LATER) == [True]
    assert (client.hget("{delayq:0}:msg", "moved") or b"").endswith(b"?\x1f?\x1f?\x1e\xff")
    assert rig.broker.queue.cancel(["cancelled"]) == [True]
    rig.send("replaced", on_conflict="replace")
    assert [claimed.id for claimed in rig.claim()] == ["replaced"]
