"""What the tests of RabbitMQ share: timers of other processes, a clock that is moved, and their moves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from amqp import Channel

from django_delayq.brokers.base import Alarm, ClaimRequest
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from django_delayq.conf import Alias
from tests.servers import RabbitMQServer

NAMES = Names("delayq")
WANT = [ClaimRequest("q", "k", 10)]


@dataclass
class Clock:
    """Tells the seconds that a test has set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def broker_on(server: RabbitMQServer, **clocks: Callable[[], float]) -> closing[RabbitMQBroker]:
    """A timer as a process of its own has it, to be closed. `wall` and `monotonic` take the place of its clocks."""
    return closing(RabbitMQBroker(Alias("default", location=server.url), **clocks))


@contextmanager
def channel_of(server: RabbitMQServer) -> Iterator[Channel]:
    """A channel behind the timer's back."""
    with server.client() as client, client.channel() as channel:
        yield channel


def put(broker: RabbitMQBroker, waits_ms: Mapping[str, int], queue: str = "q", key: str = "k") -> None:
    """Schedule alarms, each after so many milliseconds."""
    broker.timer.schedule([Alarm(queue, key, pk, wait_ms) for pk, wait_ms in waits_ms.items()])


def claim(broker: RabbitMQBroker, wants: Sequence[ClaimRequest] = WANT, lease_ms: int = 60_000) -> list[Alarm]:
    """The alarms of the first claim that gives some."""
    while not (alarms := broker.timer.take_due(wants, lease_ms=lease_ms, worker="w").alarms):
        broker.timer.wait(1)
    return alarms


def pks(alarms: Sequence[Alarm]) -> list[str]:
    return [alarm.pk for alarm in alarms]


def wait_until_fetched(broker: RabbitMQBroker) -> None:
    """Until it holds an alarm that is not due yet."""
    while (claims := broker.timer.take_due(WANT, lease_ms=60_000, worker="w")).next_due_ms is None:
        assert claims.alarms == []  # else it was due before it was looked for, and this would wait for ever
        broker.timer.wait(1)


def ready(server: RabbitMQServer, queue: str = "q", key: str = "k") -> int:
    """Return how many alarms wait at the server that have left the levels."""
    with channel_of(server) as channel:
        return int(channel.queue_declare(NAMES.ready(queue, key), passive=True).message_count)


def levels(server: RabbitMQServer) -> list[int]:
    """Return how many alarms wait in each level."""
    with channel_of(server) as channel:
        found = [channel.queue_declare(NAMES.level(level), passive=True) for level in range(LEVELS)]
        return [int(each.message_count) for each in found]
