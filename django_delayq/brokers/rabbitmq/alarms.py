"""Build and read the AMQP messages of alarms.

Each gives its due time by two clocks: the wall clock, and the monotonic clock of the sender's machine.
"""

import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from amqp import Message

from django_delayq.brokers.base import Alarm, Pair
from django_delayq.brokers.rabbitmq.names import LONGEST_S, Names
from django_delayq.core import codec
from django_delayq.core.codec import Instant
from django_delayq.support.validation import MAX_NAME

ENVELOPE = "delayq"
ALARM = "delayq.alarm"
PERSISTENT = 2

MARGIN_MS = 300
"""An alarm leaves the levels at least this long before it is due, to make up for its time on the way. A worker on the
sender's machine then gets it in time, and waits for the rest."""


def _machine() -> str:
    """Return a name for the clock of `time.monotonic`. All processes of a Linux machine share it, in containers too.

    A container with a time namespace of its own has another name. Elsewhere each process gets its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/time")
    except OSError:  # no Linux: each process gets a name of its own
        boot = secrets.token_hex()
    return hashlib.sha256(boot.encode()).hexdigest()[:12]


MACHINE = _machine()


class Clock:
    """The wall clock and the monotonic clock, in seconds. Tests pass functions that they control."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self.name = MACHINE if monotonic is time.monotonic else ""
        """Processes whose clocks have the same name may compare times of `monotonic`; "" is shared by none."""

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down."""
        return math.floor(self.wall() * 1000)

    def ms_until(self, instant: float) -> int:
        """Return the ms until a time of the monotonic clock, rounded up; negative if that time has passed."""
        return math.ceil((instant - self.monotonic()) * 1000)


@dataclass(slots=True)
class Address:
    """The queue and the key that an alarm is for."""

    queue: str
    key: str


@dataclass(slots=True)
class Envelope:
    """The data of an alarm, as JSON in one header of its AMQP message.

    `id` is the pk of the row. `hold_ms` is how long a worker still has to wait once the message has left the levels.
    `due_s` is when the alarm is due by `clock`, the monotonic clock of the sender's machine. A worker on that machine
    goes by `due_s`, so the time that the message took on its way does not make the alarm late.
    """

    id: str
    header: Address
    due_ms: Instant = 0
    hold_ms: Instant = 0
    clock: str = ""
    due_s: float = 0.0

    @property
    def pair(self) -> Pair:
        """Return the queue and the key."""
        return self.header.queue, self.header.key


@dataclass(slots=True)
class Outgoing:
    """A message to publish, and the pair whose queue must be there for it."""

    exchange: str
    routing_key: str
    message: Message
    pair: Pair | None
    uid: str
    must_arrive: bool = True


def outgoing(names: Names, alarm: Alarm, clock: Clock) -> Outgoing:
    """Return the message of an alarm: it waits whole seconds in the levels, and the rest at the worker that gets it.

    A level counts whole milliseconds, so it may last 1 ms less than it should: the worker waits that long in addition.
    A wait that is too long for the levels ends early, and the alarm is scheduled again.
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
    return _outgoing(*names.route(seconds, *envelope.pair), pack(envelope), envelope.pair)


def rerouted(names: Names, stray: Message) -> Outgoing:
    """Return what to publish for a stray message: to the queue of its pair, or to the error queue if it is no alarm."""
    envelope = unpack(stray)
    headers = stray.properties.get("application_headers", {})
    told = headers.get(ENVELOPE)
    kept = {ENVELOPE: told} if isinstance(told, str) else {}  # without those that the server has added
    properties = {"type": stray.properties.get("type", ""), "application_headers": kept}
    again = Message(stray.body, delivery_mode=PERSISTENT, **properties)
    if envelope is None:
        return _outgoing(names.direct, names.error, again, None)
    return _outgoing(names.direct, names.ready(*envelope.pair), again, envelope.pair)


def notice(exchange: str) -> Outgoing:
    """Return an empty message to an exchange. It need not reach a queue, because the exchange may have none."""
    return replace(_outgoing(exchange, "", Message(""), None), must_arrive=False)


def _outgoing(exchange: str, routing_key: str, message: Message, pair: Pair | None) -> Outgoing:
    uid = secrets.token_urlsafe(9)  # a message that reaches no queue comes back without its delivery tag
    message.properties["message_id"] = uid
    return Outgoing(exchange, routing_key, message, pair, uid)


def pack(envelope: Envelope) -> Message:
    """Return the AMQP message of an alarm."""
    text = codec.dumps(envelope).decode()
    return Message("", type=ALARM, delivery_mode=PERSISTENT, application_headers={ENVELOPE: text})


def unpack(message: Message) -> Envelope | None:
    """Return the envelope of an alarm; None for a message that is no alarm, or no valid one.

    Fields that a later version added are ignored.
    """
    if message.properties.get("type") != ALARM:
        return None
    try:
        envelope = codec.read(message.properties["application_headers"][ENVELOPE], Envelope)
    except (KeyError, TypeError, ValueError):
        return None
    names = *envelope.pair, envelope.id  # these are kept until the alarm is due
    return envelope if all(0 < len(name) <= MAX_NAME for name in names) else None
