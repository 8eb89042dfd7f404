"""Publish messages in batches, with confirms: a confirmed message is on the disks of its queue."""

import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from time import monotonic, sleep

from amqp import Channel, Connection, Message, spec
from amqp.exceptions import AMQPError, ChannelError

from django_delayq.brokers.base import BATCH, Pair
from django_delayq.brokers.rabbitmq.alarms import Outgoing, notice, rerouted
from django_delayq.brokers.rabbitmq.link import Link
from django_delayq.brokers.rabbitmq.locations import TIMEOUT_S, Location
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.shared_state import HELD_S, R, SharedState, change_state, read_state
from django_delayq.brokers.rabbitmq.topology import Topology
from django_delayq.core.errors import BrokerUnavailable

BUDGET_S = 2.0
PAUSE_S = 0.05
REPAIR_EVERY_S = 60.0
SENDING_S = 1.0
"""The least time for the first try of a `publish` once it has declared new queues, which may use up its budget."""


class Publisher:
    """Declares and publishes. It has its own connection: if the server blocks it, the consumer is not held up."""

    def __init__(self, location: Location, names: Names) -> None:
        self._names = names
        self._link = Link(location, names.prefix)
        self._topology = Topology(names)
        self.refusal, self.close, self.redeclare = self._link.refusal, self._link.close, self._topology.redeclare
        self._repair_at = 0.0
        self._channel: Channel | None = None
        self._tag = 0
        self._in_flight: dict[int, tuple[_Batch, str]] = {}  # the batch and the uid, by delivery tag
        self._returned: set[str] = set()

    @contextmanager
    def looking(self, within_s: float = TIMEOUT_S) -> Iterator[Connection]:
        """Yield the connection, once everything but the queues of single (queue, key) pairs is declared."""
        with self._using(within_s) as connection:
            self._topology.ensure(connection, ())
            yield connection

    def shared_state(self, within_s: float = HELD_S) -> SharedState:
        with self.looking(within_s) as connection:
            return read_state(connection, self._names, within_s)

    def change_state(self, edit: Callable[[SharedState], R]) -> R:
        """Let `edit` change the shared state, and return what `edit` returns."""
        self.raise_if_blocked()
        # Publish to no queue: a server whose memory or disk alarm is on blocks us here, not while we hold the state.
        self.publish([notice(self._names.direct)])
        with self.looking() as connection:
            return change_state(connection, self._names, edit)

    def notify_of_pauses(self) -> None:
        """Notify every worker that a pause began or ended."""
        self.publish([notice(self._names.pause_notices)])

    def declare(self, pairs: Collection[Pair]) -> None:
        """Declare the queues of these pairs, unless they are known to exist.

        If all of them are known, it does not wait for other threads that publish.
        """
        if self._topology.knows(pairs):
            return
        with self._using() as connection:
            self._topology.ensure(connection, pairs)

    def raise_if_blocked(self) -> None:
        """Raise `BrokerUnavailable` if the server, as far as is known, takes no messages. Never waits.

        It is for callers that can't wait for a blocked server.
        """
        if self.refusal():
            self._link.raise_if_blocked()

    def repair_due(self) -> None:
        """Declare everything again, at most once a minute, because something may have been deleted.

        The queues of single pairs are left out.
        """
        if monotonic() >= self._repair_at:
            self._repair_at = monotonic() + REPAIR_EVERY_S
            with self.looking() as connection:
                self._topology.repair(connection)

    def reroute_strays(self) -> None:
        """Move strays, whose queue did not exist when they were due, into their queues. Declare these queues again."""
        self._topology.redeclare()
        with self.looking() as connection, connection.channel() as channel:
            strays: list[Message] = []
            while len(strays) < BATCH and (stray := channel.basic_get(self._names.stray)) is not None:
                strays.append(stray)
            self.publish([rerouted(self._names, stray) for stray in strays])
            for stray in strays:
                channel.basic_ack(stray.delivery_tag)

    def publish(self, outgoing: Sequence[Outgoing], within_s: float = BUDGET_S) -> None:
        """Publish all messages, and declare the queues that they need.

        Raises `BrokerUnavailable` if some are not confirmed in time. Messages that a broken connection leaves
        unconfirmed are sent again. A row may get two alarms that way; the second one is stale.
        """
        batch = _Batch({out.uid: out for out in outgoing}, monotonic() + within_s)
        while batch.unconfirmed:
            try:
                with self._using(batch.seconds_left) as connection:
                    if batch.sent_on is not connection:
                        self._send(connection, batch)
                    self._await_confirms(connection, batch)
            except BrokerUnavailable:
                if batch.seconds_left <= PAUSE_S:
                    raise
                sleep(PAUSE_S)

    @contextmanager
    def _using(self, within_s: float = TIMEOUT_S) -> Iterator[Connection]:
        """Yield the connection. If an exchange, queue or binding is gone, declare all again before the next use."""
        with self._link.using(within_s) as connection:
            try:
                yield connection
            except ChannelError:
                self._topology.redeclare()
                raise

    def _send(self, connection: Connection, batch: "_Batch") -> None:
        made = self._topology.ensure(connection, (out.pair for out in batch.unconfirmed.values() if out.pair))
        if made and batch.sent_on is None:  # only the first try gets more time, so that a lasting fault is raised
            batch.until = max(batch.until, monotonic() + SENDING_S)
        if self._channel is None or self._channel.connection is not connection:
            self._channel = self._new_channel(connection)
        batch.sent_on = connection
        with _full_packets(connection.sock):
            for out in batch.unconfirmed.values():
                self._tag += 1
                self._in_flight[self._tag] = batch, out.uid
                # Like basic_publish(mandatory=True), which also polls for replies: that takes a fifth of a send's time.
                method = (0, out.exchange, out.routing_key, out.must_arrive, False)
                self._channel.send_method(spec.Basic.Publish, "Bssbb", method, out.message)

    def _await_confirms(self, connection: Connection, batch: "_Batch") -> None:
        try:
            while batch.unconfirmed and not batch.refused:
                connection.drain_events(timeout=batch.seconds_left)
        except TimeoutError:
            self._link.raise_if_blocked()  # its error does not close the connection
            raise
        if batch.refused:
            refused, batch.refused = batch.refused, ""
            self._topology.redeclare()
            raise AMQPError(refused)

    def _new_channel(self, connection: Connection) -> Channel:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._tag = 0
        self._in_flight.clear()
        self._returned.clear()
        return channel

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for batch, uid in self._taken(tag, multiple):
            if uid in self._returned:  # the server confirms it, but no queue took it
                batch.refused = "no queue is bound for it"
            else:
                batch.unconfirmed.pop(uid, None)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for batch, _ in self._taken(tag, multiple):
            batch.refused = "a queue refused a message: it is full, or has no majority of its nodes"

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Message) -> None:
        self._returned.add(message.properties.get("message_id", ""))

    def _taken(self, tag: int, multiple: bool) -> list[tuple["_Batch", str]]:
        if not multiple:
            return [self._in_flight.pop(tag)]
        tags = list(takewhile(lambda each: each <= tag, self._in_flight))  # they are in order
        return [self._in_flight.pop(each) for each in tags]


@contextmanager
def _full_packets(sock: socket.socket) -> Iterator[None]:
    """Send what the block writes in full packets, and the rest at its end. Else each message would be a packet."""
    cork = getattr(socket, "TCP_CORK", None)  # Linux
    if cork is None:
        yield
        return
    sock.setsockopt(socket.IPPROTO_TCP, cork, True)
    try:
        yield
    finally:
        sock.setsockopt(socket.IPPROTO_TCP, cork, False)


@dataclass(slots=True, eq=False)
class _Batch:
    """The messages of one `publish` that are not confirmed yet, by uid."""

    unconfirmed: dict[str, Outgoing]
    until: float
    sent_on: Connection | None = None
    refused: str = ""

    @property
    def seconds_left(self) -> float:
        return max(self.until - monotonic(), 0.001)
