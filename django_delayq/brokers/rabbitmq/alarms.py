"""An alarm on its way: the AMQP message, what travels in its header, and where it is published."""

import secrets
from dataclasses import dataclass

from amqp import Message

from django_delayq.brokers.base import Alarm, Pair
from django_delayq.brokers.rabbitmq.clock import Clock
from django_delayq.brokers.rabbitmq.names import LONGEST_S, Names
from django_delayq.core import codec

ENVELOPE = "delayq"
ALARM = "delayq.alarm"
PERSISTENT = 2

MARGIN_MS = 300
"""An alarm leaves the levels so long before it is due, at least: hops that take less cost no lateness, where a worker
can tell."""


@dataclass(slots=True)
class Address:
    """The queue and the key that an alarm is for."""

    queue: str
    key: str


@dataclass(slots=True)
class Envelope:
    """What a message tells of its alarm, as JSON in one header.

    `id` is the pk of the row. `hold_ms` is what is left of the wait when the message arrives. `due_s` is when the alarm
    is due by the monotonic clock of the machine that sent it, `clock`: whoever has the same one need not be as late as
    the message.
    """

    id: str
    header: Address
    due_ms: int = 0
    hold_ms: int = 0
    clock: str = ""
    due_s: float = 0.0

    @property
    def pair(self) -> Pair:
        """The queue and the key."""
        return self.header.queue, self.header.key


@dataclass(slots=True)
class Outgoing:
    """A message to publish, and the pair whose queue must be there for it."""

    exchange: str
    routing_key: str
    message: Message
    pair: Pair | None
    uid: str


def outgoing(names: Names, alarm: Alarm, clock: Clock) -> Outgoing:
    """Return an alarm's message: whole seconds of the wait in the levels, the rest held by the worker that gets it.

    A level's clock counts whole milliseconds, so each may last one less than it should: the worker holds that too.
    What is too far for the levels comes early, and is scheduled again.
    """
    wait_ms = min(alarm.wait_ms, LONGEST_S * 1000)
    seconds = max(wait_ms - MARGIN_MS, 0) // 1000
    envelope = Envelope(
        alarm.pk,
        Address(alarm.queue, alarm.key),
        due_ms=clock.now_ms() + wait_ms,
        hold_ms=wait_ms - seconds * 1000 + seconds.bit_count(),
        clock=clock.name,
        due_s=clock.monotonic() + (wait_ms + 1) / 1000,  # due times are rounded up to 1 ms
    )
    return _outgoing(*names.way(seconds, *envelope.pair), pack(envelope), envelope.pair)


def rerouted(names: Names, stray: Message) -> Outgoing:
    """Return a stray's way to where it belongs: the queue of its pair, or that of errors where it is no alarm."""
    envelope = unpack(stray)
    headers = stray.properties.get("application_headers", {})
    kept = {ENVELOPE: headers[ENVELOPE]} if ENVELOPE in headers else {}  # the server has added some of its own
    told = {"type": stray.properties.get("type", ""), "application_headers": kept}
    again = Message(stray.body, delivery_mode=PERSISTENT, **told)
    if envelope is None:
        return _outgoing(names.direct, names.error, again, None)
    return _outgoing(names.direct, names.ready(*envelope.pair), again, envelope.pair)


def _outgoing(exchange: str, routing_key: str, message: Message, pair: Pair | None) -> Outgoing:
    uid = secrets.token_urlsafe(9)  # the server returns the message, where nothing is bound, and not its tag
    message.properties["message_id"] = uid
    return Outgoing(exchange, routing_key, message, pair, uid)


def pack(envelope: Envelope) -> Message:
    """Return the AMQP message of an alarm."""
    text = codec.dumps(envelope).decode()
    return Message("", type=ALARM, delivery_mode=PERSISTENT, application_headers={ENVELOPE: text})


def unpack(message: Message) -> Envelope | None:
    """Return what an alarm tells, None for any other message. What a later version tells beside is passed over."""
    if message.properties.get("type") != ALARM:
        return None
    try:
        envelope: Envelope = codec.decoder_for(Envelope).decode(message.properties["application_headers"][ENVELOPE])
    except (KeyError, TypeError, ValueError):
        return None
    return envelope
