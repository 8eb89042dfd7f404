"""Keep the shared state of an alias in RabbitMQ: one JSON message in a queue of length one.

The process that declares the queue publishes the first message. Taking the message is the lock: while one process holds
it, others find the queue empty, and try again. Publishing the next message pushes the last one out of the queue, so
there is never more than one. If the holder dies, the server puts the message back.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar

from amqp import Channel, Connection, Message

from django_delayq.brokers import shared_state
from django_delayq.brokers.rabbitmq.alarms import PERSISTENT
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.core import codec
from django_delayq.core.errors import BrokerUnavailable

MOST_BYTES = 2**24
"""A longer message is not read: someone else wrote it. The heartbeats of a thousand workers take a few MiB."""

HELD_S, PAUSE_S = 2.0, 0.005
"""How long to wait for another process that holds the shared state, and how long between two tries."""

R = TypeVar("R")


@dataclass(slots=True)
class SharedState(shared_state.SharedState):
    """The state that all processes with one prefix share."""

    owner: str = ""
    """The identity of the store that the alarms are for."""

    def own(self, candidate: str) -> str:
        """Make the candidate the owner if there is none. Return the owner."""
        self.owner = self.owner or candidate
        return self.owner


def read_state(connection: Connection, names: Names, within_s: float = HELD_S) -> SharedState:
    """Return the shared state, over a connection whose topology is declared."""
    with connection.channel() as channel:
        message, state = _take_state(channel, names, within_s)
        channel.basic_reject(message.delivery_tag, requeue=True)
        return state


def change_state(connection: Connection, names: Names, edit: Callable[[SharedState], R]) -> R:
    """Let `edit` change the shared state, and return what `edit` returns."""
    with connection.channel() as channel:
        message, state = _take_state(channel, names, HELD_S)
        answer = edit(state)
        new = Message(codec.dumps(state).decode(), delivery_mode=PERSISTENT)
        # If the queue is no longer bound, this fails before the old message is acknowledged.
        channel.basic_publish_confirm(new, names.direct, names.register, mandatory=True)
        channel.basic_ack(message.delivery_tag)
        return answer


def _take_state(channel: Channel, names: Names, within_s: float) -> tuple[Message, SharedState]:
    until = monotonic() + within_s
    while (message := channel.basic_get(names.register)) is None:
        if monotonic() >= until:
            raise BrokerUnavailable(
                f"RabbitMQ's queue {names.register!r} is empty: a process that is frozen holds its message; or it was"
                " purged, then delete it, and it is made again."
            )
        sleep(PAUSE_S)
    with suppress(ValueError, TypeError):
        if len(message.body) <= MOST_BYTES:
            return message, codec.read(message.body, SharedState)  # ignores the fields of later versions
    return message, SharedState()  # someone else wrote a message that can't be read
