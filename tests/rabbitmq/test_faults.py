"""Faults under load: what was accepted runs, and nothing starts early, whatever dies between."""

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from django_delayq.brokers.base import Alarm, ClaimRequest, Header, NewMessage
from django_delayq.brokers.rabbitmq import RabbitMQBroker, topology
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable
from tests.proxy import proxy_before
from tests.rabbitmq.support import claim, pks, put, ready
from tests.scale import scaled
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S, Site

LOAD = scaled(300)
LONGEST_MS = 2_500
CUTS = 3


@pytest.fixture
def lease() -> str:
    """So long that no worker loses one for want of a core."""
    return "60s"


def send(site: Site, ids: list[str]) -> None:
    """Send them, with delays up to a few seconds."""
    header = Header("default", "journal")
    for start in range(0, len(ids), 20):
        site.broker.queue.enqueue(
            [NewMessage(id, header, b'""', delay_ms=random.randrange(LONGEST_MS)) for id in ids[start : start + 20]]
        )
        sleep(0.05)


def runs(site: Site) -> Counter[str]:
    """Return how often each message has run. None of them early."""
    journal = Path(f"{site.line.path}.journal")
    lines = [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
    assert all(int(late_ms) >= 0 for _, *rest in lines for late_ms in rest)
    return Counter(id for id, *rest in lines if not rest)


def run_all(site: Site, ids: list[str]) -> Counter[str]:
    """Wait until each has run."""
    until = monotonic() + PATIENCE_S
    while not (seen := runs(site)).keys() >= set(ids):
        assert monotonic() < until, f"{len(set(ids) - seen.keys())} did not run"
        sleep(0.1)
    return seen


def under_load(site: Site, fault: Callable[[], object]) -> Counter[str]:
    """Send to two workers while the fault happens. How often each ran in the end."""
    mark = secrets.token_hex(4)  # what an earlier test left on its way must not count
    ids = [f"{mark}-{n}" for n in range(LOAD)]
    workers = [site.worker(), site.worker()]
    for worker in workers:
        worker.until_says("Connections at most")
    with ThreadPoolExecutor() as threads:
        sending = threads.submit(send, site, ids)
        fault()
        sending.result()
    seen = run_all(site, ids)
    assert [worker.stop() for worker in workers] == [0, 0]
    return Counter({id: seen[id] for id in ids})


def test_connections_that_are_killed_lose_nothing(site: Site, rabbitmq_server: RabbitMQServer) -> None:
    def cut() -> None:
        for _ in range(CUTS):
            sleep(0.3)
            rabbitmq_server.cut()

    seen = under_load(site, cut)
    assert set(seen.values()) == {1}  # the row decides


class TestRestart:
    """On a node of its own."""

    @pytest.fixture
    def lease(self) -> str:
        """Return how long what was held over the end of a node waits."""
        return "2s"

    @pytest.fixture
    def rabbitmq_server(self, start_rabbitmq: Callable[..., RabbitMQServer]) -> RabbitMQServer:
        return start_rabbitmq()

    def test_a_node_that_is_killed_and_starts_again_loses_nothing(
        self, site: Site, rabbitmq_server: RabbitMQServer
    ) -> None:
        def restart() -> None:
            send(site, ["first"])
            run_all(site, ["first"])  # the queues of all handlers are there: one being made may be lost with its node
            sleep(0.5)
            rabbitmq_server.kill()
            rabbitmq_server.start()

        seen = under_load(site, restart)
        assert set(seen.values()) == {1}


@contextmanager
def leaderless(server: RabbitMQServer, queue: str) -> Iterator[None]:
    """Have a queue without a leader, as one that was being made when its node was killed."""
    process = f"{{'%2F_{queue}', node()}}"
    server.run(f"ok = ra:stop_server(quorum_queues, {process}), ok")
    try:
        yield
    finally:
        server.run(f"ok = ra:restart_server(quorum_queues, {process}), ok")


def test_a_queue_without_a_leader_holds_up_no_other_and_is_served_when_it_has_one(
    broker: RabbitMQBroker,
    rabbitmq_server: RabbitMQServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(broker, {"mute": 0}, queue="leaderless")
    put(broker, {"other": 0})
    wants = [ClaimRequest("leaderless", "k", 1), ClaimRequest("q", "k", 1)]
    monkeypatch.setattr(topology, "AGAIN_S", 0.0)  # it is asked at each claim

    def claim_one() -> str:
        for _ in range(100):
            with suppress(BrokerUnavailable):  # the first fault may be that of the connection
                for alarm in broker.timer.take_due(wants, lease_ms=60_000, worker="w").alarms:
                    broker.timer.drop([alarm])
                    return alarm.pk
        return "nothing"

    with leaderless(rabbitmq_server, "delayq.ready.leaderless/k"):
        assert claim_one() == "other"
    assert [
        record.message for record in caplog.records if "'delayq.ready.leaderless/k' does not answer" in record.message
    ]
    assert claim_one() == "mute"


def test_what_was_published_and_not_confirmed_is_sent_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    with (
        proxy_before(rabbitmq_server) as network,
        closing(RabbitMQBroker(Alias("default", location=network.url))) as sender,
    ):
        put(sender, {"first": 0})  # its queue is there now
        lost = network.lose_reply(b"unsure")
        put(sender, {"unsure": 0})
        assert lost.happened.is_set()
    assert ready(rabbitmq_server) == 3
    given: list[str] = []
    while len(given) < 3:
        given += pks(claim(broker))
    assert sorted(given) == ["first", "unsure", "unsure"]
    broker.timer.drop([Alarm("q", "k", pk) for pk in ("first", "unsure")])
    broker.close()  # gives back what it has
    assert ready(rabbitmq_server) == 0
