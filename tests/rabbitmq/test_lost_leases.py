"""A connection that is lost under a lease: it goes on where nobody else can have begun its message, else it is lost."""

from collections.abc import Sequence

import pytest

from django_delayq.brokers.base import Claimed, Header, Put, SettleAction, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker, register
from django_delayq.brokers.rabbitmq.leases import ADRIFT_S
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.receiver import INTERRUPTED_S
from django_delayq.errors import BrokerUnavailable
from tests.brokers.rig import settlement
from tests.rabbitmq.support import (
    WANT,
    Clock,
    broker_on,
    claim,
    claim_suspect,
    crash,
    fetch,
    finish,
    nothing_is_left,
    put_anew,
    settle,
)
from tests.servers import RabbitMQServer


@pytest.mark.parametrize(
    "verb", [SettleAction.FINISH, SettleAction.RETRY, SettleAction.SNOOZE, SettleAction.BURY, SettleAction.CRASH]
)
def test_a_lease_goes_on_whose_message_comes_again_to_its_process(broker: RabbitMQBroker, verb: SettleAction) -> None:
    broker.put([Put("a", Header("q", "k", at_most_once=verb is SettleAction.FINISH), b"1")])
    claimed = claim(broker)
    broker._link.drop()
    assert broker.renew([("a", claimed.token)], 60_000) != [False]
    assert settle(broker, settlement(claimed, verb, error="no")) is True
    if verb is SettleAction.BURY:
        assert [info.id for info in broker.errors(10)] == ["a"]
    elif verb is not SettleAction.FINISH:
        again = claim(broker)
        assert (again.failures, again.crashes) == (verb is SettleAction.RETRY, verb is SettleAction.CRASH)
        assert broker.settle([finish(again)]) == [True]
    assert nothing_is_left(broker)


def test_a_lease_goes_on_though_nobody_asks_for_more(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker)
    broker._link.drop()
    while (held := broker.renew([("a", claimed.token)], 60_000)) == [None]:  # as where every hand is busy
        broker.upkeep(lease_ms=60_000)
    assert held == [True]


def test_a_lease_whose_message_could_not_be_asked_for_at_first_goes_on(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker)
    broker._link.drop()
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.basic_get(Names("delayq").register)
        monkeypatch.setattr(register, "HELD_S", 0.1)
        with pytest.raises(BrokerUnavailable, match="is empty"):
            broker.renew([("a", claimed.token)], 60_000)
    monkeypatch.undo()
    while (held := broker.renew([("a", claimed.token)], 60_000)) == [None]:
        broker.upkeep(lease_ms=60_000)
    assert held == [True]


def test_a_lease_that_was_interrupted_ends_as_soon_though_its_message_comes_again(
    rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    with broker_on(rabbitmq_server, monotonic=clock) as broker:
        broker.put([Put("a", Header("q", "k"), b"1")])
        claimed = claim(broker)
        assert broker.settle([settlement(claimed, SettleAction.INTERRUPT)]) == [True]
        broker._link.drop()
        while broker.upkeep(lease_ms=60_000).next_lease_end_ms is None:  # it has not come yet
            pass
        clock.now += INTERRUPTED_S
        assert broker.upkeep(lease_ms=60_000).reclaimed == 1
        assert claim(broker).crashes == 0


def test_a_lease_is_lost_whose_message_goes_to_another_process(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    with broker_on(rabbitmq_server, monotonic=clock) as lost:
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(lost)
        lost._link.drop()
        again = claim(broker)
        assert (again.id, again.crashes, again.failures) == ("a", 1, 0)
        assert lost.settle([finish(first)]) == [None]
        clock.now += ADRIFT_S
        assert lost.upkeep(lease_ms=60_000).reclaimed == 0
        assert lost.renew([("a", first.token)], 60_000) == [False]
        assert lost.settle([finish(first)]) == [False]
    assert broker.settle([finish(again)]) == [True]


def test_a_worker_that_stops_keeps_its_connection_alive(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker)
    connection = broker._link.connection
    assert connection is not None
    connection.prev_sent, connection.last_heartbeat_sent = connection.bytes_sent, 0  # nothing was sent for long
    assert broker.renew([("a", claimed.token)], 60_000) == [True]
    assert connection.last_heartbeat_sent > 0


def test_a_worker_that_stops_is_told_that_a_lease_is_another_s(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, clock: Clock
) -> None:
    with broker_on(rabbitmq_server, monotonic=clock) as stopping:
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(stopping)
        stopping._link.drop()
        claim(broker)
        assert stopping.renew([("a", first.token)], 60_000) == [None]
        clock.now += ADRIFT_S
        assert stopping.renew([("a", first.token)], 60_000) == [False]  # it renews, and does no upkeep any more
        assert stopping.settle([finish(first)]) == [False]


def test_what_comes_again_too_late_runs_again(rabbitmq_server: RabbitMQServer, clock: Clock) -> None:
    with (
        broker_on(rabbitmq_server, monotonic=clock) as broker,
        broker_on(rabbitmq_server) as other,
    ):
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(broker)
        broker._link.drop()
        fetch(other, 1)
        assert broker.settle([finish(first)]) == [None]
        clock.now += ADRIFT_S
        broker.upkeep(lease_ms=60_000)
        other._link.drop()
        again = claim(broker)
        assert again.crashes == 1
        assert broker.settle([finish(first), finish(again)]) == [False, True]


def claimed_and_put_anew(broker: RabbitMQBroker, server: RabbitMQServer, wants: Sequence[Want] = WANT) -> Claimed:
    """A message whose connection is lost while it is leased, and that another process has put anew."""
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker, wants)
    broker._link.drop()
    put_anew(server)
    return claimed


def test_a_lease_goes_on_whose_message_another_process_has_put_anew(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    claimed = claimed_and_put_anew(broker, rabbitmq_server)
    assert settle(broker, finish(claimed)) is True
    assert nothing_is_left(broker)


def test_a_message_that_goes_on_here_takes_no_hand_of_the_next_one(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    hand = [Want("q", "k", 1)]
    claimed = claimed_and_put_anew(broker, rabbitmq_server, hand)
    while broker.renew([("a", claimed.token)], 60_000) != [True]:
        assert broker.claim(hand, lease_ms=60_000, worker="w").messages == []
    assert broker._wanted == [("q", "k")]  # the hand is still free: the next sleep ends with what comes
    consumer = broker._inbox.boxes["q", "k"].consumer
    assert consumer is not None
    assert not consumer.is_full


def test_a_lease_does_not_go_on_whose_message_another_process_may_have_begun(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    claimed = claimed_and_put_anew(broker, rabbitmq_server)
    crash(rabbitmq_server)
    again = claim_suspect(broker)
    assert again.crashes == 2
    assert broker.settle([finish(claimed), finish(again)]) == [None, True]


def test_a_suspect_comes_again_to_the_process_that_had_it(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    crash(rabbitmq_server, 2)
    claimed = claim_suspect(broker)
    assert (claimed.id, claimed.crashes) == ("a", 2)
    broker._link.drop()
    assert settle(broker, finish(claimed)) is True
    assert broker.upkeep(lease_ms=60_000).suspects_due == 0


def test_a_lease_that_lapsed_is_put_anew_for_the_process_that_had_it(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    while not broker.claim(WANT, lease_ms=0, worker="w").messages:
        broker.wait(1)
    assert broker.upkeep(lease_ms=0).reclaimed == 1
    assert claim(broker).crashes == 1
