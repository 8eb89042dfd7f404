"""Publishing with confirms, in batches: what is confirmed is on the disks of its queue."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

from amqp import Channel, Connection, Message
from amqp.exceptions import AMQPError

from django_delayq.brokers.rabbitmq.link import Link
from django_delayq.brokers.rabbitmq.locations import Location
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.notes import unpack
from django_delayq.brokers.rabbitmq.outgoing import Outgoing
from django_delayq.brokers.rabbitmq.register import Register
from django_delayq.brokers.rabbitmq.topology import SetName, Topology
from django_delayq.errors import BrokerUnavailable

BUDGET_S = 2.0
PAUSE_S = 0.05
SENDING_S = 1.0
"""What is left at least for the messages, where new queues had to be made for them: that can take longer than all."""


class Publisher:
    """Declares and publishes on a connection of its own, which the server may block without holding up another one."""

    def __init__(self, location: Location, names: Names) -> None:
        self._link = Link(location)
        self._topology = Topology(names)
        self._register = Register(names)
        self._channel: Channel | None = None
        self._tag = 0
        self._waiting: dict[int, int] = {}  # delivery tag -> position
        self._unconfirmed: dict[int, Outgoing] = {}  # by position
        self._returned: set[str] = set()
        self._refused = ""

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """The connection, for a look or a change beside what is published."""
        with self._link.using() as connection:
            self._topology.ensure(connection, ())
            yield connection

    def declare(self, sets: Iterable[SetName]) -> None:
        """Make sure that the queues of these sets are there."""
        with self._link.using() as connection:
            self._ensure(connection, sets)

    def forget(self) -> None:
        """Declare all anew when it is needed: something may be gone."""
        self._topology.forget()

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def publish(self, outgoing: Sequence[Outgoing], within_s: float = BUDGET_S) -> None:
        """Publish all to queues that are there. Raises `BrokerUnavailable` when not all is confirmed in time.

        What a broken connection leaves unconfirmed is sent again, under the same uid.
        """
        if not outgoing:
            return
        until = monotonic() + within_s
        unconfirmed = dict(enumerate(outgoing))
        while True:
            try:
                with self._link.using(max(until - monotonic(), 0.01)) as connection:
                    self._attempt(connection, unconfirmed, until)
                return
            except BrokerUnavailable:
                if monotonic() + PAUSE_S >= until:
                    raise
                sleep(PAUSE_S)

    def _ensure(self, connection: Connection, sets: Iterable[SetName]) -> bool:
        new = self._topology.ensure(connection, sets)
        if new:
            self._register.note_sets(connection, new)
        return bool(new)

    def _attempt(self, connection: Connection, unconfirmed: dict[int, Outgoing], until: float) -> None:
        self._unconfirmed = unconfirmed
        if self._ensure(connection, (out.set_name for out in unconfirmed.values())):
            until = max(until, monotonic() + SENDING_S)
        if self._channel is None or self._channel.connection is not connection:
            self._channel = self._new_channel(connection)
        self._refused = ""
        self._waiting = {}
        for position, out in list(self._unconfirmed.items()):
            self._tag += 1
            self._waiting[self._tag] = position
            self._channel.basic_publish(out.message, out.exchange, out.routing_key, mandatory=True)
        while self._waiting:
            connection.drain_events(timeout=max(until - monotonic(), 0.001))
        if self._refused:
            self._topology.forget()
            raise AMQPError(self._refused)

    def _new_channel(self, connection: Connection) -> Channel:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._tag = 0
        self._returned.clear()
        return channel

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for position in self._take(tag, multiple):
            if self._unconfirmed[position].uid not in self._returned:  # else confirmed as routed nowhere
                del self._unconfirmed[position]

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._take(tag, multiple)
        self._refused = "a queue refused a message: it is full, or has no majority of its nodes"

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Message) -> None:
        note, _ = unpack(message)
        self._returned.add(note.uid if note else "")
        self._refused = f"no queue is bound for {routing_key!r} of {exchange!r}"

    def _take(self, tag: int, multiple: bool) -> list[int]:
        if not multiple:
            return [self._waiting.pop(tag)]
        tags = [each for each in self._waiting if each <= tag]
        return [self._waiting.pop(each) for each in tags]
