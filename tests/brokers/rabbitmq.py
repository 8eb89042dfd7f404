"""A RabbitMQ broker for tests whose time is moved, and who want to see at once what the server has."""

import json
from collections.abc import Sequence
from functools import cached_property

from amqp import Channel, Message

from django_delayq.brokers.base import BATCH, Claims, Info, Want
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from django_delayq.brokers.rabbitmq.notes import MESSAGE, Note, pack, unpack
from django_delayq.brokers.rabbitmq.outgoing import Outgoing, delayed
from django_delayq.message import State
from tests.servers import RabbitMQServer

ROUNDS = 100
"""How often a claim looks whether all has arrived: each look waits a little."""


class PatientBroker(RabbitMQBroker):
    """Claims when the server has delivered all that it can."""

    def claim(self, wants: Sequence[Want], *, lease_ms: int, worker: str) -> Claims:
        with self._receiving(_names(wants)):
            for _ in range(ROUNDS):
                for want in wants:
                    self._inbox.consume((want.queue, want.key), min(want.count, BATCH))
                more = any(self._on_its_way(want) for want in wants)
                self._inbox.flush()
                self._recover()
                if not more:
                    break
        return super().claim(wants, lease_ms=lease_ms, worker=worker)

    def _on_its_way(self, want: Want) -> bool:
        box = self._inbox.boxes[want.queue, want.key]
        ready = self._names.ready(want.queue, want.key)
        return len(box.ready) + len(box.held) < want.count and self._inbox.waiting(ready) > 0

    @cached_property
    def _offset(self) -> float:
        """What both clocks differ by: read once, so that one lease has one end."""
        return self._clock.wall() - self._clock.monotonic()

    def look_here(self, id: str) -> Info | None:
        """A message that this process was sent."""
        with self._receiving():
            self._inbox.flush()
            self._take_in()
        now = self._clock.monotonic()
        for lease in self._leases._messages.values():
            if lease.arrival.note.id == id:
                info = _info(lease.arrival.note, lease.arrival.body, State.RUNNING)
                info.lease_end_ms = int((lease.until + self._offset) * 1000)
                return info
        for box in self._inbox.boxes.values():
            for *_, arrival in (*box.ready, *box.held):
                if arrival.note.id == id and not arrival.is_alarm:
                    state = State.READY if arrival.ready_at <= now else State.PENDING
                    return _info(arrival.note, arrival.body, state)
        return None

    def publish(self, outgoing: Sequence[Outgoing]) -> None:
        """Send what was packed already, and wait until it has arrived."""
        self._publisher.publish(outgoing)

    def now_ms(self) -> int:
        """The broker's time, which may be ahead."""
        return self._clock.now_ms()


def _names(wants: Sequence[Want]) -> list[tuple[str, str]]:
    return [(want.queue, want.key) for want in wants]


def age(server: RabbitMQServer, broker: PatientBroker) -> None:
    """Send again what waits at the server, each with what is left of its delay."""
    names = Names("delayq")
    with server.client() as client, client.channel() as channel:
        for queue in [*map(names.level, range(LEVELS)), *_ready_queues(channel, names)]:
            _age(channel, names, queue, broker)


def _ready_queues(channel: Channel, names: Names) -> list[str]:
    message = channel.basic_get(names.register)
    if message is None:
        return []
    channel.basic_reject(message.delivery_tag, requeue=True)
    return [names.ready(queue, key) for queue, key in json.loads(message.body).get("sets", ())]


def _age(channel: Channel, names: Names, queue: str, broker: PatientBroker) -> None:
    now_ms = broker.now_ms()
    found = _messages(channel, queue)
    broker.publish(
        [
            delayed(names, note.anew(), body, max(note.due_ms - now_ms, 0), broker._clock, message.properties["type"])
            for message, note, body in found
        ]
    )
    if found:
        channel.basic_ack(found[-1][0].delivery_tag, multiple=True)


def _messages(channel: Channel, queue: str) -> list[tuple[Message, Note, bytes]]:
    """All that a queue has for whoever asks."""
    found = []
    while message := channel.basic_get(queue):
        note, body = unpack(message)
        assert note is not None
        found.append((message, note, body))
    return found


def look(server: RabbitMQServer, broker: PatientBroker, id: str) -> Info | None:
    """Search for a message in every place: what this process has, what waits, what is buried."""
    if info := broker.look_here(id):
        return info
    with server.client() as client, client.channel() as channel:
        channel.confirm_select()
        found = [info for queue in _queues(channel, Names("delayq")) for info in _looked_through(channel, queue, id)]
    found = found or [info for info in broker.errors(100) if info.id == id]
    return found[0] if found else broker.look_here(id)  # it was on its way here


def _queues(channel: Channel, names: Names) -> list[str]:
    ready = _ready_queues(channel, names)
    suspects = [name.replace(".ready.", ".suspect.") for name in ready]
    return [*map(names.level, range(LEVELS)), *ready, *suspects]


def _looked_through(channel: Channel, queue: str, id: str) -> list[Info]:
    """The messages of this id in a queue. All are put anew: what is given back looks as if a connection was lost."""
    found = []
    for message, note, body in _messages(channel, queue):
        if note.id == id and message.properties["type"] == MESSAGE:
            is_ready = not note.hold_ms and ".level." not in queue
            found.append(_info(note, body, State.READY if is_ready else State.PENDING, suspect=".suspect." in queue))
        exchange, routing_key = message.delivery_info["exchange"], message.delivery_info["routing_key"]
        anew = pack(note, body, message.properties["type"])
        channel.basic_publish_confirm(anew, exchange, routing_key)
        channel.basic_ack(message.delivery_tag)
    return found


def _info(note: Note, body: bytes, state: State, suspect: bool = False) -> Info:
    counts = (note.failures, note.crashes, note.error, note.detail)
    return Info(note.id, state, note.due_ms, note.header, body, *counts, suspect=suspect)
