"""Any bytes under our keys end in an error of ours or in a failed message, whatever is done next."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from time import monotonic
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from django_delayq.brokers.base import (
    Alarm,
    Claimed,
    ClaimRequest,
    Info,
    PermitRequest,
    Place,
    ProcessInfo,
    Transition,
    WorkerInfo,
)
from django_delayq.brokers.redis.presence import FIELD_BYTES
from django_delayq.brokers.redis.shards import HEADER_BYTES, MOST_BYTES
from django_delayq.core.errors import DelayqError
from django_delayq.core.transitions import Failure, bury, release
from django_delayq.support.timestamps import from_ms
from django_delayq.worker.takeover import is_gone
from tests import servers
from tests.brokers.rig import LEASE_MS, Rig
from tests.scale import scaled
from tests.servers import Server

TAG, META, LIMIT = "{delayq:0}:", "{delayq:meta}", "{delayq:limit:k}:"
CELLS = f"{TAG}call:"  # what is written here is copied into each call cell
US, RS = b"\x1f", b"\x1e"

MESSAGE = [b"1", b"q", b"k", b"", b"1", b"1", b"", b"", b"{}"]
STATE = [b"7", b"0", b"0", b"1", b"w", b""]
HEARTBEAT = b'{"name":"x","queues":["q"],"keys":["k"],"running":%s,"started_ms":%s,"runs":[{"id":"i","queue":"q",' \
    b'"key":"k","started_ms":%s}],"executors":[{"most":%s,"keys":{"k":%s}}],"processes":[{"host":"h","pid":%s,' \
    b'"started":%s}]}'  # fmt: skip

NUMBERS = [b"-inf", b"inf", b"nan", b"1e300", b"-1", b"1.5", b"0x10", b"9" * 15, b"9" * 30, b"9" * 400, b"9" * 5_000]
AWKWARD = [b"", b"\xff\xfe", US, US * 3, RS, b"\x00", b"\xed\xa0\x80", b"[" * 5_000, b'{"a":' * 5_000, *NUMBERS]
values = st.sampled_from(AWKWARD) | st.binary(max_size=30)
scores = st.sampled_from([b"-inf", b"inf", b"1e300", b"-1e300", b"-1", b"0", b"1", b"1.5", b"9e15"])

Write = Callable[[redis.Redis], object]


@pytest.fixture
def redis_binary() -> str:
    """Return one server: it is our code that reads the bytes."""
    binaries = servers.redis_binaries() or servers.missing("redis-server")
    return binaries[0]


@st.composite
def with_one_changed(draw: st.DrawFn, parts: list[bytes], separator: bytes = US) -> bytes:
    """Return our bytes with another value in one place, or only that value."""
    value, place = draw(values), draw(st.integers(-1, len(parts) - 1))
    return value if place < 0 else separator.join([*parts[:place], value, *parts[place + 1 :]])


messages = with_one_changed(MESSAGE[:8]).map(lambda head: head + RS + b"{}") | values
alarms = with_one_changed([b"", b"q", b"k", b"7"]) | with_one_changed([b"", b"7"])
members = values | alarms | with_one_changed([b"x", b"1"])
heartbeats = st.builds(
    lambda seen, numbers: seen + US + HEARTBEAT % tuple(numbers),
    st.just(b"9" * 13) | values,
    st.lists(st.just(b"1") | st.sampled_from(NUMBERS), min_size=7, max_size=7),
)
answers = st.sampled_from(  # as MessagePack: too short, of no length that is true, nested, not ours
    [b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 5_000, b"\x92\x01\xc0", b"\xc0", b"\xc1"]
)
fields_of_meta = st.sampled_from([b"worker:x", b"pause:q:", b"pause::k", b"store", b"shards"]) | members


def _sets(name: str) -> st.SearchStrategy[Write]:
    return st.builds(lambda member, score: lambda to: to.zadd(TAG + name, {member: score}), members, scores)


def _hash(key: str, fields: st.SearchStrategy[Any], contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[Write]:
    return st.builds(lambda field, value: lambda to: to.hset(key, field, value), fields, contents)


def _text(key: str, contents: st.SearchStrategy[bytes] = values) -> st.SearchStrategy[Write]:
    return st.builds(lambda value: lambda to: to.set(key, value), contents)


STRUCTURES: dict[str, st.SearchStrategy[Write]] = {
    "msg": _hash(f"{TAG}msg", st.just("x"), messages),
    "state": _hash(f"{TAG}state", st.just("x"), with_one_changed(STATE)),
    **{name: _sets(name) for name in ("wait:q:k", "running", "suspect", "error", "keys")},
    "timer": _hash(f"{TAG}timer", st.sampled_from(["q:k", "called q:k"]) | values, values),
    "count": _hash(f"{TAG}count", st.sampled_from(["sent", "retried"]) | values, values),
    "epoch": _hash(f"{TAG}epoch", st.sampled_from(["identity", "jumped", "upkept", "grace"]), values),
    "cursor": _text(f"{TAG}cursor"),
    "meta": _hash(META, fields_of_meta, heartbeats | with_one_changed([b"1", b"2", b"why"]) | values),
    "permits": st.builds(
        lambda token, end: lambda to: to.zadd(f"{LIMIT}permits:", {token: end}), st.just(b"5") | values, scores
    ),
    "line": _text(f"{LIMIT}line:", with_one_changed([b"1", b"2"], b" ")),
    "turn": _text(f"{LIMIT}turn"),
    "call": _text(CELLS, values | answers) | st.just(lambda to: to.lpush(CELLS, b"x")),
}


def _uses(rig: Rig) -> Iterator[Callable[[], object]]:
    """All that a worker, a page or a site may ask next."""
    broker: Any = rig.broker
    queue, presence, timer, limiter = broker.queue, broker.presence, broker.timer, broker.limiter
    info = WorkerInfo("w", ["q"], ["k"], 0, 0, processes=[ProcessInfo("h", 1, 1)])
    wants, permits = [ClaimRequest("q", "k", 5)], [PermitRequest("k", "", 5, 1, 1_000)]
    claimed = {"lease_ms": LEASE_MS, "worker": "w"}
    yield lambda: presence.heartbeat(info)
    yield lambda: [_show_worker(worker) for worker in presence.workers()]
    yield lambda: [from_ms(at) for pause in presence.pauses() for at in (pause.paused_ms, pause.until_ms or 0)]
    yield lambda: [from_ms(count.next_due_ms or 0) for count in queue.counts().waiting]
    yield lambda: [_show(found) for found in (queue.get("x"), *queue.peek("q", 9), *queue.failed(9)) if found]
    yield queue.audit
    yield lambda: [queue.scan(0, name, Place(0), 10**15, 5) for name in queue.wait_sets()[0]]
    yield timer.cursor
    yield lambda: timer.advance_cursor([Alarm("q", "k", "77")], 500, 1_000)
    yield lambda: timer.set_cursor_back(5)
    yield lambda: timer.owner("ours")
    yield lambda: (timer.find_alarms("q", "k", ["7"]), timer.alarms("q", "k"))
    yield lambda: limiter.acquire(permits, lease_ms=LEASE_MS)
    yield lambda: limiter.release(permits)
    yield lambda: queue.maintain(lease_ms=LEASE_MS)
    yield lambda: queue.apply([_end(message) for message in queue.claim_suspect(wants, **claimed).messages])
    yield lambda: queue.apply([_end(message) for message in queue.claim(wants, **claimed).messages])
    yield lambda: timer.drop(timer.take_due(wants, **claimed).alarms)
    yield lambda: queue.take_over(["w"])
    yield lambda: (queue.reschedule(["x"], delay_ms=1), queue.rescue(["x"]), queue.cancel(["x"]))
    yield lambda: (rig.send("x"), rig.send("x", on_conflict="replace"))
    yield lambda: (queue.purge(["x"]), queue.purge_failed(["x"]))
    yield lambda: (presence.resume("q", None), presence.leave("x"))


def _show_worker(worker: WorkerInfo) -> object:
    times = [from_ms(at) for at in (worker.seen_ms, worker.started_ms, *(run.started_ms for run in worker.runs))]
    return times, [is_gone(process) for process in worker.processes], sum(one.most / 2 for one in worker.executors)


def _show(info: Info) -> object:
    times = info.due_ms, info.header.sent_ms, info.header.expires_at_ms, info.lease_end_ms, info.buried_ms
    return [from_ms(at) for at in times if at is not None]


def _end(claimed: Claimed) -> Transition:
    if claimed.header is None:
        return bury(claimed, Failure("not ours"))
    assert from_ms(claimed.due_ms)
    assert from_ms(claimed.header.expires_at_ms or 0)
    return release(claimed)


def _begin(to: redis.Redis, place: str) -> None:
    """Leave one message of ours, in one place."""
    to.flushdb()
    id = b"x\x1f7" if place == "error" else b"x"
    to.hset(f"{TAG}msg", id, US.join(MESSAGE[:8]) + RS + MESSAGE[8])
    to.zadd(TAG + place, {id: 1})
    to.zadd(f"{TAG}keys", {"q:k": 1})


@pytest.mark.parametrize("structure", STRUCTURES)
def test_any_bytes_in_it_end_in_an_error_of_ours_or_a_failed_message(
    rig: Rig, redis_server: Server, structure: str
) -> None:
    places = st.sampled_from(["wait:q:k", "running", "suspect", "error"])

    @settings(max_examples=scaled(25), derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STRUCTURES[structure], places)
    def write_and_use(write: Write, place: str) -> None:
        cells = client.keys(f"{CELLS}?*")  # of the last example: a process uses its cells again
        _begin(client, place)
        write(client)
        for cell in cells:
            client.copy(CELLS, cell)
        for use in _uses(rig):
            with suppress(DelayqError):
                use()

    with redis_server.client() as client:
        write_and_use()


@pytest.mark.parametrize("due", NUMBERS)
def test_any_bytes_that_are_published_leave_the_listener_alive(rig: Rig, redis_server: Server, due: bytes) -> None:
    rig.claim()  # starts the listener
    heard = rig.broker.presence.pause_version
    with redis_server.client() as client:
        client.publish(f"{TAG}wake", due + b" q:k")
        client.publish(f"{TAG}wake", "pauses")
    give_up_at = monotonic() + 10
    while rig.broker.presence.pause_version == heard and monotonic() < give_up_at:
        rig.broker.queue.wait(0.01)
    assert rig.broker.presence.pause_version > heard


def test_leases_that_nothing_can_name_stand_in_front_of_no_other(rig: Rig, redis_server: Server) -> None:
    rig.send("ours")
    rig.claim_one()
    with redis_server.client() as client:
        record = US.join(MESSAGE[:8]) + RS
        ids = [b"\xff%d" % number for number in range(1_000)]
        client.hset(f"{TAG}msg", mapping=dict.fromkeys(ids, record))
        client.zadd(f"{TAG}running", dict.fromkeys(ids, 1))
    rig.advance(LEASE_MS)
    assert len(rig.broker.queue.maintain(lease_ms=LEASE_MS).without_body) == 1_000
    assert rig.broker.queue.maintain(lease_ms=LEASE_MS).reclaimed == 1


def test_a_message_whose_id_is_no_text_is_not_given_to_run(rig: Rig, redis_server: Server) -> None:
    with redis_server.client() as client:
        client.hset(f"{TAG}msg", b"\xff", US.join(MESSAGE[:8]) + RS + b"{}")
        client.zadd(f"{TAG}wait:q:k", {b"\xff": 1})
    assert rig.claim() == []


LONG = b"x" * 2 * FIELD_BYTES
HEAD = US.join(MESSAGE[:8]) + RS


def _member(place: str, member: bytes = LONG) -> Write:
    def write(to: redis.Redis) -> None:
        to.zadd(TAG + place, {member: 1})
        to.hset(f"{TAG}msg", member, HEAD)

    return write


def _message(message: bytes, state: bytes = b"") -> Write:
    """Leave a message in every place."""

    def write(to: redis.Redis) -> None:
        for place in ("wait:q:k", "running", "suspect", "error"):
            to.zadd(TAG + place, {place: 1})
            to.hset(f"{TAG}msg", place, message)
            to.hset(f"{TAG}state", place, state)

    return write


def _in_meta(field: str) -> Write:
    return lambda to: to.hset(META, field, LONG)


LONG_TEXTS: dict[str, Write] = {
    **{place: _member(place) for place in ("wait:q:k", "running", "suspect", "error", "keys")},
    "alarm": _member("wait:q:k", US + LONG),
    "leased alarm": _member("running", US.join([b"", b"q", b"k", LONG])),
    "message": _message(LONG),
    "header": _message(US.join([b"1", LONG, *MESSAGE[2:8]]) + RS),
    "state": _message(HEAD, US.join([*STATE[:5], LONG])),
    "count": lambda to: to.hset(f"{TAG}count", LONG, 1),
    "epoch": lambda to: to.hset(f"{TAG}epoch", "identity", LONG),
    "cursor": lambda to: to.set(f"{TAG}cursor", LONG),
    **{f"{field} in meta": _in_meta(field) for field in ("worker:x", "pause:q:", "store", "shards")},
    "name in meta": lambda to: to.hset(META, LONG, 1),
}


@pytest.mark.parametrize("structure", LONG_TEXTS)
def test_a_text_of_any_size_is_not_taken_into_a_process(rig: Rig, redis_server: Server, structure: str) -> None:
    most = FIELD_BYTES if "meta" in structure else MOST_BYTES
    with redis_server.client() as client:
        for use in _uses(rig):
            client.flushdb()
            client.zadd(f"{TAG}keys", {"q:k": 1})
            LONG_TEXTS[structure](client)
            before = client.info("stats")["total_net_output_bytes"]
            with suppress(DelayqError):
                use()
            assert client.info("stats")["total_net_output_bytes"] - before < most + 8 * HEADER_BYTES


HUGE = HEAD + b"x" * 2**21
LUA_BYTES = 2**20
"""More bytes than the memory of Lua in Redis takes for one script and what it reads of ours."""


@pytest.mark.parametrize(
    ("message", "state"), [(HUGE, b""), (HEAD, US.join([*STATE[:5], HUGE]))], ids=["message", "state"]
)
def test_what_is_huge_is_read_by_no_script(rig: Rig, redis_server: Server, message: bytes, state: bytes) -> None:
    rig.send("open the connections")
    with redis_server.client() as client:
        for use, place in product(_uses(rig), ("wait:q:k", "running", "suspect", "error")):
            client.flushdb()
            id = b"x\x1f7" if place == "error" else b"x"
            client.zadd(f"{TAG}keys", {"q:k": 1})
            client.zadd(TAG + place, {id: 1})
            client.hset(f"{TAG}msg", id, message)
            if state:
                client.hset(f"{TAG}state", id, state)
            client.hset(f"{TAG}count", "sent", 1)
            client.script_flush()  # with the memory of Lua
            use()
            claims = {"claim", "claim_suspect", "take_due"} & set(use.__code__.co_names)
            is_moved = not client.hexists(f"{TAG}msg", id) and client.hlen(f"{TAG}msg")  # to its entry: a burial
            is_excepted = claims if state else is_moved
            assert is_excepted or client.info("memory")["used_memory_lua"] < LUA_BYTES, (use.__code__.co_names, place)


def test_a_name_that_is_too_long_is_removed_by_the_work_that_meets_it(rig: Rig, redis_server: Server) -> None:
    wants, claimed, cut = [ClaimRequest("q", "k", 5)], {"lease_ms": LEASE_MS, "worker": "w"}, "x" * HEADER_BYTES
    queue: Any = rig.broker.queue
    with redis_server.client() as client:
        for place in ("wait:q:k", "running", "suspect"):
            LONG_TEXTS[place](client)
        client.hset(META, "worker:x", LONG)
        rig.send("ours")
        claims = queue.claim(wants, **claimed)
        assert ([message.id for message in claims.messages], claims.without_body) == (["ours"], [cut])
        assert queue.claim_suspect(wants, **claimed).without_body == [cut]
        assert queue.maintain(lease_ms=LEASE_MS).without_body == [cut]
        rig.broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
        assert client.zrange(f"{TAG}running", 0, -1) == [b"ours"]
        assert [client.zcard(TAG + place) for place in ("wait:q:k", "suspect")] == [0, 0]
        assert not client.hexists(META, "worker:x")
