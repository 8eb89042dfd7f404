"""What this version tells in the header of an alarm, frozen, and what it makes of a later version's, and of others."""

from contextlib import closing

import pytest
from amqp import Message

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.alarms import ENVELOPE, Address, Envelope, pack, unpack
from django_delayq.conf import Alias
from django_delayq.core import codec
from tests.rabbitmq.support import NAMES, WANT, channel_of, claim, pks, put
from tests.servers import RabbitMQServer

WHOLE = Envelope("7", Address("q", "k"), 6, 7, "clock", 8.5)
FROZEN = '{"id":"7","header":{"queue":"q","key":"k"},"due_ms":6,"hold_ms":7,"clock":"clock","due_s":8.5}'


def test_what_is_told_is_what_other_versions_read() -> None:
    message = pack(WHOLE)
    assert (message.properties["type"], message.properties["application_headers"][ENVELOPE]) == ("delayq.alarm", FROZEN)
    assert unpack(message) == WHOLE


def test_what_a_later_version_tells_beside_is_passed_over() -> None:
    message = pack(WHOLE)
    told = codec.loads(FROZEN)
    told["header"]["later"] = told["later"] = 1
    message.properties["application_headers"][ENVELOPE] = codec.dumps(told).decode()
    assert unpack(message) == WHOLE


@pytest.mark.parametrize("text", ['{"header": []}', "", "null"])
def test_an_envelope_that_is_no_object_is_foreign(text: str) -> None:
    message = pack(WHOLE)
    message.properties["application_headers"][ENVELOPE] = text
    assert unpack(message) is None


CARRIED = Message(
    '{"data": 1}', type="delayq.message", delivery_mode=2, application_headers={ENVELOPE: FROZEN.replace("7", "9")}
)
"""A message as versions carried it that could do without a store."""
FOREIGN = Message("what?", delivery_mode=2)


@pytest.mark.parametrize("message", [CARRIED, FOREIGN], ids=["of a version that carried messages", "someone else's"])
def test_what_is_no_alarm_is_kept_run_by_nobody_and_holds_up_nothing(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    broker.timer.take_due(WANT, lease_ms=60_000, worker="w")  # its queue is there
    with channel_of(rabbitmq_server) as channel:
        for _ in range(3):  # confirmed: what the server has not taken yet may be lost when the channel closes
            channel.basic_publish_confirm(message, NAMES.direct, NAMES.ready("q", "k"))
    put(broker, {"later": 1})
    assert pks(claim(broker)) == ["later"]
    with channel_of(rabbitmq_server) as channel:
        # What came by another connection may get there after the alarm.
        while channel.queue_declare(NAMES.error, passive=True).message_count < 3:
            assert broker.timer.take_due(WANT, lease_ms=60_000, worker="w").alarms == []
        kept = [channel.basic_get(NAMES.error, no_ack=True) for _ in range(3)]
    assert [each.body for each in kept] == [message.body] * 3
    (warning,) = [record.message for record in caplog.records if "are no alarms" in record.message]
    assert "'delayq.ready.q/k'" in warning
    assert "'delayq.error'" in warning


@pytest.mark.parametrize("message", [CARRIED, FOREIGN], ids=["of a version that carried messages", "someone else's"])
def test_what_is_no_alarm_and_found_no_queue_is_kept(
    broker: RabbitMQBroker, rabbitmq_server: RabbitMQServer, message: Message
) -> None:
    broker.timer.maintain(lease_ms=60_000)
    with channel_of(rabbitmq_server) as channel:
        channel.basic_publish_confirm(message, NAMES.stray)
        broker.timer.maintain(lease_ms=60_000)
        kept = channel.basic_get(NAMES.error, no_ack=True)
    assert kept.body == message.body
    assert kept.properties.get("application_headers", {}).get(ENVELOPE) == message.properties.get(
        "application_headers", {}
    ).get(ENVELOPE)


def test_any_text_goes_there_and_back(rabbitmq_server: RabbitMQServer) -> None:
    with closing(RabbitMQBroker(Alias("default", location=rabbitmq_server.url))) as broker:
        broker.timer.schedule([Alarm("q", "k", '"ü\x00☕')])
        assert pks(claim(broker)) == ['"ü\x00☕']
