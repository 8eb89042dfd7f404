"""What the tests of RabbitMQ share: brokers of other processes, a clock that is moved, and their moves."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from django_delayq.brokers.base import Claimed, SettleAction, Transition, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.conf import Alias
from tests.brokers.rig import claim_some, settlement
from tests.servers import RabbitMQServer

WANT = [Want("q", "k", 10)]


@dataclass
class Clock:
    """Tells the seconds that a test has set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def broker_on(server: RabbitMQServer, **clocks: Callable[[], float]) -> closing[RabbitMQBroker]:
    """A broker as a process of its own has it, to be closed. `wall` and `monotonic` take the place of its clocks."""
    return closing(RabbitMQBroker(Alias("default", location=server.url), **clocks))


def claim(broker: RabbitMQBroker, wants: Sequence[Want] = WANT) -> Claimed:
    (message,) = claim_some(broker, wants)
    return message


def wait_until_fetched(broker: RabbitMQBroker) -> None:
    """Until it holds a message that is not due yet."""
    while (claims := broker.claim(WANT, lease_ms=60_000, worker="w")).next_due_ms is None:
        assert claims.messages == []  # else it was due before it was looked for, and this would wait for ever
        broker.wait(1)


def fetch(broker: RabbitMQBroker, count: int) -> None:
    """Have it so many messages, and do nothing about the last one."""
    with broker._receiving([("q", "k")]):
        broker._inbox.consume(("q", "k"), 1)
        while len(broker._inbox._unacknowledged) < count:
            broker._inbox.flush()


def claim_suspect(broker: RabbitMQBroker) -> Claimed:
    while not (messages := broker.claim_suspect(WANT, lease_ms=60_000, worker="w").messages):
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == []  # takes in what was lost
    (message,) = messages
    return message


def finish(claimed: Claimed) -> Transition:
    return settlement(claimed, SettleAction.FINISH)


def settle(broker: RabbitMQBroker, settlement: Transition) -> bool | None:
    """The answer, as soon as it can be told; meanwhile nothing is given."""
    while (answer := broker.settle([settlement])[0]) is None:
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == []
        assert broker.claim_suspect(WANT, lease_ms=60_000, worker="w").messages == []
    return answer


def crash(server: RabbitMQServer, times: int = 1) -> None:
    """Workers die that have claimed the only message."""
    for _ in range(times):
        with broker_on(server) as broker:
            claim(broker)
            broker._link.drop()


def nothing_is_left(broker: RabbitMQBroker) -> bool:
    """Whether no message comes any more, and none waits."""
    while waiting := [each for each in broker.counts().waiting if each.ready]:
        assert broker.claim(WANT, lease_ms=60_000, worker="w").messages == [], waiting
    return not broker.claim(WANT, lease_ms=60_000, worker="w").messages


def put_anew(server: RabbitMQServer) -> None:
    """Another worker is sent the only message, and puts it where it belongs."""
    with broker_on(server) as other:
        fetch(other, 1)
        with other._receiving():
            other._inbox.cancel(other._inbox.boxes["q", "k"])  # it takes no more
        assert other.upkeep(lease_ms=60_000).reclaimed == 1
