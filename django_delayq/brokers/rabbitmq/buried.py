"""The queue of errors: read by taking messages and giving them back, so two readers at once each see a part."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

from amqp import Channel, Connection, Message

from django_delayq.brokers.base import Info
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.notes import Note, unpack
from django_delayq.brokers.rabbitmq.outgoing import back
from django_delayq.brokers.rabbitmq.topology import waiting
from django_delayq.message import State

MOST_READ = 1_000
"""The most errors that one look goes through, oldest first."""

LOOK_S, PART_S = 0.5, 0.001
"""How long a look waits for what the queue says that it has, and at least for each part of it."""

Found = tuple[Message, Note, bytes]


@contextmanager
def _taken(connection: Connection, names: Names) -> Iterator[tuple[Channel, list[Found]]]:
    """The oldest errors. What is not acknowledged goes back at the end, in no order.

    They are consumed, and not fetched: a thousand round trips would take seconds, in which others see none of them.
    """
    with connection.channel() as channel:
        channel.confirm_select()
        channel.basic_qos(0, MOST_READ, False)
        taken: list[Message] = []
        wanted = min(waiting(channel, names.error), MOST_READ)
        tag = channel.basic_consume(names.error, callback=taken.append)
        until = monotonic() + LOOK_S
        with suppress(TimeoutError):  # another look has some of them
            while len(taken) < wanted:
                connection.drain_events(timeout=max(until - monotonic(), PART_S))
        channel.basic_cancel(tag)
        read = [(message, *unpack(message)) for message in taken]
        found = [(message, note, body) for message, note, body in read if note is not None]
        yield channel, sorted(found, key=lambda each: each[1].buried_ms)


def errors(connection: Connection, names: Names, count: int, offset: int) -> list[Info]:
    """Newest first."""
    with _taken(connection, names) as (_, found):
        newest = found[::-1][offset : offset + count]
    return [_info(note, body) for _, note, body in newest]


def rescue(connection: Connection, names: Names, ids: Sequence[str], now_ms: int) -> list[bool]:
    """Make those ready that were buried last under each id."""
    with _taken(connection, names) as (channel, found):
        newest = {each[1].id: each for each in found if each[1].id in ids}
        for message, note, body in newest.values():
            note.header.scheduled_ms = now_ms  # else one that expired would expire again at once
            anew = note.anew(failures=0, crashes=0, error="", detail="", buried_ms=0, due_ms=now_ms)
            out = back(names, anew, body)
            channel.basic_publish_confirm(out.message, out.exchange, out.routing_key, mandatory=True)
            channel.basic_ack(message.delivery_tag)
    return [newest.pop(id, None) is not None for id in ids]


def purge(connection: Connection, names: Names, ids: Sequence[str]) -> list[bool]:
    """Remove all that is buried under each id."""
    with _taken(connection, names) as (channel, found):
        removed = {}
        for message, note, _ in found:
            if note.id in ids:
                channel.basic_ack(message.delivery_tag)
                removed[note.id] = True
    return [removed.pop(id, False) for id in ids]


def trim(connection: Connection, names: Names, oldest_ms: int, most: int) -> int:
    """Remove the oldest ones: those buried before then, and those beyond `most`. At most 100 at once."""
    with connection.channel() as channel:
        left = waiting(channel, names.error)
        for removed in range(100):
            message = channel.basic_get(names.error)
            if message is None:
                return removed
            note, _ = unpack(message)
            if left - removed <= most and note is not None and note.buried_ms > oldest_ms:
                return removed
            channel.basic_ack(message.delivery_tag)
    return 100


def _info(note: Note, body: bytes) -> Info:
    counts = (note.failures, note.crashes, note.error, note.detail)
    return Info(note.id, State.ERROR, note.due_ms, note.header, body, *counts, buried_ms=note.buried_ms)
