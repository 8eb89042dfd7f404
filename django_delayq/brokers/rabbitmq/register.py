"""The shared state of a delayq in RabbitMQ: one message of JSON in a queue of length one.

Whoever declares the queue publishes the first message. Taking the message is the lock: while one process holds it,
others find the queue empty, and try again. Publishing the next one pushes the last one out, so there is never more than
one. If its holder dies, the server gives it back.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

from amqp import Channel, Connection, Message

from django_delayq.brokers.meta import Meta
from django_delayq.brokers.rabbitmq.alarms import PERSISTENT
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.core import codec
from django_delayq.core.errors import BrokerUnavailable

HELD_S, PAUSE_S = 2.0, 0.005
"""How long to wait for a process that holds it, and between two tries."""

R = TypeVar("R")


@dataclass(slots=True)
class Entries(Meta):
    """The content of the register."""

    owner: str = ""
    """The store that the alarms are for."""

    def own(self, candidate: str) -> str:
        """Make the candidate the owner where there is none. Return the owner."""
        self.owner = self.owner or candidate
        return self.owner


class Register:
    """Reads and changes the register over any connection whose topology is declared."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def read(self, connection: Connection) -> Entries:
        """Return what the register holds now."""
        with connection.channel() as channel:
            message, entries = self._take(channel)
            channel.basic_reject(message.delivery_tag, requeue=True)
            return entries

    def change(self, connection: Connection, edit: Callable[[Entries], R]) -> R:
        """Let `edit` change what the register holds, and return what `edit` returns."""
        with connection.channel() as channel:
            message, entries = self._take(channel)
            answer = edit(entries)
            new = Message(codec.dumps(entries).decode(), delivery_mode=PERSISTENT)
            # If the queue is no longer bound, this fails before the old one is acknowledged.
            channel.basic_publish_confirm(new, self._names.direct, self._names.register, mandatory=True)
            channel.basic_ack(message.delivery_tag)
            return answer

    def _take(self, channel: Channel) -> tuple[Message, Entries]:
        until = monotonic() + HELD_S
        while (message := channel.basic_get(self._names.register)) is None:
            if monotonic() >= until:
                raise BrokerUnavailable(
                    f"RabbitMQ's queue {self._names.register!r} is empty: a process that is frozen holds its message;"
                    " or it was purged, then delete it, and it is made anew."
                )
            sleep(PAUSE_S)
        with suppress(ValueError):
            return message, codec.decoder_for(Entries).decode(message.body)  # ignores the fields of later versions
        return message, Entries()  # someone else wrote it
