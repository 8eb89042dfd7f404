"""A connection or a queue that is lost under a worker: no message is lost with it, starts early or is charged twice."""

import gc
import os
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Header, Put, SettleAction, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.outgoing import Outgoing, delayed, new_note
from django_delayq.errors import BrokerUnavailable
from tests.brokers.rig import settlement
from tests.rabbitmq.conftest import delayq_on
from tests.rabbitmq.support import (
    WANT,
    Clock,
    broker_on,
    claim,
    crash,
    fetch,
    finish,
    nothing_is_left,
    put_anew,
    settle,
    wait_until_fetched,
)
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S


def test_a_sleep_ends_whose_connection_was_lost_before(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    broker.claim(WANT, lease_ms=60_000, worker="w")
    broker._link.drop()  # another thread's fault
    assert broker.wait(PATIENCE_S)


def test_it_is_kept_while_nothing_can_be_published(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    crash(rabbitmq_server)
    with rabbitmq_server.memory_full(), pytest.raises(BrokerUnavailable, match="takes no messages"):
        claim(broker)
    assert claim(broker).crashes == 1


def test_what_another_one_held_until_it_was_due_is_not_early(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    with broker_on(rabbitmq_server) as lost:
        lost.claim(WANT, lease_ms=60_000, worker="w")  # its queue is there before, which may take longer than the delay
        sent_at = time.monotonic()
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=999)])
        wait_until_fetched(lost)
        lost._link.drop()
        claimed = claim(broker)
    assert time.monotonic() - sent_at >= 0.999
    assert claimed.crashes == 0  # whoever is away before it is due has not begun it


def test_what_was_delivered_and_not_claimed_is_charged_no_crash(rabbitmq_server: RabbitMQServer, clock: Clock) -> None:
    with broker_on(rabbitmq_server, wall=clock, monotonic=clock) as broker:
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=100)])
        wait_until_fetched(broker)
        clock.now = 10.0  # it is due for long: nobody else could tell that it was not begun
        broker._link.drop()
        while not (messages := broker.claim(WANT, lease_ms=60_000, worker="w").messages):
            clock.now += 1.0  # it is held anew
            broker.wait(0.1)
    assert messages[0].crashes == 0


def test_what_must_not_start_twice_and_was_not_begun_survives_its_connections(
    rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    hands = [Want("q", "k", 3, at_once=1)]
    with broker_on(rabbitmq_server, wall=clock, monotonic=clock) as broker:
        broker.put([Put(id, Header("q", "k", at_most_once=True), b"1", delay_ms=100) for id in "abc"])
        while not (box := broker._inbox.boxes.get(("q", "k"))) or len(box.held) < 3:
            broker.claim(hands, lease_ms=60_000, worker="w")
        clock.now = 10.0  # all are due, and there is one hand
        (begun,) = broker.claim(hands, lease_ms=60_000, worker="w").messages
        broker._link.drop()
        with broker._receiving():
            pass
        rabbitmq_server.cut()  # before anything came again
        started = [begun.id]
        while len(started) < 3:
            with suppress(BrokerUnavailable):  # it has to find out
                claimed = broker.claim(hands, lease_ms=60_000, worker="w").messages
                started += [message.id for message in claimed]
                broker.settle([finish(message) for message in claimed])
            clock.now += 1.0  # what comes again is held anew
        assert settle(broker, finish(begun)) is True
        assert broker.errors(10) == []
    assert sorted(started) == ["a", "b", "c"]


def test_what_must_not_start_twice_and_was_lost_is_told_of_once(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.put([Put("a", Header("q", "k", at_most_once=True), b"1")])
    crash(rabbitmq_server)
    while not broker.errors(10):
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == []
    ((told,), none) = (broker.upkeep(lease_ms=60_000).buried for _ in range(2))
    assert (told.id, told.queue, told.key, none) == ("a", "q", "k", [])
    assert "must not start twice" in told.error


def test_what_came_again_in_a_claim_is_counted_by_the_next_upkeep(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    crash(rabbitmq_server)
    assert claim(broker).crashes == 1
    assert [broker.upkeep(lease_ms=60_000).reclaimed for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("once", [True, False])
def test_of_two_copies_a_process_starts_one(broker: RabbitMQBroker, once: bool) -> None:
    now_ms = broker._clock.now_ms()
    note = new_note(Put("a", Header("q", "k", at_most_once=once), b"1"), now_ms, now_ms)
    copy = delayed(broker._names, note, b"1", 0, broker._clock)
    broker._publisher.publish([copy])
    begun = claim(broker)
    broker._publisher.publish([copy])  # as for want of a confirm
    fetch(broker, 2)
    broker._link.drop()  # nobody can tell which has begun
    assert settle(broker, finish(begun)) is True
    assert nothing_is_left(broker)
    assert broker.errors(1) == []


def test_a_second_copy_that_others_have_put_anew_is_dropped(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    now_ms = broker._clock.now_ms()
    copy = delayed(broker._names, new_note(Put("a", Header("q", "k"), b"1"), now_ms, now_ms), b"1", 0, broker._clock)
    broker._publisher.publish([copy])
    claimed = claim(broker, [Want("q", "k", 1)])  # it is sent no more
    broker._publisher.publish([copy])
    crash(rabbitmq_server)
    put_anew(rabbitmq_server)
    assert nothing_is_left(broker)
    assert broker.settle([finish(claimed)]) == [True]


def test_what_may_have_been_given_back_is_not_claimed_here(
    rabbitmq_server: RabbitMQServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_on(rabbitmq_server, wall=clock, monotonic=clock) as broker:
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=100)])
        wait_until_fetched(broker)
        publish = broker._publisher.publish

        def publish_unsure(out: Sequence[Outgoing], within_s: float = 2.0) -> None:
            publish(out)
            if out:
                raise BrokerUnavailable("the confirms were lost")

        for _ in range(2):
            clock.now += 2.0
            broker.upkeep(lease_ms=60_000)
        clock.now += 2.0  # nobody has asked for it for long enough
        with monkeypatch.context() as patch:
            patch.setattr(broker._publisher, "publish", publish_unsure)
            with pytest.raises(BrokerUnavailable):
                broker.upkeep(lease_ms=60_000)
        taken: list[str] = []
        while not taken or broker.counts().waiting[0].ready:
            claimed = broker.claim(WANT, lease_ms=60_000, worker="w").messages
            taken += [message.id for message in claimed]
            broker.settle([finish(message) for message in claimed])
            broker.upkeep(lease_ms=60_000)
    assert taken == ["a"]


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_could_not_be_settled_at_first_takes_one_place_and_not_two(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, is_cut: bool
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker, [Want("q", "k", 1)])  # it is sent no more
    retry = settlement(claimed, SettleAction.RETRY, error="no")
    with rabbitmq_server.memory_full(), pytest.raises(BrokerUnavailable):
        broker.settle([retry])  # the server has it in its buffer, and takes it when it can
    if is_cut:
        broker._link.drop()
    assert settle(broker, retry) is True
    again = claim(broker)
    assert again.failures == 1
    assert nothing_is_left(broker)


def test_the_queue_of_errors_is_made_again_for_what_is_buried(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker)
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(Names("delayq").error)
    assert broker.settle([settlement(claimed, SettleAction.BURY, error="no")]) == [True]
    assert [info.id for info in broker.errors(10)] == ["a"]


def test_a_queue_that_is_deleted_under_its_consumer_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    assert broker.settle([finish(claim(broker))]) == [True]
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(Names("delayq").ready("q", "k"))
    broker.put([Put("b", Header("q", "k"), b"1")])
    assert claim(broker).id == "b"


def _connection() -> object:
    broker = get_broker()
    assert isinstance(broker, RabbitMQBroker)
    return broker._publisher._link.connection


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_that_sends_leaves_its_parent_s_connections_alone(
    settings: Settings, rabbitmq_server: RabbitMQServer
) -> None:
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, None)}
    put = [Put("a", Header("q", "k"), b"1")]
    get_broker().put(put)
    connection = _connection()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            get_broker().put(put)
            gc.collect()
            code = 0
        finally:
            os._exit(code)  # whatever it raised: the child must not run the other tests
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    get_broker().put(put)
    assert _connection() is connection
    (waiting,) = get_broker().counts().waiting
    assert waiting.ready == 3
