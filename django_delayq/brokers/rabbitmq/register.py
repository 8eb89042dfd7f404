"""What concerns the delayq as a whole: one message of JSON in a queue of length one.

Who declares the queue puts the first one. Taking it is the lock: while one holds it, others find the queue empty, and
try again. Publishing the next one pushes the last one out, so there is never more than one; if its holder dies, the
server gives it back.
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
"""How long to wait for one who holds it, and between two looks."""

R = TypeVar("R")


@dataclass(slots=True)
class Entries(Meta):
    """What the register holds."""

    owner: str = ""
    """The store that the alarms are for."""

    def own(self, candidate: str) -> str:
        """Make the candidate the owner where there is none. Gives the owner."""
        self.owner = self.owner or candidate
        return self.owner


class Register:
    """Reads and changes the register on any connection whose topology is declared."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def read(self, connection: Connection) -> Entries:
        """What it holds now."""
        with connection.channel() as channel:
            message, entries = self._take(channel)
            channel.basic_reject(message.delivery_tag, requeue=True)
            return entries

    def change(self, connection: Connection, edit: Callable[[Entries], R]) -> R:
        """Hold what `edit` makes of it, and give what that gives."""
        with connection.channel() as channel:
            # To no queue: a server whose memory or disk alarm is on stops us here, and not while we hold the register.
            channel.basic_publish_confirm(Message(""), self._names.direct)
            message, entries = self._take(channel)
            answer = edit(entries)
            new = Message(codec.dumps(entries).decode(), delivery_mode=PERSISTENT)
            # Else what is bound no more would lose the old one too.
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
            return message, codec.decoder_for(Entries).decode(message.body)  # a later version may have told more
        return message, Entries()  # someone else wrote it
