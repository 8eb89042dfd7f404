"""Leave out for a while the queues that don't answer because they have no leader, so that they hold up no other.

For such a queue the server answers after a minute, or closes the connection that asked. So after a first fault the
queue is asked over a connection of its own, which may be lost for it, before it is used again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from amqp.exceptions import NotFound

from django_delayq.brokers.base import Pair
from django_delayq.brokers.rabbitmq.link import FAULTS, Link
from django_delayq.brokers.rabbitmq.locations import Location
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.topology import waiting
from django_delayq.support.logging import logger

AGAIN_S = 30.0
"""How long a queue that does not answer is left alone."""


class Silence:
    """Knows which (queue, key) pairs have a queue that does not answer."""

    def __init__(self, location: Location, names: Names) -> None:
        self._location = location
        self._names = names
        self._doubted: set[Pair] = set()
        self._ask_at: dict[Pair, float] = {}

    @contextmanager
    def using(self, name: Pair) -> Iterator[None]:
        """Run the block, which concerns this set's queue alone: a fault in it is a reason to doubt the queue."""
        try:
            yield
        except FAULTS:
            self._doubted.add(name)
            raise

    def covers(self, name: Pair) -> bool:
        """Return whether to leave this set alone. May wait for its queue, and raises when the server itself is away."""
        if name not in self._doubted or monotonic() < self._ask_at.get(name, 0):
            return name in self._doubted
        queue = self._names.ready(*name)
        if self._answers(queue):
            self._doubted.discard(name)
            if self._ask_at.pop(name, None):
                logger.info("RabbitMQ's queue %r answers again.", queue)
            return False
        if name not in self._ask_at:
            logger.error(
                "RabbitMQ's queue %r does not answer: it has no leader. What waits there waits on, other queues are"
                " served; it is asked again every %g s. See that most of its nodes run; if its node died while the"
                " queue was made, delete the queue, and it is made anew.",
                queue, AGAIN_S,
            )  # fmt: skip
        self._ask_at[name] = monotonic() + AGAIN_S
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
