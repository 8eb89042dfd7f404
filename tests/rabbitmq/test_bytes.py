"""Any bytes in a message at RabbitMQ end in an error of ours, and never hold up what comes after them."""

from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from amqp import Message

from django_delayq.brokers.base import WorkerInfo
from django_delayq.brokers.rabbitmq import RabbitMQBroker, link, shared_state
from django_delayq.brokers.rabbitmq.alarms import ENVELOPE, Address, Envelope, pack, unpack
from django_delayq.brokers.rabbitmq.link import await_readable, drain
from django_delayq.core import codec
from django_delayq.core.errors import DelayqError
from django_delayq.support.validation import MAX_NAME
from tests.rabbitmq.support import NAMES, WANT, channel_of, claim, pks, put
from tests.servers import RabbitMQServer
from tests.worker.rig import PATIENCE_S

WHOLE, LONG = Envelope("7", Address("q", "k")), "9" * (MAX_NAME + 1)
NESTED = '{"a":' * 20_000
HUGE = "9" * 400
OURS = codec.dumps(Envelope("7", Address("q", "k"), 1, 2, "c", 3.0)).decode()
ENVELOPES = [
    NESTED,
    b"\xff\xfe",
    b"\xed\xa0\x80",
    7,
    {"nested": [{}]},
    OURS.replace('"due_ms":1', f'"due_ms":{HUGE}'),
    OURS.replace('"hold_ms":2', f'"hold_ms":{HUGE}'),
    OURS.replace('"hold_ms":2', '"hold_ms":-1'),
    OURS.replace('"due_s":3.0', '"due_s":-1e308'),
    OURS.replace('"queue":"q"', '"queue":"\\ud800"'),
    OURS.replace('"queue":"q"', '"queue":""'),
    OURS.replace('"key":"k"', f'"key":"{HUGE}"'),
    OURS.replace('"id":"7"', f'"id":"{HUGE}"'),
    OURS.replace('"id":"7"', '"id":""'),
]
PROPERTIES: list[dict[str, Any]] = [
    *({"type": "delayq.alarm", "application_headers": {ENVELOPE: envelope}} for envelope in ENVELOPES),
    {"type": b"delayq.alarm\xff"},
    {"type": "delayq.alarm"},
    {"message_id": b"\xff"},
    {"content_encoding": b"\xff"},
]
STATES = [
    NESTED,
    b"\xff\xfe",
    "[]",
    '{"cursor":-1}',
    f'{{"cursor":{HUGE}}}',
    f'{{"workers":{{"w":{{"name":"w","queues":[],"keys":[],"running":{HUGE},"started_ms":1}}}}}}',
    f'{{"workers":{{"w":{{"name":"w","queues":[],"keys":[],"running":1,"started_ms":1,"seen_ms":{HUGE}}}}}}}',
]


@pytest.mark.parametrize("place", ["ready", "stray", "pauses"])
def test_a_message_with_any_properties_holds_up_no_alarm(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, place: str
) -> None:
    broker.timer.take_due(WANT, lease_ms=60_000, worker="w")  # its queue is there
    with channel_of(rabbitmq_server) as channel:
        for properties in PROPERTIES:
            message = Message(b"\xff", delivery_mode=2, **properties)
            match place:
                case "ready":
                    channel.basic_publish_confirm(message, NAMES.direct, NAMES.ready("q", "k"))
                case "stray":
                    channel.basic_publish_confirm(message, NAMES.stray, b"\xff\xfe")
                case "pauses":
                    channel.basic_publish_confirm(message, NAMES.pause_notices, b"\xff\xfe")
    put(broker, {"ours": 1})
    found: list[str] = []
    while "ours" not in found:
        broker.timer.maintain(lease_ms=60_000)
        found += pks(claim(broker))
    with channel_of(rabbitmq_server) as channel:
        broker.timer.maintain(lease_ms=60_000)
        assert channel.queue_declare(NAMES.stray, passive=True).message_count == 0


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_a_state_with_any_bytes_counts_as_none(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, state: str | bytes
) -> None:
    broker.open()
    with channel_of(rabbitmq_server) as channel:
        channel.basic_publish_confirm(Message(state, delivery_mode=2), NAMES.direct, NAMES.register)
    with suppress(DelayqError):
        assert broker.presence.workers() == []
    broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    assert [worker.name for worker in broker.presence.workers()] == ["w"]
    assert broker.timer.advance_cursor([], None, 1_000) == 1_000


@pytest.mark.parametrize(
    "long",
    [replace(WHOLE, id=LONG), replace(WHOLE, header=Address(LONG, "k")), replace(WHOLE, header=Address("q", LONG))],
)
def test_no_name_of_an_alarm_is_kept_that_is_longer_than_any_of_ours(long: Envelope) -> None:
    assert unpack(pack(WHOLE)) == WHOLE
    assert unpack(pack(long)) is None


def test_a_state_of_any_size_counts_as_none_and_is_not_decoded(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.presence.heartbeat(WorkerInfo("w", ["q"], ["k"], 0, 0))
    assert len(broker.presence.workers()) == 1
    monkeypatch.setattr(shared_state, "MOST_BYTES", 10)
    assert broker.presence.workers() == []


def test_what_is_published_without_end_is_read_for_a_moment_at_a_time(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.open()
    got: list[Message] = []
    with channel_of(rabbitmq_server) as channel:
        queue, *_ = channel.queue_declare(f"{NAMES.prefix}.flood", exclusive=True)
        channel.queue_bind(queue, NAMES.direct, queue)
        for _ in range(10):
            channel.basic_publish(Message(""), NAMES.direct, queue)
        channel.basic_consume(queue, no_ack=True, callback=got.append)
        with monkeypatch.context() as patch:
            patch.setattr(link, "monotonic", count(step=link.DRAIN_S / 2).__next__)
            await_readable([channel.connection.sock], PATIENCE_S)
            drain(channel.connection)
            assert len(got) < 10
        while len(got) < 10:
            await_readable([channel.connection.sock], PATIENCE_S)
            drain(channel.connection)
