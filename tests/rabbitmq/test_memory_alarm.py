"""A node whose memory or disk alarm is on answers workers and takes no alarms: they go on from the tables too."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.core.errors import BrokerUnavailable
from tests.rabbitmq.conftest import delayq_on
from tests.rabbitmq.support import broker_on, claim, pks, put
from tests.servers import RabbitMQServer
from tests.store.support import site_on
from tests.worker.processes import Site

DEGRADED, BACK = "Degraded: the broker has been away", "No longer degraded"


@pytest.fixture
def site(settings: Any, rabbitmq_server: RabbitMQServer, database: str, database_env: dict[str, str]) -> Iterator[Site]:
    """A site whose workers don't wait for long."""
    delayq = {**delayq_on(rabbitmq_server, database), "STORE": {"DEGRADED_AFTER": "1s"}}
    settings.DELAYQ = {"default": delayq}
    with site_on(delayq, database_env, rabbitmq_server) as site:
        yield site


def run_all(site: Site, *ids: str) -> None:
    """Send messages, and hear each of them once."""
    site.send(*ids)
    assert sorted(site.line.next().id for _ in ids) == sorted(ids)


def test_workers_go_on_from_the_tables_and_run_nothing_twice(site: Site, rabbitmq_server: RabbitMQServer) -> None:
    worker = site.worker()
    run_all(site, "before")
    with rabbitmq_server.memory_full():
        run_all(site, "without-a", "without-b")
        worker.until_says(f"{DEGRADED} in part")
        run_all(site, "degraded")
        assert BACK not in worker.text
    worker.until_says(BACK)
    run_all(site, "after")
    assert worker.stop() == 0
    assert site.totals()["finished"] == 5
    assert site.line.none_waits()


def test_a_worker_that_starts_meanwhile_works_from_the_tables(site: Site, rabbitmq_server: RabbitMQServer) -> None:
    site.broker.open()  # makes the queues, for which a node must take messages
    with rabbitmq_server.memory_full():
        worker = site.worker()
        run_all(site, "a")
        worker.until_says(DEGRADED)
        run_all(site, "b")
    worker.until_says(BACK)
    run_all(site, "after")
    assert worker.stop() == 0


def until_refused(broker: RabbitMQBroker) -> None:
    """Schedule alarms until the node takes none: it takes those that were on their way."""
    with suppress(BrokerUnavailable):
        for n in range(100):
            broker.timer.schedule([Alarm("q", "k", f"{n}", 60_000)], within_s=0.2)
    with pytest.raises(BrokerUnavailable, match="memory or disk alarm"):
        broker.timer.schedule([Alarm("q", "k", "refused", 60_000)], within_s=0.2)


def test_upkeep_tells_why_nothing_is_taken_until_it_is_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {"a": 0})
    assert broker.timer.maintain(lease_ms=60_000).away == ""
    with rabbitmq_server.memory_full():
        until_refused(broker)
        for _ in range(3):
            assert "memory or disk alarm" in broker.timer.maintain(lease_ms=60_000).away
        assert pks(claim(broker)) == ["a"]  # what it has
    put(broker, {"b": 0})
    assert broker.timer.maintain(lease_ms=60_000).away == ""


def test_what_is_refused_makes_no_more_connections(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    """The node, which is short of memory, would keep each that is closed until the alarm is over."""
    put(broker, {"a": 0})  # makes the queue
    with broker_on(rabbitmq_server) as fresh:
        fresh.open()
        before = rabbitmq_server.run("length(rabbit_networking:connections())")
        with rabbitmq_server.memory_full():
            for _ in range(3):
                with pytest.raises(BrokerUnavailable, match="memory or disk alarm"):
                    fresh.timer.schedule([Alarm("q", "k", "1")] * 2, within_s=0.2)  # it stops behind the first one
                with pytest.raises(BrokerUnavailable, match="memory or disk alarm"):
                    fresh.presence.workers()
            assert rabbitmq_server.run("length(rabbit_networking:connections())") == before
