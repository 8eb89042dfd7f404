"""Alarms that a commit puts: a Redis that hangs costs it no longer than it said that it would wait."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import AF_UNIX, socket
from time import monotonic

import pytest
from asgiref.sync import async_to_sync

from django_delayq.brokers.base import BATCH, Alarm, SettleAction
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.brokers.rig import Rig, end_of, redis_rig
from tests.proxy import proxy_before
from tests.servers import Server

SHORT_S = 0.1
DEFAULT_S = 2.0


def put(rig: Rig, *alarms: Alarm, within_s: float = SHORT_S) -> None:
    rig.timer.schedule(alarms or [Alarm("q", "k", "1")], within_s=within_s)


def is_over_in_time(use: Callable[[], object]) -> bool:
    """Return whether it gave up long before a call at the default would."""
    started = monotonic()
    with pytest.raises(BrokerUnavailable, match="away"):
        use()
    return monotonic() - started < DEFAULT_S / 2


def test_a_hung_server_costs_a_short_put_less_than_the_time_of_others(own_rig: Rig, own_server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        # several idle connections, each with its own time-out
        list(pool.map(lambda _: put(own_rig, within_s=DEFAULT_S), range(8)))
        own_server.freeze()
        assert is_over_in_time(lambda: put(own_rig))
        own_server.thaw()


def test_a_hung_server_costs_no_more_where_a_connection_must_be_made(own_rig: Rig, own_server: Server) -> None:
    own_server.freeze()
    assert is_over_in_time(lambda: put(own_rig))
    own_server.thaw()


def test_a_hung_server_costs_no_more_when_it_takes_in_nothing_any_more(own_rig: Rig, own_server: Server) -> None:
    put(own_rig, within_s=DEFAULT_S)
    own_server.freeze()
    many = [Alarm("q", "k", f"{n:01000}") for n in range(BATCH)]  # more than a socket's buffers hold
    assert is_over_in_time(lambda: put(own_rig, *many))
    own_server.thaw()


def test_an_absent_server_is_tried_for_the_time_given(own_rig: Rig, own_server: Server) -> None:
    put(own_rig, within_s=DEFAULT_S)
    own_server.kill()
    assert is_over_in_time(lambda: put(own_rig))


def test_a_look_through_everything_waits_no_longer_for_an_absent_server_than_other_calls(
    own_rig: Rig, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.BUDGET", SHORT_S)
    own_server.kill()
    assert is_over_in_time(lambda: own_rig.broker.queue.rescue(["a"]))
    assert is_over_in_time(lambda: async_to_sync(own_rig.broker.queue.aget)("a"))


def test_a_look_through_everything_asks_a_server_that_hangs_once_as_other_calls_do(tmp_path: Path) -> None:
    with socket(AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        silent.setblocking(False)
        broker = RedisBroker(Alias("default", location=f"unix://{tmp_path}/silent"))
        with pytest.raises(BrokerUnavailable, match="away"):
            broker.queue.get("a")
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # another connection has the whole time-out again
            silent.accept()


def test_replies_that_trickle_in_cost_no_more_together(own_server: Server) -> None:
    with proxy_before(own_server) as network, own_server.client() as client:
        rig = redis_rig(network.url, client)
        put(rig, within_s=DEFAULT_S)
        network.seconds_a_byte = SHORT_S / 5
        assert is_over_in_time(lambda: put(rig, *(Alarm("q", f"k{n}", "1") for n in range(40))))  # a reply for each key
        rig.broker.close()


def test_a_lost_reply_is_made_up_for_in_the_time_given(own_server: Server) -> None:
    with proxy_before(own_server) as network, own_server.client() as client:
        rig = redis_rig(network.url, client)
        lost = network.lose_reply(b"\x1fsome pk")
        put(rig, Alarm("q", "k", "some pk"), within_s=DEFAULT_S - SHORT_S)
        assert lost.happened.is_set()
        assert sum(found.pending + found.ready for found in rig.broker.queue.counts().waiting) == 1
        rig.broker.close()


def test_the_connection_that_a_short_put_used_waits_as_long_as_others_afterwards(
    own_rig: Rig, own_server: Server
) -> None:
    put(own_rig, within_s=DEFAULT_S)
    own_server.freeze()
    with ThreadPoolExecutor(1) as pool:
        settle = pool.submit(own_rig.broker.queue.apply, [end_of("a", 1, SettleAction.FINISH, "q", "k")])
        for _ in range(3):
            assert is_over_in_time(lambda: put(own_rig))
        own_server.thaw()
        assert settle.result() == [False]  # one that gave up and was made again would not know
