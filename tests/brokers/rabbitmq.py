"""A RabbitMQ timer for tests whose time is moved, and who want to see at once what the server has."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from amqp import Channel

from django_delayq.brokers.base import BATCH, Alarm, ClaimRequest, Claims, MaintenanceResult, Pause
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.alarms import Envelope, outgoing, pack, unpack
from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from tests.servers import RabbitMQServer
from tests.servers.cluster import until

ROUNDS = 100
"""How often a claim looks whether all has arrived: each look waits a little."""


class PatientBroker(RabbitMQBroker):
    """Claims when the server has delivered all that it can.

    It passes for a queue, too, in the tests of what a queue and a timer have in common.
    """

    def take_due(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        pairs = [(want.queue, want.key) for want in requests]
        with self._receiving(pairs):
            for _ in range(ROUNDS):
                for want, pair in zip(requests, pairs, strict=True):
                    self._consumer.subscribe(pair, min(want.count, BATCH))
                more = any(self._is_on_its_way(want) for want in requests)
                self._consumer.flush()
                if not more:
                    break
        return super().take_due(requests, lease_ms=lease_ms, worker=worker)

    claim = take_due

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        """Maintain, and wait until what was given back is there again.

        A quorum queue takes back what was rejected only when its log is written, and answers questions meanwhile.
        """
        with self._receiving():
            self._consumer.flush()
            before = self._here()
            result = super().maintain(lease_ms=lease_ms)
            until(lambda: self._here() >= before + result.reclaimed)
        return result

    def _here(self) -> int:
        """Return how many alarms of all pairs are not leased."""
        at_server = sum(map(self._consumer.waiting, self._consumer.subscriptions))
        return at_server + sum(len(each.ready) + len(each.held) for each in self._consumer.subscriptions.values())

    @property
    def queue(self) -> Self:  # type: ignore[override]
        return self

    def pause(self, pause: Pause) -> None:
        """Announce a pause, which a store would keep."""
        self.announce_pauses()

    def resume(self, queue: str | None, key: str | None) -> None:
        """Announce that one is over."""
        self.announce_pauses()

    def _is_on_its_way(self, want: ClaimRequest) -> bool:
        pair = want.queue, want.key
        here = self._consumer.subscriptions[pair]
        return len(here.ready) + len(here.held) < want.count and self._consumer.waiting(pair) > 0

    def publish(self, alarms: Sequence[tuple[Alarm, int]]) -> None:
        """Schedule alarms that keep the due time that they had."""
        out = [outgoing(self._names, alarm, self._clock) for alarm, _ in alarms]
        for one, (_, due_ms) in zip(out, alarms, strict=True):
            envelope = unpack(one.message)
            assert envelope is not None
            anew = pack(replace(envelope, due_ms=due_ms))
            one.message.properties["application_headers"] = anew.properties["application_headers"]
        self._publisher.publish(out)

    def now_ms(self) -> int:
        """The timer's time, which may be ahead."""
        return self._clock.now_ms()


def age(server: RabbitMQServer, broker: PatientBroker) -> None:
    """Schedule again what waits at the server, each alarm with what is left of its wait."""
    names, now_ms = Names("delayq"), broker.now_ms()
    with server.client() as client, client.channel() as channel:
        waiting = [*map(names.level, range(LEVELS)), *server.queues(f"{names.prefix}.ready.")]
        found = [alarm for queue in waiting for alarm in _taken(channel, queue)]
    broker.publish([(Alarm(*each.pair, each.id, max(each.due_ms - now_ms, 0)), each.due_ms) for each in found])


def _taken(channel: Channel, queue: str) -> list[Envelope]:
    """All alarms that a queue has for whoever asks."""
    found = []
    while message := channel.basic_get(queue, no_ack=True):
        envelope = unpack(message)
        assert envelope is not None
        found.append(envelope)
    return found
