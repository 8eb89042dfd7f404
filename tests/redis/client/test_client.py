"""The client alone, on real servers, blocking and async alike."""

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import pytest

from django_delayq.brokers.redis.client import (
    Call,
    Client,
    Operation,
    Replies,
    Script,
    SkipUnavailable,
    Subscription,
    TransientError,
    client_of,
    gather_available,
    or_default,
    parse_location,
    plain,
    split,
)
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from tests.proxy import proxy_before
from tests.servers import ClusterServers, Server, free_port
from tests.servers.cluster import until
from tests.servers.sentinel import Failover

R = TypeVar("R")
SHORT_S = 0.3
DEFAULT_S = 2.0
KEYS = ["{a}", "{b}", "{c}", "{d}", "{e}", "{f}", "{g}", "{h}"]  # on all nodes
ADD = Script.of("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")


class AppError(Exception):
    """What a caller wants to be told instead."""

    def __init__(self, reason: str, may_have_run: bool) -> None:
        super().__init__(reason)
        self.may_have_run = may_have_run


class Runner:
    """Runs operations one way."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.Runner() if name == "async" else None

    def __call__(self, client: Client, operation: Operation[R], *args: Any) -> R:
        if self._loop is None:
            return client.run(operation, *args)
        return self._loop.run(client.arun(operation, *args))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["blocking", "async"])
def run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with closing(Runner(request.param)) as runner:
        yield runner


@pytest.fixture
def own_client(own_server: Server) -> Iterator[Client]:
    with closing(client_of(parse_location(own_server.url))) as client:
        yield client


@pytest.fixture
def cluster(redis_cluster: ClusterServers) -> Iterator[ClusterServers]:
    """The shared cluster, whose nodes the test may freeze."""
    redis_cluster.flush()
    yield redis_cluster
    for node in redis_cluster.nodes:
        node.thaw()
    redis_cluster.wait_until_whole()


@pytest.fixture
def on_cluster(cluster: ClusterServers) -> Iterator[Client]:
    with closing(client_of(parse_location(cluster.location))) as client:
        client.run(ask(*(plain("GET", key) for key in KEYS)))  # it knows the nodes
        yield client


def ask(*calls: Call) -> Operation[Replies]:
    return (yield list(calls))


def count(key: str, by: int = 1) -> Operation[int]:
    (number,) = yield [Call(ADD, (key,), (by,))]
    return int(number)


def seconds_of(failing: Callable[[], object], error: type[Exception] = BrokerUnavailable) -> float:
    started = time.monotonic()
    with pytest.raises(error):
        failing()
    return time.monotonic() - started


def test_an_operation_is_run_to_its_end_over_one_connection(links: Client, redis_server: Server, run: Runner) -> None:
    def several() -> Operation[list[int]]:
        first = yield [plain("INCR", "n"), plain("INCR", "n")]
        (second,) = yield [plain("INCR", "n")]
        return [*first, second]

    run(links, ask(plain("GET", "n")))
    with redis_server.client() as client:
        before = client.info("stats")["total_connections_received"]
        assert run(links, several()) == [1, 2, 3]
        assert client.info("stats")["total_connections_received"] == before


def test_an_operation_that_asks_nothing_needs_no_server(run: Runner) -> None:
    def nothing() -> Operation[str]:
        return "done"
        yield

    client = client_of(parse_location(f"redis://127.0.0.1:{free_port()}"))
    assert run(client, nothing()) == "done"


def test_calls_are_sent_before_their_replies_are_waited_for(own_client: Client, own_server: Server) -> None:
    own_client.run(ask(plain("GET", "n")))
    own_server.freeze()
    end = own_client.begin(ask(plain("INCR", "n")))
    own_server.thaw()
    with own_server.client() as client:
        until(lambda: client.get("n") == b"1")
    assert end() == [1]


def test_a_call_whose_reply_was_lost_is_made_again_and_says_so(own_server: Server, run: Runner) -> None:
    with proxy_before(own_server) as network, closing(client_of(parse_location(network.url))) as client:
        assert not run(client, ask(plain("INCR", "n"))).repeated
        lost = network.lose_reply(b"INCR")
        replies = run(client, ask(plain("INCR", "n")))
        assert lost.happened.is_set()
        assert (replies, replies.repeated) == ([3], True)


def test_a_call_that_never_arrived_is_made_again_once(own_server: Server, run: Runner) -> None:
    with proxy_before(own_server) as network, closing(client_of(parse_location(network.url))) as client:
        run(client, ask(plain("GET", "n")))
        network.lose_request(b"INCR")
        assert run(client, ask(plain("INCR", "n"))) == [1]


def test_a_transient_error_is_asked_again_until_the_time_is_over(
    own_client: Client, own_server: Server, run: Runner
) -> None:
    with own_server.read_only():
        with pytest.raises(AppError, match="can't do that now") as error:
            run(own_client, ask(plain("INCR", "n")), SHORT_S, AppError)
        with own_server.client() as client:
            assert client.info("commandstats")["cmdstat_incr"]["rejected_calls"] >= 2
    assert error.value.__cause__ is None
    assert run(own_client, ask(plain("INCR", "n"))) == [1]


def test_an_error_that_somebody_must_mend_is_raised_at_once_and_names_its_call(links: Client, run: Runner) -> None:
    run(links, ask(plain("SET", "n", "text")))
    with pytest.raises(BrokerRefused, match=r"refused add\.lua: .*not an integer"):
        run(links, count("n"))
    assert run(links, ask(plain("GET", "n"))) == [b"text"]


def test_scripts_that_the_server_forgot_are_sent_again(links: Client, redis_server: Server, run: Runner) -> None:
    assert run(links, count("n")) == 1
    redis_server.forget_scripts()
    replies = run(links, ask(plain("INCR", "n"), Call(ADD, ("n",), (2,)), plain("INCR", "n")))
    assert sorted(replies) == [2, 3, 5]
    assert not replies.repeated


@pytest.mark.parametrize("has_idle", [True, False], ids=["over an idle connection", "over a new one"])
def test_a_server_that_hangs_costs_no_more_than_the_budget(
    own_client: Client, own_server: Server, run: Runner, has_idle: bool
) -> None:
    if has_idle:
        run(own_client, ask(plain("GET", "n")))
    own_server.freeze()
    assert seconds_of(lambda: run(own_client, ask(plain("INCR", "n")), SHORT_S)) < DEFAULT_S / 2
    own_server.thaw()
    assert run(own_client, ask(plain("GET", "other"))) == [None]


def test_after_its_end_an_operation_is_closed(own_client: Client, own_server: Server, run: Runner) -> None:
    closed = []

    def operation() -> Operation[Replies]:
        try:
            return (yield [plain("INCR", "n")])
        finally:
            closed.append(True)

    own_server.kill()
    seconds_of(lambda: run(own_client, operation(), SHORT_S))
    assert closed == [True]


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_no_error_shows_the_password(start_redis: Callable[..., Server], run: Runner, fault: str) -> None:
    server = start_redis(requirepass="s3cr3t", port=free_port(), bind="127.0.0.1")
    with closing(client_of(parse_location(server.tcp_url))) as client:
        assert "s3cr3t" in server.tcp_url
        run(client, ask(plain("GET", "n")))
        getattr(server, fault)()
        with pytest.raises(AppError, match=r"\*\*\*@127\.0\.0\.1.* is away") as error:
            run(client, ask(plain("GET", "n")), SHORT_S, AppError)
        assert "s3cr3t" not in "".join(traceback.format_exception(error.value))
        server.thaw()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(links: Client) -> None:
    def id_of() -> int:
        return int(links.run(ask(Call(None, ("n",), ("CLIENT", "ID"))))[0])

    before = id_of()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if id_of() != before else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert id_of() == before


def test_connections_of_a_loop_end_with_it(links: Client, redis_server: Server) -> None:
    with redis_server.client() as client:
        before = len(client.client_list(_type="normal"))
        asyncio.run(links.arun(ask(plain("GET", "n"))))
        until(lambda: len(client.client_list(_type="normal")) == before)


# One node of a cluster


def test_every_node_answers_for_its_own_keys(on_cluster: Client, run: Runner) -> None:
    assert run(on_cluster, gather_available([count(key) for key in KEYS])) == [1] * len(KEYS)
    assert len({on_cluster.node_of(key) for key in KEYS}) == 3


@pytest.mark.parametrize("budget", [SHORT_S, DEFAULT_S], ids=["short", "default"])
def test_one_that_hangs_fails_its_own_calls_only(
    cluster: ClusterServers, on_cluster: Client, run: Runner, budget: float, caplog: pytest.LogCaptureFixture
) -> None:
    gone = cluster.owner(KEYS[0])
    run(on_cluster, gather_available([count(key, 0) for key in KEYS]))  # the scripts are there
    gone.freeze()
    found = run(on_cluster, gather_available([count(key) for key in KEYS]), budget)
    assert [isinstance(one, TransientError) for one in found] == [cluster.owner(key) is gone for key in KEYS]
    away = [record.getMessage() for record in caplog.records if "is away" in record.message]
    assert len(away) == 1, "only the one that hangs is said to be away"
    assert str(gone.options["port"]) in away[0]
    results, why = split(found)
    assert set(results) == {1}
    assert str(gone.options["port"]) in why
    assert run(on_cluster, or_default(count(KEYS[0]), -1)) == -1


def test_who_needs_it_is_told_which_one_is_away(cluster: ClusterServers, on_cluster: Client, run: Runner) -> None:
    gone = cluster.owner(KEYS[0])
    gone.freeze()
    with pytest.raises(AppError, match=f"127.0.0.1:{gone.options['port']} is away"):
        run(on_cluster, ask(*(plain("GET", key) for key in KEYS)), SHORT_S, AppError)


def test_all_that_hang_cost_no_more_than_one(cluster: ClusterServers, on_cluster: Client, run: Runner) -> None:
    for node in cluster.primaries:
        node.freeze()
    operation = ask(*(plain("GET", key) for key in KEYS))
    assert seconds_of(lambda: run(on_cluster, operation)) < 2 * DEFAULT_S  # not once for each


def test_one_that_is_known_to_be_away_is_not_waited_for(
    cluster: ClusterServers, on_cluster: Client, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.client.cluster.AWAY_S", 3600)
    cluster.owner(KEYS[0]).freeze()
    run(on_cluster, or_default(count(KEYS[0]), 0), SHORT_S)
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.Transport.send", None)
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.Transport.ask", None)

    def hasty() -> Operation[Replies]:
        return (yield SkipUnavailable([plain("GET", KEYS[0])]))

    with pytest.raises(BrokerUnavailable, match="is away"):
        run(on_cluster, hasty())


# Other places


def test_the_primary_behind_sentinels_is_found_also_after_a_failover(redis_binary: str, run: Runner) -> None:
    with closing(Failover(redis_binary)) as failover, closing(client_of(parse_location(failover.location()))) as client:
        assert run(client, ask(plain("INCR", "n"))) == [1]
        failover.fail_over()

        def is_back() -> bool:
            try:
                return run(client, ask(plain("SET", "after", "1"))) == [b"OK"]
            except BrokerUnavailable:
                return False

        until(is_back)


def test_an_embedded_server_is_started_and_started_again(directory: Any, run: Runner) -> None:
    with closing(client_of(parse_location({"embedded": directory}))) as client:
        assert run(client, ask(plain("INCR", "n"))) == [1]
        with closing(client_of(parse_location(f"embedded://{directory}"))) as other:
            assert run(other, ask(plain("INCR", "n"))) == [2]


# What is published


@pytest.fixture
def subscription(own_client: Client) -> Iterator[Subscription]:
    with closing(own_client.subscribe(["one", "two"])) as subscription:
        yield subscription


def test_what_is_published_is_heard_in_order(subscription: Subscription, own_server: Server) -> None:
    with own_server.client() as client:
        client.publish("one", "a")
        client.publish("two", "b")
    assert [subscription.next(30), subscription.next(30)] == [(b"one", b"a"), (b"two", b"b")]


def test_silence_is_no_outage(subscription: Subscription, own_server: Server) -> None:
    with own_server.client() as client:
        asked = client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]

        def publish_once_it_asked() -> None:
            until(lambda: client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"] > asked + 1)
            client.publish("one", "late")

        with ThreadPoolExecutor(1) as pool:
            published = pool.submit(publish_once_it_asked)
            assert subscription.next(0.05) == (b"one", b"late")
            published.result()


def test_one_that_is_interrupted_is_no_outage_either(subscription: Subscription) -> None:
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(subscription.next, 30)
        subscription.interrupt()
        assert published.result() is None
    assert subscription.next(30) is None


def test_one_may_be_interrupted_while_a_publication_is_read(subscription: Subscription, own_server: Server) -> None:
    parser = subscription._connection._parser
    parser._sock = _Interrupting(parser._sock, subscription)
    with own_server.client() as client:
        client.publish("one", "a")
    assert subscription.next(30) == (b"one", b"a")
    assert subscription.next(30) is None


class _Interrupting:
    """A socket that has its subscription interrupted between receiving bytes and returning them."""

    def __init__(self, sock: socket.socket, subscription: Subscription) -> None:
        self._sock = sock
        self._subscription = subscription

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv_into(self, buffer: bytearray) -> int:
        count = self._sock.recv_into(buffer)
        self._subscription.interrupt()
        return count


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_who_listens_is_told_that_the_server_is_away(
    subscription: Subscription, own_server: Server, fault: str
) -> None:
    getattr(own_server, fault)()
    with pytest.raises(BrokerUnavailable, match="is away"):
        subscription.next(0.05)
    own_server.thaw()
