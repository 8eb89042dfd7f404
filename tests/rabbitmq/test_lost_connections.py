"""A connection that is lost under a worker: what it had comes again, charged once, and never gets lost on its way."""

import gc
import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress

import pytest
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Claimed, Header, Put, Settlement, Verb, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker, register
from django_delayq.brokers.rabbitmq.leases import ADRIFT_S
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.outgoing import Outgoing, delayed, new_note
from django_delayq.brokers.rabbitmq.receiver import INTERRUPTED_S
from django_delayq.conf import Alias
from django_delayq.errors import BrokerUnavailable
from tests.rabbitmq.conftest import delayq_on
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S

WANT = [Want("q", "k", 10)]


def claim(broker: RabbitMQBroker, wants: Sequence[Want] = WANT) -> Claimed:
    while not (messages := broker.claim(wants, lease_ms=60_000, worker="w").messages):
        broker.wait(1)
    (message,) = messages
    return message


def wait_until_fetched(broker: RabbitMQBroker) -> None:
    """Until it holds a message that is not due yet."""
    while (claims := broker.claim(WANT, lease_ms=60_000, worker="w")).next_due_ms is None:
        assert claims.messages == []  # else it was due before it was looked for, and this would wait for ever
        broker.wait(1)


def fetch(broker: RabbitMQBroker, count: int) -> None:
    """Have it so many messages, and do nothing about the last one."""
    with broker._receiving([("q", "k")]):
        broker._inbox.consume(("q", "k"), 1)
        while len(broker._inbox._unacknowledged) < count:
            broker._inbox.flush()


def claim_suspect(broker: RabbitMQBroker) -> Claimed:
    while not (messages := broker.claim_suspect(WANT, lease_ms=60_000, worker="w").messages):
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == []  # takes in what was lost
    (message,) = messages
    return message


def finish(claimed: Claimed) -> Settlement:
    return Settlement(claimed.id, claimed.token, Verb.FINISH, "q", "k")


def settle(broker: RabbitMQBroker, settlement: Settlement) -> bool | None:
    """The answer, as soon as it can be told; meanwhile nothing is given."""
    while (answer := broker.settle([settlement])[0]) is None:
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == []
        assert broker.claim_suspect(WANT, lease_ms=60_000, worker="w").messages == []
    return answer


def crash(server: RabbitMQServer, times: int = 1) -> None:
    """Workers die that have claimed the only message."""
    for _ in range(times):
        with closing(RabbitMQBroker(Alias("default", location=server.url))) as broker:
            claim(broker)
            broker._link.drop()


def nothing_is_left(broker: RabbitMQBroker) -> bool:
    """Whether no message comes any more, and none waits."""
    while waiting := [each for each in broker.counts().waiting if each.ready]:
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == [], waiting
    return not broker.claim(WANT, lease_ms=60_000, worker="w").messages


@pytest.mark.parametrize("verb", [Verb.FINISH, Verb.RETRY, Verb.SNOOZE, Verb.BURY, Verb.CRASH])
def test_a_lease_goes_on_whose_message_comes_again_to_its_process(broker: RabbitMQBroker, verb: Verb) -> None:
    broker.put([Put("a", Header("q", "k", at_most_once=verb is Verb.FINISH), b"1")])
    claimed = claim(broker)
    broker._link.drop()
    assert broker.renew([("a", claimed.token)], 60_000) != [False]
    assert settle(broker, Settlement("a", claimed.token, verb, "q", "k", error="no")) is True
    if verb is Verb.BURY:
        assert [info.id for info in broker.errors(10)] == ["a"]
    elif verb is not Verb.FINISH:
        again = claim(broker)
        assert (again.failures, again.crashes) == (verb is Verb.RETRY, verb is Verb.CRASH)
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
    rabbitmq_server: RabbitMQServer,
) -> None:
    now = 0.0
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, monotonic=lambda: now)) as broker:
        broker.put([Put("a", Header("q", "k"), b"1")])
        claimed = claim(broker)
        assert broker.settle([Settlement("a", claimed.token, Verb.INTERRUPT, "q", "k")]) == [True]
        broker._link.drop()
        while broker.upkeep(lease_ms=60_000).next_lease_end_ms is None:  # it has not come yet
            pass
        now += INTERRUPTED_S
        assert broker.upkeep(lease_ms=60_000).reclaimed == 1
        assert claim(broker).crashes == 0


def test_a_lease_is_lost_whose_message_goes_to_another_process(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    now = 0.0
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, monotonic=lambda: now)) as lost:
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(lost)
        lost._link.drop()
        again = claim(broker)
        assert (again.id, again.crashes, again.failures) == ("a", 1, 0)
        assert lost.settle([finish(first)]) == [None]
        now += ADRIFT_S
        assert lost.upkeep(lease_ms=60_000).reclaimed == 0
        assert lost.renew([("a", first.token)], 60_000) == [False]
        assert lost.settle([finish(first)]) == [False]
    assert broker.settle([finish(again)]) == [True]


def test_a_sleep_ends_whose_connection_was_lost_before(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    broker.claim(WANT, lease_ms=60_000, worker="w")
    broker._link.drop()  # another thread's fault
    assert broker.wait(PATIENCE_S)


def test_a_worker_that_stops_keeps_its_connection_alive(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    claimed = claim(broker)
    connection = broker._link.connection
    assert connection is not None
    connection.prev_sent, connection.last_heartbeat_sent = connection.bytes_sent, 0  # nothing was sent for long
    assert broker.renew([("a", claimed.token)], 60_000) == [True]
    assert connection.last_heartbeat_sent > 0


def test_a_worker_that_stops_is_told_that_a_lease_is_another_s(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    now = 0.0
    with closing(RabbitMQBroker(Alias("default", location=rabbitmq_server.url), monotonic=lambda: now)) as stopping:
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(stopping)
        stopping._link.drop()
        claim(broker)
        assert stopping.renew([("a", first.token)], 60_000) == [None]
        now += ADRIFT_S
        assert stopping.renew([("a", first.token)], 60_000) == [False]  # it renews, and does no upkeep any more
        assert stopping.settle([finish(first)]) == [False]


def test_what_comes_again_too_late_runs_again(rabbitmq_server: RabbitMQServer) -> None:
    now = 0.0
    alias = Alias("default", location=rabbitmq_server.url)
    with (
        closing(RabbitMQBroker(alias, monotonic=lambda: now)) as broker,
        closing(RabbitMQBroker(alias)) as other,
    ):
        broker.put([Put("a", Header("q", "k"), b"1")])
        first = claim(broker)
        broker._link.drop()
        fetch(other, 1)
        assert broker.settle([finish(first)]) == [None]
        now += ADRIFT_S
        broker.upkeep(lease_ms=60_000)
        other._link.drop()
        again = claim(broker)
        assert again.crashes == 1
        assert broker.settle([finish(first), finish(again)]) == [False, True]


def put_anew(server: RabbitMQServer) -> None:
    """Another worker is sent the only message, and puts it where it belongs."""
    with closing(RabbitMQBroker(Alias("default", location=server.url))) as other:
        fetch(other, 1)
        with other._receiving():
            other._inbox.cancel(other._inbox.boxes["q", "k"])  # it takes no more
        assert other.upkeep(lease_ms=60_000).reclaimed == 1


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


def test_it_is_kept_while_nothing_can_be_published(broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    crash(rabbitmq_server)
    with rabbitmq_server.memory_full(), pytest.raises(BrokerUnavailable, match="takes no messages"):
        claim(broker)
    assert claim(broker).crashes == 1


def test_what_another_one_held_until_it_was_due_is_not_early(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    with closing(RabbitMQBroker(Alias("default", location=rabbitmq_server.url))) as lost:
        lost.claim(WANT, lease_ms=60_000, worker="w")  # its queue is there before, which may take longer than the delay
        sent_at = time.monotonic()
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=999)])
        wait_until_fetched(lost)
        lost._link.drop()
        claimed = claim(broker)
    assert time.monotonic() - sent_at >= 0.999
    assert claimed.crashes == 0  # whoever is away before it is due has not begun it


def test_what_was_delivered_and_not_claimed_is_charged_no_crash(rabbitmq_server: RabbitMQServer) -> None:
    now = 0.0
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, wall=lambda: now, monotonic=lambda: now)) as broker:
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=100)])
        wait_until_fetched(broker)
        now = 10.0  # it is due for long: nobody else could tell that it was not begun
        broker._link.drop()
        while not (messages := broker.claim(WANT, lease_ms=60_000, worker="w").messages):
            now += 1.0  # it is held anew
            broker.wait(0.1)
    assert messages[0].crashes == 0


def test_what_must_not_start_twice_and_was_not_begun_survives_its_connections(rabbitmq_server: RabbitMQServer) -> None:
    now = 0.0
    hands = [Want("q", "k", 3, at_once=1)]
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, wall=lambda: now, monotonic=lambda: now)) as broker:
        broker.put([Put(id, Header("q", "k", at_most_once=True), b"1", delay_ms=100) for id in "abc"])
        while not (box := broker._inbox.boxes.get(("q", "k"))) or len(box.held) < 3:
            broker.claim(hands, lease_ms=60_000, worker="w")
        now = 10.0  # all are due, and there is one hand
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
            now += 1.0  # what comes again is held anew
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


def test_a_lease_that_lapsed_is_put_anew_for_the_process_that_had_it(broker: RabbitMQBroker) -> None:
    broker.put([Put("a", Header("q", "k"), b"1")])
    while not broker.claim(WANT, lease_ms=0, worker="w").messages:
        broker.wait(1)
    assert broker.upkeep(lease_ms=0).reclaimed == 1
    assert claim(broker).crashes == 1


def test_what_may_have_been_given_back_is_not_claimed_here(
    rabbitmq_server: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, wall=lambda: now, monotonic=lambda: now)) as broker:
        broker.put([Put("a", Header("q", "k"), b"1", delay_ms=100)])
        wait_until_fetched(broker)
        publish = broker._publisher.publish

        def publish_unsure(out: Sequence[Outgoing], within_s: float = 2.0) -> None:
            publish(out)
            if out:
                raise BrokerUnavailable("the confirms were lost")

        for _ in range(2):
            now += 2.0
            broker.upkeep(lease_ms=60_000)
        now += 2.0  # nobody has asked for it for long enough
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
    retry = Settlement("a", claimed.token, Verb.RETRY, "q", "k", error="no")
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
    assert broker.settle([Settlement("a", claimed.token, Verb.BURY, "q", "k", error="no")]) == [True]
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
