"""Messages on their way: into the levels, back to where they came from, to the suspects, or to error."""

from dataclasses import dataclass, replace

from amqp import Message

from django_delayq.brokers.base import Alarm, Header, Put
from django_delayq.brokers.rabbitmq.clock import Clock
from django_delayq.brokers.rabbitmq.names import LONGEST_S, Names, SetName
from django_delayq.brokers.rabbitmq.notes import ALARM, MESSAGE, Note, pack
from django_delayq.core.transitions import SUSPECT_CRASHES

MARGIN_MS = 300
"""A message leaves the levels so long before it is due, at least: hops that take less cost no lateness, where a worker
can tell."""

LONGEST_HOLD_MS = 2_000
"""No worker is left to hold more of a delay than that."""


@dataclass(slots=True)
class Outgoing:
    """One message, its uid, and its way."""

    exchange: str
    routing_key: str
    message: Message
    uid: str
    set_name: SetName
    confirmed: bool = False


def new_note(put: Put, now_ms: int, due_ms: int) -> Note:
    """The note of a message that was never sent before."""
    return Note(put.id, replace(put.header, sent_ms=now_ms, scheduled_ms=due_ms), due_ms)


def delayed(names: Names, note: Note, body: bytes, delay_ms: int, clock: Clock, kind: str = MESSAGE) -> Outgoing:
    """Due `delay_ms` from now: whole seconds of it in the levels, the rest held by the worker from its arrival.

    A level's clock counts whole milliseconds, so each may last one less than it should: the worker holds that too.
    """
    seconds = max(delay_ms - MARGIN_MS, 0) // 1000
    note.hold_ms = delay_ms - seconds * 1000 + seconds.bit_count()
    note.clock, note.due_s = clock.name, clock.monotonic() + (delay_ms + 1) / 1000  # due times are rounded up to 1 ms
    return Outgoing(*names.way(seconds, *note.set_name), pack(note, body, kind), note.uid, note.set_name)


def alarm(names: Names, alarm: Alarm, clock: Clock) -> Outgoing:
    """An alarm. What is too far for the levels comes early, and is put again."""
    wait_ms = min(alarm.wait_ms, LONGEST_S * 1000)
    note = Note(alarm.pk, Header(alarm.queue, alarm.key), clock.now_ms() + wait_ms)
    return delayed(names, note, b"", wait_ms, clock, ALARM)


def back(names: Names, note: Note, body: bytes, hold_ms: int = 0, kind: str = MESSAGE) -> Outgoing:
    """To where it was claimed from, due when `hold_ms` have passed: at its old place, since claims go by due time."""
    note.hold_ms, note.clock = hold_ms, ""
    queue = (names.suspect if note.crashes >= SUSPECT_CRASHES else names.ready)(*note.set_name)
    return Outgoing(names.direct, queue, pack(note, body, kind), note.uid, note.set_name)


def buried(names: Names, note: Note, body: bytes) -> Outgoing:
    """To error."""
    return Outgoing(names.direct, names.error, pack(note, body), note.uid, note.set_name)
