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
"""The arguments of every queue. RabbitMQ 4.0 and newer drop a message after 20 returns unless the queue has a higher
limit. "No limit" is -1, which older versions take for 0, and a queue keeps its arguments when its server is upgraded.
"""

AGAIN_S = 30.0
"""How long a queue that does not answer is left alone."""

SET_UP_S, PAUSE_S = 30.0, 0.02
"""How long to wait for another process that declares everything, and how long between two tries."""


class Topology:
    """The exchanges and queues, as far as they were declared on one connection."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._connection: Connection | None = None
        self._pairs: set[Pair] = set()
        self._broken = False

    def redeclare(self) -> None:
        """Have everything declared again before the next use, because something may be gone."""
        self._connection, self._broken = None, True

    def knows(self, pairs: Iterable[Pair]) -> bool:
        """Return whether the queues of all these pairs were declared, and `redeclare` was not called after that."""
        return self._connection is not None and self._pairs.issuperset(pairs)

    def ensure(self, connection: Connection, pairs: Iterable[Pair]) -> bool:
        """Declare whatever was not declared on this connection yet. Return whether that included a pair's queue."""
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
        """Declare everything again, except the queues of single (queue, key) pairs.

        Queues and exchanges that exist stay as they are. If one exists with other arguments, an error is logged, and
        the rest is declared all the same.
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
    """Return how many messages are in a queue and not delivered to any consumer."""
    return int(channel.queue_declare(queue, passive=True).message_count)


def _set_up(connection: Connection, names: Names) -> None:
    """Declare everything except the queues of single pairs, unless it exists already.

    Declaring takes 180 round trips; asking whether everything exists takes only a few. One process at a time declares,
    because it also publishes the first shared state into its queue: a second process would replace that state.
    """
    until = monotonic() + SET_UP_S
    while not _is_there(connection, names):
        with suppress(ResourceLocked), connection.channel() as channel:
            channel.queue_declare(names.set_up, exclusive=True)  # raises ResourceLocked while another connection has it
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
        channel.exchange_declare(names.pause_notices, "fanout", passive=True)  # declared last
        return True
    return False


def _base(names: Names) -> list[Callable[[Channel], None]]:
    """Return functions that together declare everything but the register and the queues of single pairs."""
    levels = [partial(_declare_level, names=names, level=level) for level in range(LEVELS)]
    return [partial(_declare_around, names=names), *levels]


def _declare_around(channel: Channel, names: Names) -> None:
    channel.exchange_declare(names.direct, "direct", durable=True, auto_delete=False)
    channel.exchange_declare(names.stray, "fanout", durable=True, auto_delete=False)
    # Without the alternate exchange, a due message whose queue is gone would hold up all others in its level.
    strays = {"alternate-exchange": names.stray}
    channel.exchange_declare(names.due, "topic", durable=True, auto_delete=False, arguments=strays)
    _declare_queue(channel, names.stray)
    channel.queue_bind(names.stray, names.stray)
    _declare_queue(channel, names.error)
    channel.queue_bind(names.error, names.direct, names.error)


def _declare_register(channel: Channel, names: Names) -> None:
    _declare_queue(channel, names.register, **{"x-max-length": 1, "x-overflow": "drop-head"})
    _bind_register(channel, names)
    if not waiting(channel, names.register):  # if only the exchange of the pause notices was deleted, it has a message
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
    # The error queue keeps messages that a policy of the site drops here, or that a worker refuses.
    refused = {"x-dead-letter-exchange": names.direct, "x-dead-letter-routing-key": names.error}
    # The server closes the channel of a message that is unacknowledged for 30 minutes; from 3.12 on, for this long.
    patient = {"x-consumer-timeout": MOST}
    _declare_queue(channel, queue, **refused, **patient)
    channel.queue_bind(queue, names.direct, queue)
    channel.queue_bind(queue, names.due, "#." + queue.removeprefix(f"{names.prefix}.ready."))


def _declare_queue(channel: Channel, name: str, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, auto_delete=False, arguments={**ARGUMENTS, **arguments})


class UnavailableQueues:
    """The (queue, key) pairs whose queue in RabbitMQ does not answer, because it has no leader.

    They must hold up no other pair. The server answers a request about such a queue after a minute, or closes the
    connection. So after a first fault the queue is asked over a connection of its own before it is used again.
    """

    def __init__(self, location: Location, names: Names) -> None:
        self._location = location
        self._names = names
        self._doubted: set[Pair] = set()
        self._ask_at: dict[Pair, float] = {}

    @contextmanager
    def using(self, pair: Pair) -> Iterator[None]:
        """Run a block that uses only this pair's queue. If the block fails, the queue is asked before its next use."""
        try:
            yield
        except FAULTS:
            self._doubted.add(pair)
            raise

    def covers(self, pair: Pair) -> bool:
        """Return whether to leave this pair alone. May wait for its queue. Raises if the server itself is away."""
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
        """Return False for a queue without a leader. Such a queue seems empty, but a request for a message fails.

        If the request gets a message, that goes back to the queue when the connection ends.
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
