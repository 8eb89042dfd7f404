"""The levels: every delay takes its own way, none waits behind a longer one, and none ends early."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from amqp import Message

from django_delayq.brokers.base import Alarm, Header, Put, SettleAction, Want, pages
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.boxes import Arrival
from django_delayq.brokers.rabbitmq.names import LEVELS, Names, SetName, address
from django_delayq.brokers.rabbitmq.notes import ALARM, MESSAGE, unpack
from django_delayq.brokers.rabbitmq.outgoing import Outgoing, alarm, delayed, new_note
from django_delayq.conf import Alias
from django_delayq.errors import BrokerUnavailable
from tests.brokers.rig import claim_some, settlement
from tests.scale import scaled
from tests.servers import RabbitMQServer
from tests.worker.processes import PATIENCE_S

WANT = [Want("q", "k", 100)]


def send(broker: RabbitMQBroker, **delays_ms: int) -> None:
    header = Header("q", "k")
    broker.put([Put(id, header, b"1", delay_ms=delay_ms) for id, delay_ms in delays_ms.items()])


def test_a_second_behind_an_hour_is_a_second(broker: RabbitMQBroker) -> None:
    send(broker, hour=3_600_000)
    started_at = time.monotonic()
    send(broker, second=1_000)
    (claimed,) = claim_some(broker, WANT)
    assert claimed.id == "second"
    assert time.monotonic() - started_at >= 1.0


def test_delays_end_in_their_order_and_none_early(broker: RabbitMQBroker) -> None:
    delays_ms = [3_210, 5, 1_999, 1_001, 2_000, 700, 3_000, 0]
    started_at = time.monotonic()
    send(broker, **{f"{delay_ms}": delay_ms for delay_ms in delays_ms})
    claimed: list[int] = []
    while len(claimed) < len(delays_ms):
        for message in claim_some(broker, WANT):
            claimed.append(int(message.id))
            assert time.monotonic() - started_at >= claimed[-1] / 1000
    assert sorted(claimed) == sorted(delays_ms)


def test_what_arrived_late_is_not_held_for_longer(broker: RabbitMQBroker) -> None:
    send(broker, a=200)
    time.sleep(0.201)  # a clock that is moved is that of no machine
    while not (claims := broker.claim(WANT, lease_ms=60_000, worker="w")).messages:
        assert claims.next_due_ms is None
        broker.wait(1)


def test_the_clock_of_another_machine_makes_nothing_early(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, monotonic=lambda: time.monotonic() - 3_600)) as other:
        send(other, a=0)
        claim_some(broker, WANT)  # all is set up
        sent_at = time.monotonic()
        send(other, b=400)
        claim_some(broker, WANT)
    assert time.monotonic() - sent_at >= 0.4


def test_a_queue_that_was_deleted_holds_up_nobody_and_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    gone = Header("q", "gone")
    broker.put([Put(f"{n}", gone, b"1", delay_ms=1_300) for n in range(40)])  # more than a level hands on at once
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(Names("delayq").ready("q", "gone"))
    send(broker, other=1_400)
    assert claim_some(broker, WANT)[0].id == "other"
    there = 0
    while there < 40:
        broker.upkeep(lease_ms=60_000)
        there = next(each.ready for each in broker.counts().waiting if each.key == "gone")


@pytest.mark.parametrize(("exchange", "delay_ms"), [("entry.04", 20_000), ("direct", 0)])
def test_an_exchange_that_was_deleted_is_made_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, exchange: str, delay_ms: int
) -> None:
    put = Put("a", Header("q", "k"), b"1", delay_ms=delay_ms)
    broker.put([put])
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.exchange_delete(f"delayq.{exchange}")
    broker.put([put])
    counts = broker.counts()
    assert counts.waiting[0].ready + sum(counts.levels) == 2


def test_what_was_deleted_between_the_levels_is_made_again_and_loses_nothing(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    names = Names("delayq")
    broker.claim(WANT, lease_ms=60_000, worker="w")  # its queue is there and bound: no claim asks for it again
    sent_at = time.monotonic()
    send(broker, a=3_300)  # two seconds, one second, the rest
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.exchange_delete(names.level(0))
        channel.queue_delete(names.level(0))
        channel.exchange_delete(names.due)
    until = time.monotonic() + PATIENCE_S
    while not (messages := broker.claim(WANT, lease_ms=60_000, worker="w").messages):
        assert time.monotonic() < until
        broker.upkeep(lease_ms=60_000)
        broker.wait(0.1)
    assert time.monotonic() - sent_at >= 3.3
    assert messages[0].crashes == 0
    send(broker, b=1_400)
    assert [message.id for message in claim_some(broker, WANT)] == ["b"]  # without upkeep: its queue is bound once more


def test_a_send_into_a_level_whose_queue_was_deleted_makes_it_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.open()
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(Names("delayq").level(4))
    send(broker, a=20_000)
    assert broker.counts().levels[4] == 1


@contextmanager
def declared_otherwise(server: RabbitMQServer, exchange: str) -> Iterator[None]:
    """Somebody has this exchange, with arguments that are not ours; and takes it away again."""
    with server.client() as client, client.channel() as channel:
        channel.exchange_delete(exchange)
        channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
        try:
            yield
        finally:
            channel.exchange_delete(exchange)


def test_a_level_that_somebody_has_declared_otherwise_is_told_and_holds_up_no_other(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.open()
    with declared_otherwise(rabbitmq_server, Names("delayq").level(5)):
        broker._publisher.mend()
        send(broker, a=1_300)
        assert "delayq.level.05" in caplog.text
        assert claim_some(broker, WANT)[0].id == "a"


def test_workers_outlive_that_the_queue_of_strays_is_deleted(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer
) -> None:
    broker.upkeep(lease_ms=60_000)
    with rabbitmq_server.client() as client, client.channel() as channel:
        channel.queue_delete(Names("delayq").stray)
    with pytest.raises(BrokerUnavailable, match="is made again"):
        broker.upkeep(lease_ms=60_000)
    broker.upkeep(lease_ms=60_000)


def end_levels_early(broker: RabbitMQBroker, out: Outgoing) -> None:
    """Have a message arrive at once, as if the node's clock had jumped ahead."""
    out.exchange, out.routing_key = Names("delayq").way(0, *out.set_name)
    broker._publisher.publish([out])


def message_due_in(broker: RabbitMQBroker, delay_ms: int) -> Outgoing:
    now_ms = broker._clock.now_ms()
    note = new_note(Put("a", Header("q", "k"), b"1"), now_ms, now_ms + delay_ms)
    return delayed(broker._names, note, b"1", delay_ms, broker._clock)


def test_what_its_levels_end_early_starts_at_its_time(broker: RabbitMQBroker) -> None:
    broker.open()
    sent_at = time.monotonic()
    end_levels_early(broker, message_due_in(broker, 2_500))
    (message,) = claim_some(broker, WANT)
    assert time.monotonic() - sent_at >= 2.5
    assert (message.failures, message.crashes) == (0, 0)


@pytest.mark.parametrize("kind", [MESSAGE, ALARM])
def test_what_its_levels_end_long_before_its_time_goes_into_them_again(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    hour = 3_600_000
    of_row = Alarm("q", "k", "a", hour)
    told = message_due_in(broker, hour) if kind == MESSAGE else alarm(broker._names, of_row, broker._clock)
    end_levels_early(broker, told)
    until = time.monotonic() + PATIENCE_S
    while not broker.counts().levels[11]:  # 2,048 seconds and more
        assert time.monotonic() < until
        claims = broker.claim(WANT, lease_ms=60_000, worker="w")
        assert (claims.messages, claims.alarms) == ([], [])
        broker.upkeep(lease_ms=60_000)
    with rabbitmq_server.client() as client, client.channel() as channel:
        message = channel.basic_get(Names("delayq").level(11))
        note, _ = unpack(message)
    before, _ = unpack(told.message)
    assert note
    assert before
    assert (message.properties["type"], note.id, note.due_ms) == (kind, "a", before.due_ms)
    assert (note.failures, note.crashes) == (0, 0)
    assert note.due_s >= before.due_s
    assert broker.counts().waiting[0].ready == 0
    assert [record.levelname for record in caplog.records if "has jumped ahead" in record.message] == ["WARNING"]


def test_each_bit_of_a_delay_is_a_level(broker: RabbitMQBroker) -> None:
    broker.put([Put(f"{level}", Header("q", "k"), b"1", delay_ms=2**level * 1000 + 999) for level in range(LEVELS)])
    levels = broker.counts().levels
    # The lowest may have ended meanwhile.
    assert levels[4:] == [1] * (LEVELS - 4)


def test_an_expired_level_leads_to_the_next_that_the_delay_asks_for(broker: RabbitMQBroker) -> None:
    send(broker, a=(2 + 16) * 1000)
    names = Names("delayq")
    exchange, routing_key = names.way(18, "q", "k")
    assert exchange == names.entry(4)
    bits, _, word = routing_key.rpartition(".")
    assert (int(bits.replace(".", ""), 2), word) == (18, address("q", "k"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a.b", "c"), ("a", "b.c")),
        (("q", "order.close"), ("order", "close")),
        (("#", "k"), ("*", "k")),
        (("q", "k" * 199 + "a"), ("q", "k" * 199 + "b")),
        (("q", "%2E"), ("q", ".")),
    ],
)
def test_two_sets_never_share_an_address(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert address(*one) != address(*other)
    for word in (address(*one), address(*other)):
        assert not set(word) & set(".*# ")
        assert len(word.encode()) + 2 * LEVELS < 256


def test_a_worker_that_sleeps_hears_of_what_is_due_before_all_that_it_holds(rabbitmq_server: RabbitMQServer) -> None:
    alias = Alias("default", location=rabbitmq_server.url)
    with closing(RabbitMQBroker(alias, wall=lambda: 0.0, monotonic=lambda: 0.0)) as broker:  # time stands still
        send(broker, **{f"later {n}": 900 for n in range(3)})
        send(broker, soon=400)
        broker.claim([Want("q", "k", 1)], lease_ms=60_000, worker="w")
        until = time.monotonic() + PATIENCE_S
        while broker._next_ready_in_s() > 0.4:
            assert time.monotonic() < until
            broker.wait(0.05)


@pytest.fixture
def there(broker: RabbitMQBroker, monkeypatch: pytest.MonkeyPatch) -> dict[str, Arrival]:
    """What the node has handed on, by id: the test takes out what is claimed."""
    there: dict[str, Arrival] = {}
    read = broker._inbox._arrival

    def arrive(message: Message, name: SetName | None) -> Arrival:
        arrival = read(message, name)
        there[arrival.note.id] = arrival
        return arrival

    monkeypatch.setattr(broker._inbox, "_arrival", arrive)
    return there


def test_many_shuffled_delays_end_in_due_order(broker: RabbitMQBroker, there: dict[str, Arrival]) -> None:
    """When the node hands a message on is the node's; what has come starts in due order, and none early."""
    size = scaled(400)
    delays_ms = random.sample(range(1_000, 1_000 + 3 * size), size)
    broker._publisher.declare([("q", "k")])  # that takes longer than some delays
    sent_at: list[float] = []
    for page in pages(delays_ms, 500):
        first = len(sent_at)
        sent_at += [time.monotonic()] * len(page)
        broker.put([Put(f"{first + n}", Header("q", "k"), b"1", delay_ms=delay_ms) for n, delay_ms in enumerate(page)])
    claimed: set[int] = set()
    while len(claimed) < size:
        (want,) = wants = [Want("q", "k", random.choice([1, 10, 100]))]  # as hands free, and handlers are fast
        due = [each for each in there.values() if each.ready_at <= time.monotonic()]
        messages = broker.claim(wants, lease_ms=60_000, worker="w").messages
        for message in messages:
            id = int(message.id)
            assert (time.monotonic() - sent_at[id]) * 1000 >= delays_ms[id]
            assert message.crashes == 0  # nobody died
            claimed.add(id)
            del there[message.id]
        if left := [each.note.due_ms for each in due if each.note.id in there]:
            assert len(messages) == want.count
            assert max(message.due_ms for message in messages) <= min(left)
        broker.settle([settlement(each, SettleAction.FINISH) for each in messages])
        if not messages:
            broker.wait(1)
