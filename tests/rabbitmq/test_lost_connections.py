"""A connection or a queue that is lost under a worker: no alarm is lost with it."""

import gc
import os
from contextlib import suppress

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Alarm, Header, NewMessage
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.store import DatabaseBackend
from tests.rabbitmq.conftest import delayq_on
from tests.rabbitmq.support import (
    NAMES,
    WANT,
    Clock,
    broker_on,
    channel_of,
    claim,
    pks,
    put,
    ready,
    wait_until_fetched,
)
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S


def test_a_sleep_ends_whose_connection_was_lost_before(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    broker.timer.take_due(WANT, lease_ms=60_000, worker="w")
    broker._link.drop()  # another thread's fault
    assert broker.timer.wait(PATIENCE_S)


def test_an_alarm_that_a_dead_worker_had_claimed_goes_to_another(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {"a": 0})
    with broker_on(rabbitmq_server) as dead:
        assert pks(claim(dead)) == ["a"]
        dead._link.drop()
        assert pks(claim(broker)) == ["a"]


def test_an_alarm_that_a_dead_worker_held_until_it_was_due_goes_to_another(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    with broker_on(rabbitmq_server) as dead:
        dead.timer.take_due(
            WANT, lease_ms=60_000, worker="w"
        )  # its queue is there before, which may take longer than the wait
        put(broker, {"a": 999})
        wait_until_fetched(dead)
        dead._link.drop()
        assert pks(claim(broker)) == ["a"]


def test_an_alarm_whose_connection_was_lost_comes_again_to_the_same_worker(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {"a": 0})
    before = claim(broker)
    rabbitmq_server.cut()
    with suppress(BrokerUnavailable):  # it has to find out
        broker.timer.drop(before)  # of the connection that is gone
    while not (again := broker_claims(broker)):
        broker.timer.wait(1)
    assert again == ["a"]
    broker.timer.drop(before)  # one lease at a time: this is that of the second claim
    broker.close()
    assert ready(rabbitmq_server) == 0


def broker_claims(broker: RabbitMQBroker) -> list[str]:
    with suppress(BrokerUnavailable):
        return pks(broker.timer.take_due(WANT, lease_ms=60_000, worker="w").alarms)
    return []


def test_what_a_worker_had_when_it_stopped_goes_to_another(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    put(broker, {"claimed": 0, "held": 999})
    with broker_on(rabbitmq_server, wall=clock, monotonic=clock) as stopped:
        assert pks(claim(stopped)) == ["claimed"]
    found: set[str] = set()
    while found != {"claimed", "held"}:
        found.update(pks(claim(broker)))


def test_what_nobody_here_asks_for_any_more_goes_to_another(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    with broker_on(rabbitmq_server, wall=clock, monotonic=clock) as other:
        put(broker, {"a": 100})
        wait_until_fetched(other)
        for _ in range(3):
            clock.now += 2.0
            other.timer.maintain(lease_ms=60_000)
        assert pks(claim(broker)) == ["a"]


def test_an_alarm_is_not_dropped_where_others_could_not_be_put_in_its_place(broker: RabbitMQBroker) -> None:
    put(broker, {"a": 0})
    claimed = claim(broker, lease_ms=0)
    too_long = Alarm("q", "k", "x" * 200_000)  # the server ends the connection for it
    with pytest.raises(BrokerUnavailable, match="is away"):
        broker.timer.drop(claimed, [too_long])
    assert broker.timer.maintain(lease_ms=0).reclaimed == 1
    assert pks(claim(broker)) == ["a"]


def test_a_queue_that_is_deleted_under_its_consumer_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    put(broker, {"a": 0})
    broker.timer.drop(claim(broker))
    with channel_of(rabbitmq_server) as channel:
        channel.queue_delete(NAMES.ready("q", "k"))
    put(broker, {"b": 0})
    assert pks(claim(broker)) == ["b"]


def _connection() -> object:
    broker = get_backend()
    assert isinstance(broker, DatabaseBackend)
    assert isinstance(broker.queue.timer, RabbitMQBroker)
    return broker.queue.timer._publisher._link.connection


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_that_sends_leaves_its_parent_s_connections_alone(
    settings: Settings, rabbitmq_server: RabbitMQServer, database: str
) -> None:
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, database)}
    get_backend().queue.enqueue([NewMessage("a", Header("q", "k"), b"1")])
    connection = _connection()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            get_backend().queue.enqueue([NewMessage("b", Header("q", "k"), b"1")])
            gc.collect()
            code = 0
        finally:
            os._exit(code)  # whatever it raised: the child must not run the other tests
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    get_backend().queue.enqueue([NewMessage("c", Header("q", "k"), b"1")])
    assert _connection() is connection
    assert ready(rabbitmq_server) == 3
