"""With OPTIONS["sign"], only what a process of the site has sent as it is runs, whatever was done with it since."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis
from pytest_django import Settings

from django_delayq.brokers.base import Header, NewMessage, SettleAction
from django_delayq.brokers.redis.signing import UNSIGNED
from tests.brokers.rig import OPTIONS, Rig, redis_rig
from tests.servers import Server

MSG = "{delayq:0}:msg"
HOUR_MS = 3_600_000


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def make_rig(redis_server: Server, client: redis.Redis) -> Iterator[Callable[..., Rig]]:
    """Makes the broker of a process with the present SECRET_KEY."""
    made: list[Rig] = []

    def make(sign: bool | str = True, prefix: str = "delayq") -> Rig:
        made.append(redis_rig(redis_server.url, client, replace(OPTIONS, sign=sign, prefix=prefix)))
        return made[-1]

    yield make
    for rig in made:
        rig.broker.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def _retry(rig: Rig) -> None:
    assert rig.settle(rig.claim_one(), SettleAction.RETRY, error="no good")


def _rescue(rig: Rig) -> None:
    assert rig.settle(rig.claim_one(), SettleAction.BURY, error="no good")
    assert rig.broker.queue.rescue(["a"]) == [True]


MOVES: dict[str, Callable[[Rig], object]] = {
    "nothing": lambda rig: None,
    "a reschedule": lambda rig: rig.broker.queue.reschedule(["a"], delay_ms=0),
    "a replacement": lambda rig: rig.send("a", body=b'"new"', on_conflict="replace"),
    "a send for earlier": lambda rig: rig.send("a", on_conflict="earliest", delay_ms=0),
    "a retry": _retry,
    "a rescue": _rescue,
    "a crash": lambda rig: rig.crash(1),
    "a Spark job": lambda rig: (
        rig.broker.queue.cancel(["a"]),
        rig.broker.queue.begin_enqueue_once([NewMessage("a", Header("q", "k"), b"1")], "job", HOUR_MS)(),  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("move", MOVES)
def test_what_was_signed_runs_after_each_move(rig: Rig, move: str) -> None:
    rig.send("a", tag="t", at_most_once=False, expires_ms=HOUR_MS)
    MOVES[move](rig)
    rig.advance(1)
    claimed = rig.claim_one()
    assert claimed.unfit == ""
    assert claimed.header is not None
    assert claimed.header.tag == (None if move in ("a replacement", "a Spark job") else "t")


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "its data": lambda message: message[:-1] + b"2",
    "its queue": lambda message: message.replace(b"\x1fq\x1f", b"\x1fq2\x1f"),
    "its key": lambda message: message.replace(b"\x1fk\x1f", b"\x1fk2\x1f"),
    "its flags": lambda message: message.replace(b"\x1fk\x1fo\x1f", b"\x1fk\x1f\x1f"),
    "when it expires": lambda message: message.replace(b"3600000", b"3600001"),
    "its options": lambda message: message.replace(b'"max_attempts":3', b'"max_attempts":9'),
    "its signature": lambda message: message.replace(b'{"sig":"', b'{"sig":"A')[:-1] + b"1",
    "its signature's place": lambda message: message.replace(b'"sig"', b'"gis"'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_part_is_noticed_and_nothing_of_it_is_read(rig: Rig, client: redis.Redis, change: str) -> None:
    rig.send("a", body=b"1", at_most_once=True, max_attempts=3, expires_ms=HOUR_MS)
    message = client.hget(MSG, "a")
    assert isinstance(message, bytes)
    changed = CHANGES[change](message)
    assert changed != message
    client.hset(MSG, "a", changed)
    (claimed,) = rig.claim()
    assert (claimed.unfit, claimed.header, claimed.body) == (UNSIGNED, None, b"")


def test_a_message_under_another_id_or_prefix_or_without_a_signature_is_noticed(
    rig: Rig, make_rig: Callable[..., Rig], client: redis.Redis
) -> None:
    rig.send("a")
    make_rig(prefix="other").send("c")
    make_rig(sign=False).send("b")
    client.hset(MSG, mapping={"a2": client.hget(MSG, "a"), "c": client.hget("{other:0}:msg", "c")})  # type: ignore[dict-item]
    client.zadd("{delayq:0}:wait:q:k", {"a2": 1, "c": 1})
    assert {claimed.id: claimed.unfit for claimed in rig.claim()} == {
        "a": "", "a2": UNSIGNED, "b": UNSIGNED, "c": UNSIGNED,
    }  # fmt: skip


def test_a_former_secret_key_holds_while_it_is_among_the_fallbacks(
    make_rig: Callable[..., Rig], settings: Settings
) -> None:
    make_rig().send("a", "b")
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert [claimed.unfit for claimed in make_rig().claim(1)] == [UNSIGNED]
    settings.SECRET_KEY_FALLBACKS = [former]
    assert [claimed.unfit for claimed in make_rig().claim()] == [""]


def test_processes_that_only_sign_run_everything_and_are_understood_by_those_that_check(
    make_rig: Callable[..., Rig],
) -> None:
    make_rig(sign=False).send("unsigned")
    begun = make_rig(sign="send")
    assert [claimed.unfit for claimed in begun.claim()] == [""]
    begun.send("signed")
    assert [claimed.unfit for claimed in make_rig().claim()] == [""]


def test_processes_that_know_nothing_of_signatures_read_what_is_signed(rig: Rig, make_rig: Callable[..., Rig]) -> None:
    rig.send("a", tag="t", body=b"7")
    claimed = make_rig(sign=False).claim_one()
    assert claimed.header is not None
    assert (claimed.header.tag, claimed.body) == ("t", b"7")
