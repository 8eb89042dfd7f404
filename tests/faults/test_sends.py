"""Faults on the way of a send: it is taken once, or says that it may not have been; and the site goes on."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from django.db import transaction
from pytest_django import Settings

from django_delayq import (
    BrokerUnavailable,
    Send,
    SendError,
    Sent,
    acancel_delay_messages,
    asend_delay_message,
    cancel_delay_messages,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers import get_backend
from django_delayq.brokers.redis.client import client
from django_delayq.core.message import State
from tests.proxy import Proxy
from tests.servers import Server, free_port


def asend(id: str) -> Sent:
    return asyncio.run(asend_delay_message("k", 1, id=id, delay="1h"))


def send(id: str) -> Sent:
    return send_delay_message("k", 1, id=id, delay="1h")


both_ways = pytest.mark.parametrize("send_one", [send, asend], ids=["sync", "async"])
SendOne = Callable[[str], Sent]


def total(name: str) -> int:
    return get_backend("default").queue.counts().totals.get(name, 0)


def state_of(id: str) -> State | None:
    info = get_backend("default").queue.get(id)
    return None if info is None else info.state


@both_ways
def test_a_send_whose_reply_is_lost_is_taken_once_and_answered(network: Proxy, send_one: SendOne) -> None:
    lost = network.lose_reply(b"order:1")
    assert send_one("order:1").created is True
    assert lost.happened.is_set()
    assert total("sent") == 1


@both_ways
def test_a_send_that_is_lost_is_made_again(network: Proxy, send_one: SendOne) -> None:
    lost = network.lose_request(b"order:1")
    assert send_one("order:1").created is True
    assert lost.happened.is_set()
    assert total("sent") == 1


def test_a_send_whose_reply_is_lost_twice_is_taken_once(network: Proxy) -> None:
    network.lose_reply(b"order:1")
    second = network.lose_reply(b"order:1")
    assert send("order:1").created is True
    assert second.happened.is_set()
    assert total("sent") == 1


def test_a_bulk_send_whose_reply_is_lost_takes_each_message_once(network: Proxy) -> None:
    lost = network.lose_reply(b"order:999")
    sent = send_delay_messages(Send("k", n, id=f"order:{n}", delay="1h") for n in range(2_500))
    assert lost.happened.is_set()
    assert (sent.accepted, sent.created) == (2_500, 2_500)
    assert total("sent") == 2_500


@pytest.mark.parametrize(
    ("send_one", "said", "unknown"),
    [
        (send, "'order:1' may have been taken; send again with the same id", ("order:1",)),
        (asend, "'order:1' was not sent", ()),  # its event loop has no connection yet
    ],
    ids=["sync", "async"],
)
def test_a_hung_redis_ends_in_a_send_error_that_may_be_repeated(
    server: Server, send_one: SendOne, said: str, unknown: tuple[str, ...]
) -> None:
    send("before")
    server.freeze()
    with pytest.raises(SendError, match=said) as raised:
        send_one("order:1")
    assert raised.value.unknown == unknown
    server.thaw()
    send_one("order:1")
    assert state_of("order:1") is State.PENDING
    assert total("sent") == 2


@both_ways
def test_an_absent_redis_ends_in_a_send_error_and_is_found_again(server: Server, send_one: SendOne) -> None:
    send("before")
    server.kill()
    with pytest.raises(SendError, match="away"):
        send_one("order:1")
    server.start()
    assert send_one("order:1").created is True
    assert state_of("before") is State.PENDING


@both_ways
def test_what_was_sent_over_no_connection_was_not_taken(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, send_one: SendOne
) -> None:
    monkeypatch.setattr(client, "BUDGET", 0.1)
    settings.DELAYQ = {"default": settings.DELAYQ["default"] | {"LOCATION": f"redis://127.0.0.1:{free_port()}"}}
    with pytest.raises(SendError, match=r"is away: .*\. Message 'order:1' was not sent\.$") as raised:
        send_one("order:1")
    assert raised.value.unknown == ()
    with pytest.raises(SendError, match=r"were not sent\. \(0 messages were accepted, the rest was not sent\.\)$"):
        send_delay_messages(Send("k", n) for n in range(2))
    with pytest.raises(BrokerUnavailable, match=r"is away: [^;]*$"):
        cancel_delay_messages("order:1")


@both_ways
def test_a_restart_between_sends_goes_unnoticed(server: Server, send_one: SendOne) -> None:
    send_one("before")
    server.restart()
    assert send_one("order:1").created is True


@both_ways
def test_cut_connections_go_unnoticed(server: Server, send_one: SendOne) -> None:
    send_one("before")
    server.cut()
    assert send_one("order:1").created is True


@both_ways
def test_a_flushed_script_cache_goes_unnoticed(server: Server, send_one: SendOne) -> None:
    send_one("before")
    server.forget_scripts()
    assert send_one("order:1").created is True


def test_a_bulk_send_goes_on_after_a_flush_of_the_scripts_on_its_way(server: Server) -> None:
    def sends() -> Iterator[Send]:
        for n in range(3_000):
            if n == 1_500:
                server.forget_scripts()
                server.cut()
            yield Send("k", n, delay="1h")

    assert send_delay_messages(sends()).created == 3_000


@both_ways
def test_a_read_only_redis_takes_nothing(server: Server, send_one: SendOne) -> None:
    with server.read_only(), pytest.raises(SendError, match=r"READONLY|read only"):
        send_one("order:1")
    assert send_one("order:1").created is True


@both_ways
def test_a_full_redis_takes_nothing_and_says_so_at_once(server: Server, send_one: SendOne) -> None:
    send("before")
    with server.memory_full(), pytest.raises(BrokerUnavailable, match="no memory left"):
        send_one("order:1")
    assert state_of("order:1") is None
    assert send_one("order:1").created is True


def test_a_bulk_send_that_fails_on_its_way_says_how_far_it_came(server: Server) -> None:
    def sends() -> Iterator[Send]:
        for n in range(3_000):
            if n == 2_000:
                server.kill()
            yield Send("k", n, id=f"order:{n}", delay="1h")

    with pytest.raises(SendError) as raised:
        send_delay_messages(sends())
    assert raised.value.accepted in (0, 1_000)  # a batch on its way is answered when the next is full
    server.start()
    unknown = range(raised.value.accepted, raised.value.accepted + len(raised.value.unknown))
    assert raised.value.unknown == tuple(f"order:{n}" for n in unknown)
    rest = (Send("k", n, id=f"order:{n}", delay="1h") for n in range(raised.value.accepted, 3_000))
    send_delay_messages(rest)
    assert total("sent") == 3_000


@pytest.mark.django_db(transaction=True)
def test_a_redis_that_is_away_after_the_commit_is_logged_not_raised(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        assert send("order:1").created is None
        server.kill()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "order:1" in record.getMessage()
    server.start()
    assert state_of("order:1") is None


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_cancel_tells_what_it_stopped_all_the_same(network: Proxy, fault: str) -> None:
    send("order:1")
    met = getattr(network, fault)(b"order:1")
    assert cancel_delay_messages("order:1") == 1
    assert met.happened.is_set()
    assert total("cancelled") == 1


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_reschedule_tells_what_it_moved_all_the_same(network: Proxy, fault: str) -> None:
    send("order:1")
    met = getattr(network, fault)(b"order:1")
    assert reschedule_delay_messages("order:1", delay="2h") == 1
    assert met.happened.is_set()


def acancel(id: str) -> int:
    return asyncio.run(acancel_delay_messages(id))


@pytest.mark.parametrize(
    ("cancel", "said"),
    [
        (cancel_delay_messages, r"is away: .*may have been done; asking again is safe"),
        (acancel, r"is away: [^;]*$"),  # its event loop has no connection yet
    ],
    ids=["sync", "async"],
)
def test_a_cancel_on_a_hung_redis_says_that_it_may_be_repeated(
    server: Server, cancel: Callable[[str], int], said: str
) -> None:
    send("order:1")
    server.freeze()
    with pytest.raises(BrokerUnavailable, match=said) as raised:
        cancel("order:1")
    assert type(raised.value) is BrokerUnavailable
    server.thaw()


def test_after_faults_of_every_kind_the_audit_adds_up(network: Proxy, server: Server) -> None:
    for n in range(30):
        if n % 3 == 0:
            network.lose_reply(b"order")
        if n % 5 == 0:
            network.lose_request(b"order")
        if n % 7 == 0:
            server.cut()
        if n % 11 == 0:
            server.forget_scripts()
        send(f"order:{n}")
    assert get_backend("default").queue.audit().differences == []
    assert total("sent") == 30
