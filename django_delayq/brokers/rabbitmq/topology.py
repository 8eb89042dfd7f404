"""Declare the exchanges and queues before the first use of each connection. The first process creates them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, sleep
from typing import Any

from amqp import Channel, Connection, Message
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed, ResourceLocked

from django_delayq.brokers.base import Pair
from django_delayq.brokers.rabbitmq.alarms import PERSISTENT
from django_delayq.brokers.rabbitmq.link import FAULTS, Link
from django_delayq.brokers.rabbitmq.locations import Location
from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from django_delayq.support.logging import logger

MOST = 2**31 - 1
ARGUMENTS = {"x-queue-type": "quorum", "x-delivery-limit": MOST}
"""The arguments of every queue. Without a limit RabbitMQ 4.0 and newer drop a message after 20 returns. "No limit"
would be -1, which older versions take for 0; and a queue keeps its arguments when its server is upgraded."""

AGAIN_S = 30.0
"""How long a queue that does not answer is left alone."""

SET_UP_S, PAUSE_S = 30.0, 0.02
"""How long to wait for another process that declares all, and between two tries."""


class Topology:
    """The exchanges and queues that are declared on one connection."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._connection: Connection | None = None
        self._pairs: set[Pair] = set()
        self._broken = False

    def redeclare(self) -> None:
        """Declare everything again before the next use, because something is gone or may be."""
        self._connection, self._broken = None, True

    def knows(self, pairs: Iterable[Pair]) -> bool:
        """Return whether the queues of all these pairs were declared, and none was found to be gone afterwards."""
        return self._connection is not None and self._pairs.issuperset(pairs)

    def ensure(self, connection: Connection, pairs: Iterable[Pair]) -> bool:
        """Declare what was not declared on this connection. Return whether that included the queue of a pair."""
        is_new = self._connection is not connection
        missing = [pair for pair in dict.fromkeys(pairs) if is_new or pair not in self._pairs]
        if is_new:
            _set_up(connection, self._names)
            if self._broken:
                self.repair(connection)
            self._connection, self._pairs = connection, set()
        if missing:
            with connection.channel() as channel:
                for pair in missing:
                    _declare_pair(channel, self._names, pair)
                    self._pairs.add(pair)
        return bool(missing)

    def repair(self, connection: Connection) -> None:
        """Declare the levels again, and the queues and exchanges around them. Those that exist stay as they are.

        A queue or exchange that exists with other arguments is logged as an error, and does not hold up the rest.
        """
        parts: list[Callable[[Channel], object]] = [*_base(self._names), partial(_bind_register, names=self._names)]
        with connection.channel() as channel:
            for declare in parts:
                try:
                    declare(channel)
                except PreconditionFailed as error:  # it ends the channel, which py-amqp opens again
                    logger.error(
                        "RabbitMQ has something of that name with other arguments: %s; delete it: a worker makes it"
                        " again.",
                        error.reply_text,
                    )
        self._broken = False


def waiting(channel: Channel, queue: str) -> int:
    """Return how many messages of a queue were sent to nobody."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def _set_up(connection: Connection, names: Names) -> None:
    """Declare all but the queues of pairs, unless that was done: to ask is one round trip, to declare are 180.

    Only one process does it at a time: the first one publishes the shared state into its queue, and a second one would
    replace it.
    """
    until = monotonic() + SET_UP_S
    while not _is_there(connection, names):
        with suppress(ResourceLocked), connection.channel() as channel:
            channel.queue_declare(names.set_up, exclusive=True)  # another connection that has it locks us out
            if not _is_there(connection, names):
                for declare in _base(names):
                    declare(channel)
                _declare_register(channel, names)
            channel.queue_delete(names.set_up)
        if monotonic() > until:
            raise AMQPError("another process sets it up, and does not come to an end")
        sleep(PAUSE_S)


def _is_there(connection: Connection, names: Names) -> bool:
    with suppress(NotFound), connection.channel() as channel:
        channel.queue_declare(names.register, passive=True)
        channel.exchange_declare(names.pause_notices, "fanout", passive=True)  # the last one to be declared
        return True
    return False


def _base(names: Names) -> list[Callable[[Channel], None]]:
    """Return functions that each declare a part of the topology: all but the shared state and the queues of pairs."""
    levels = [partial(_declare_level, names=names, level=level) for level in range(LEVELS)]
    return [partial(_declare_around, names=names), *levels]


def _declare_around(channel: Channel, names: Names) -> None:
    channel.exchange_declare(names.direct, "direct", durable=True, auto_delete=False)
    channel.exchange_declare(names.stray, "fanout", durable=True, auto_delete=False)
    # Without it, a due message that finds no queue would hold up all that waits in its level.
    strays = {"alternate-exchange": names.stray}
    channel.exchange_declare(names.due, "topic", durable=True, auto_delete=False, arguments=strays)
    _declare_queue(channel, names.stray)
    channel.queue_bind(names.stray, names.stray)
    _declare_queue(channel, names.error)
    channel.queue_bind(names.error, names.direct, names.error)


def _declare_register(channel: Channel, names: Names) -> None:
    _declare_queue(channel, names.register, **{"x-max-length": 1, "x-overflow": "drop-head"})
    _bind_register(channel, names)
    if not waiting(channel, names.register):  # it outlives the exchange of the pause notices
        channel.basic_publish_confirm(Message("{}", delivery_mode=PERSISTENT), names.direct, names.register)
    channel.exchange_declare(names.pause_notices, "fanout", durable=True, auto_delete=False)


def _bind_register(channel: Channel, names: Names) -> None:
    channel.queue_bind(names.register, names.direct, names.register)


def _declare_level(channel: Channel, names: Names, level: int) -> None:
    name = names.level(level)
    following = names.level(level - 1) if level else names.due
    channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
    lasts = {"x-message-ttl": 2**level * 1000, "x-dead-letter-exchange": following}
    # Without these two, a message that expires while its next queue is unavailable is lost.
    safely = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    _declare_queue(channel, name, **lasts, **safely)
    before = "*." * (LEVELS - 1 - level)
    channel.queue_bind(name, name, f"{before}1.#")
    channel.exchange_declare(names.entry(level), "fanout", durable=True, auto_delete=False)
    channel.queue_bind(name, names.entry(level))
    channel.exchange_bind(following, name, f"{before}0.#")


def _declare_pair(channel: Channel, names: Names, pair: Pair) -> None:
    queue = names.ready(*pair)
    # Keep what a policy of the site drops here, and what a worker refuses.
    refused = {"x-dead-letter-exchange": names.direct, "x-dead-letter-routing-key": names.error}
    # The server closes the channel of a message that is unacknowledged for 30 minutes, or for this long (from 3.12 on).
    patient = {"x-consumer-timeout": MOST}
    _declare_queue(channel, queue, **refused, **patient)
    channel.queue_bind(queue, names.direct, queue)
    channel.queue_bind(queue, names.due, "#." + queue.removeprefix(f"{names.prefix}.ready."))


def _declare_queue(channel: Channel, name: str, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, auto_delete=False, arguments={**ARGUMENTS, **arguments})


class UnavailableQueues:
    """The (queue, key) pairs whose queue does not answer, because it has no leader: they must hold up no other.

    For such a queue the server answers after a minute, or closes the connection that asked. So after a first fault the
    queue is asked over a connection of its own, which may be lost for it, before it is used again.
    """

    def __init__(self, location: Location, names: Names) -> None:
        self._location = location
        self._names = names
        self._doubted: set[Pair] = set()
        self._ask_at: dict[Pair, float] = {}

    @contextmanager
    def using(self, pair: Pair) -> Iterator[None]:
        """Run a block that concerns this pair's queue alone, and suspect the queue if the block fails."""
        try:
            yield
        except FAULTS:
            self._doubted.add(pair)
            raise

    def covers(self, pair: Pair) -> bool:
        """Return whether to leave this pair alone. May wait for its queue; raises when the server itself is away."""
        if pair not in self._doubted or monotonic() < self._ask_at.get(pair, 0):
            return pair in self._doubted
        queue = self._names.ready(*pair)
        if self._answers(queue):
            self._doubted.discard(pair)
            if self._ask_at.pop(pair, None):
                logger.info("RabbitMQ's queue %r answers again.", queue)
            return False
        if pair not in self._ask_at:
            logger.error(
                "RabbitMQ's queue %r does not answer: it has no leader. What waits there waits on, other queues are"
                " served; it is asked again every %g s. See that most of its nodes run; if its node died while the"
                " queue was made, delete the queue, and it is made again.",
                queue, AGAIN_S,
            )  # fmt: skip
        self._ask_at[pair] = monotonic() + AGAIN_S
        return True

    def _answers(self, queue: str) -> bool:
        """Return whether a queue's leader is there: without one it seems empty, and no message can be asked for.

        A message that comes meanwhile goes back when the connection ends.
        """
        link = Link(self._location, self._names.prefix)
        try:
            with link.using() as connection:
                channel = connection.channel()
                try:
                    if not waiting(channel, queue):
                        channel.basic_get(queue)
                except NotFound:  # it will be declared again
                    pass
                except FAULTS:
                    return False
                return True
        finally:
            link.drop()
