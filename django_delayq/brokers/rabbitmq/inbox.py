"""What RabbitMQ has delivered to this process and is not acknowledged: held until it is due, then claimed.

A consumer for each wanted (queue, key). Its prefetch is what runs, what is wanted and what is held, so that behind a
slow handler nothing is heaped up here while another worker is free.

What is under way to a consumer that is cancelled the server takes back, and marks as if its worker had died. So one is
cancelled when nothing can be under way: when it has its prefetch in full, or its queue is empty.
"""

import heapq
import math
import secrets
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic

from amqp import Channel, Connection, Message

from django_delayq.brokers.base import Header
from django_delayq.brokers.rabbitmq.boxes import Arrival, Box, Consumer
from django_delayq.brokers.rabbitmq.clock import Clock
from django_delayq.brokers.rabbitmq.names import Names, SetName
from django_delayq.brokers.rabbitmq.notes import ALARM, Note, unpack
from django_delayq.brokers.rabbitmq.outgoing import LONGEST_HOLD_MS
from django_delayq.brokers.rabbitmq.topology import waiting
from django_delayq.safe_logs import logger

REMEMBERED = 10_000
"""Of about so many messages a worker knows that it had not begun them, should they be delivered once more."""

MOST_HELD = 1_000
"""The most of one (queue, key) that is held until it is due."""

PART_S = 0.001
"""How long to wait for the rest of what has come in part; it is waited for again at the next look."""
ARRIVAL_S = 0.1
"""How long a claim that found nothing waits for what the server says is on its way."""


def _readable(sock: socket.socket) -> bool:
    """Whether something can be read at once; TLS may hold it where nobody can see it on the socket."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    return bool(_await_readable([sock], 0))


def _await_readable(files: Sequence[int | socket.socket], timeout_s: float) -> set[int]:
    """Return the descriptors of those that can be read, or have broken, within the timeout.

    Not by `select.select`, which takes no descriptor over 1,023.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}


class Inbox:
    """The deliveries of one connection. Whoever calls holds the link's lock, and may pass its connection only."""

    def __init__(self, names: Names, clock: Clock, on_cancel: Callable[[], object]) -> None:
        self._names = names
        self._clock = clock
        self._on_cancel = on_cancel
        self._numbers = count()
        self._connection: Connection | None = None
        self._channel: Channel
        self._sockets: list[int | socket.socket] = []  # asked for its socket, a dropped connection connects anew
        self._unacknowledged: dict[int, Consumer | None] = {}  # by tag, in the order of delivery
        self._unclaimed: set[str] = set()  # the uids of what lost connections had, and was not claimed here
        self.boxes: dict[SetName, Box] = {}
        self.lost: list[Arrival] = []
        """What was delivered again: a connection was lost that had it."""
        self._looked_at = deque([-math.inf, -math.inf], maxlen=2)
        self._told_of_early = False
        self.news = 0
        """How often workers were told of pauses."""

    def is_on(self, connection: Connection) -> bool:
        """Whether it uses this connection."""
        return self._connection is connection

    def attach(self, connection: Connection) -> None:
        """Use this connection. All that came over the last one is gone."""
        self._connection = connection
        if len(self._unclaimed) > REMEMBERED:
            self._unclaimed.clear()
        self._unclaimed.update(arrival.note.uid for box in self.boxes.values() for arrival in box.empty())
        self._unacknowledged, self.boxes, self.lost = {}, {}, []
        self._told_of_early = False
        self._sockets = [connection.sock]
        self._channel = connection.channel()
        queue = f"{self._names.news}.{secrets.token_urlsafe(9)}"
        self._channel.queue_declare(queue, exclusive=True, auto_delete=True)
        self._channel.queue_bind(queue, self._names.news)
        self._channel.basic_consume(queue, no_ack=True, callback=self._on_news)

    def consume(self, name: SetName, wanted: int) -> None:
        """Have the server send what is wanted of a set, beside what is held and runs."""
        box = self.boxes.setdefault(name, Box(name))
        box.wanted, box.wanted_at = wanted, self._clock.monotonic()
        self.tend(box)

    def tend(self, box: Box) -> None:
        """See that what a box wants can come, and not far more. While anything still can, it is left as it is."""
        held = len(box.held)
        if box.consumer is not None:
            if not box.consumer.is_full:
                return
            if box.consumer.credit > 4 * (box.taken + held + box.wanted):
                self.cancel(box)
        if len(box.ready) < box.wanted and held < MOST_HELD:
            self.cancel(box)
            self._consume(box, box.taken + box.wanted + min(held, MOST_HELD - held))

    def _consume(self, box: Box, credit: int) -> None:
        consumer = Consumer(box, f"{next(self._numbers)}", min(credit, 65_535))
        self._channel.basic_qos(0, consumer.credit, False)
        self._channel.basic_consume(
            self._names.ready(*box.name),
            consumer_tag=consumer.tag,
            callback=lambda message: self._on_message(consumer, message),
            on_cancel=lambda tag: self._on_cancelled(consumer),
        )
        box.consumer = consumer

    def cancel(self, box: Box) -> None:
        """Have the server send no more, as soon as nothing is under way: it waits a moment for that."""
        self.drain()  # its queue may be gone
        self._await([box.name], lambda: box.consumer is None or box.consumer.is_full)
        if box.consumer is not None:
            self._channel.basic_cancel(box.consumer.tag)
            box.consumer = None

    def tend_all(self, names: Iterable[SetName]) -> None:
        """As `tend`, for those of these sets that are consumed."""
        for name in names:
            if box := self.boxes.get(name):
                self.tend(box)

    def drain(self) -> None:
        """Take in what the server has sent, without waiting for more."""
        connection = self._channel.connection
        with suppress(TimeoutError):
            while _readable(connection.sock):
                connection.drain_events(timeout=PART_S)

    def await_arrivals(self, names: Sequence[SetName]) -> None:
        """Wait a moment for what waits at the server for these sets and is about to come."""
        self._await(names, lambda: any(self.boxes[name].ready for name in names))

    def _await(self, names: Sequence[SetName], is_enough: Callable[[], bool]) -> None:
        """Take in what comes, for a moment at most, until that is enough or nothing more waits for these sets."""
        until = monotonic() + ARRIVAL_S
        while not is_enough() and monotonic() < until:
            left = sum(self.waiting(self._names.ready(*name)) for name in names)
            self.flush()
            self.ripen()
            if not left:
                return

    def flush(self) -> None:
        """Take in all that the server has sent up to now.

        A queue that says that nothing waits may have sent it a moment before; what answers the next question comes
        behind that.
        """
        self._channel.basic_qos(0, 1, False)  # asked for its answer: each consumer was given its own before
        self.drain()

    def waiting(self, queue: str) -> int:
        """How many messages a queue has that nobody was sent."""
        return waiting(self._channel, queue)

    def ripen(self) -> None:
        """Make ready what is due by now."""
        now = self._clock.monotonic()
        for box in self.boxes.values():
            box.ripen(now)

    def take(self, name: SetName, most: int, at_once: int) -> Iterator[Arrival]:
        """Take out what is ready, earliest first. What must not wait for a hand ends it, behind the first `at_once`."""
        box = self.boxes[name]
        for number in range(min(most, len(box.ready))):
            if number >= at_once and box.ready[0][2].note.header.at_most_once:
                return
            box.taken += 1
            yield heapq.heappop(box.ready)[2]

    def get(self, queue: str, name: SetName | None = None) -> Arrival | None:
        """Fetch one message of a queue that is not consumed.

        An empty queue is not asked for one. It may have no leader, where its node died while it was made: then nothing
        would answer, and a worker would serve no other queue either.
        """
        message = self._channel.basic_get(queue) if self.waiting(queue) else None
        if message is None:
            return None
        self._unacknowledged[message.delivery_tag] = None
        return self._arrival(message, name)

    def acknowledge(self, tags: Iterable[int]) -> None:
        """Have the server forget messages: one frame for those that came in a row."""
        ended = set(tags)
        last = 0
        for tag in self._unacknowledged:
            if tag not in ended:
                break
            last = tag
        if last:
            self._channel.basic_ack(last, multiple=True)
        for tag in sorted(ended):
            consumer = self._unacknowledged.pop(tag, None)
            if consumer is not None:
                consumer.unacknowledged -= 1
                consumer.box.taken -= 1
            if tag > last:
                self._channel.basic_ack(tag)

    def unwanted(self, idle_s: float) -> list[Arrival]:
        """Take out what is ready of sets that nobody has asked for of late, and cancel their consumers.

        Nor since the look before the last: while a memory alarm is on, it is these looks that nobody gets around.
        """
        now = self._clock.monotonic()
        before = min(now - idle_s, self._looked_at[0])
        self._looked_at.append(now)
        unwanted = [box for box in self.boxes.values() if box.ready and box.wanted_at <= before]
        return [arrival for box in unwanted for arrival in self._emptied(box)]

    def early(self) -> list[Arrival]:
        """Take out what came so long before it is due that a clock of the server's must have jumped ahead."""
        now = self._clock.monotonic()
        early = [each for box in self.boxes.values() for each in box.take_later(now + LONGEST_HOLD_MS / 1000)]
        if early and not self._told_of_early:
            self._told_of_early = True
            logger.warning(
                "RabbitMQ handed on message %r %g s early: the clock of one of its nodes has jumped ahead. What this"
                " machine has sent is not started before its time; what others have sent may be.",
                early[0].note.id, round(early[0].ready_at - now, 1),
            )  # fmt: skip
        return early

    def everything(self) -> list[Arrival]:
        """Take out all that is not claimed, and cancel every consumer."""
        return [arrival for box in self.boxes.values() for arrival in self._emptied(box)]

    def _emptied(self, box: Box) -> list[Arrival]:
        self.cancel(box)
        arrivals = box.empty()
        box.taken += len(arrivals)
        return arrivals

    def put_back(self, arrivals: Iterable[Arrival]) -> None:
        """What was taken is held once more: its lease ran out, and here is as good as anywhere."""
        for arrival in arrivals:
            box = self.boxes[arrival.set_name]
            box.taken -= 1
            heapq.heappush(box.held, (arrival.ready_at, next(self._numbers), arrival))

    def sleep(self, wake: int, timeout: float) -> bool:
        """Wait until the server sends something, or the descriptor `wake` can be read. Without the lock.

        Gives whether there is a reason to claim: `wake`, or a connection that broke meanwhile.
        """
        try:
            return wake in _await_readable([wake, *self._sockets], timeout)
        except (OSError, ValueError):
            return True

    def next_ready_at(self, names: Sequence[SetName]) -> float:
        """When something of these sets is due, now at the earliest; infinite where nobody knows."""
        boxes = [box for name in names if (box := self.boxes.get(name))]
        if self.lost or any(box.ready for box in boxes):
            return self._clock.monotonic()
        return min((box.held[0][0] for box in boxes if box.held), default=math.inf)

    def _on_news(self, message: Message) -> None:
        self.news += 1

    def _on_cancelled(self, consumer: Consumer) -> None:
        if consumer.box.consumer is consumer:
            consumer.box.consumer = None  # its queue or its node is gone
        self._on_cancel()

    def _on_message(self, consumer: Consumer, message: Message) -> None:
        box = consumer.box
        self._unacknowledged[message.delivery_tag] = consumer
        consumer.unacknowledged += 1
        arrival = self._arrival(message, box.name)
        if arrival.again and not arrival.is_alarm and self._may_have_begun(arrival.note):
            box.taken += 1
            self.lost.append(arrival)
        else:
            heapq.heappush(box.held, (arrival.ready_at, next(self._numbers), arrival))

    def _arrival(self, message: Message, name: SetName | None) -> Arrival:
        read, body = unpack(message)
        note = read or Note("", Header(*(name or ("", ""))))
        arrival = Arrival(name or note.set_name, note, body, message.delivery_tag, self._ready_at(note))
        arrival.is_foreign = read is None
        arrival.is_alarm = message.properties.get("type") == ALARM
        arrival.again = bool(message.delivery_info["redelivered"])
        return arrival

    def _may_have_begun(self, note: Note) -> bool:
        """Whether what was lost may have been claimed: not what this process had and had not, nor what is not due yet.

        Of a message that was lost, only who had it first can have claimed it: everybody else has it put anew. What must
        not start twice and is not due may be there twice, where who put it anew died before its end.

        Only the clock of the machine that sent it is exact: by others that is not due which will be within the time
        that it is held.
        """
        if note.uid in self._unclaimed:
            self._unclaimed.discard(note.uid)
            return False
        if note.header.at_most_once:
            return True
        if self._has_clock_of(note) and self._clock.monotonic() < note.due_s:
            return False
        return not 0 < note.due_ms - self._clock.now_ms() <= note.hold_ms

    def _ready_at(self, note: Note) -> float:
        return note.due_s if self._has_clock_of(note) else self._clock.monotonic() + note.hold_ms / 1000

    def _has_clock_of(self, note: Note) -> bool:
        """Whether its instants may be compared with ours."""
        return bool(note.clock) and note.clock == self._clock.name
