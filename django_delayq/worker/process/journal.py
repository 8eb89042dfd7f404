"""A worker process's journal of what it holds, in memory that its supervisor reads once the process is dead.

The worker notes each lease, its start and its end before they take effect. So whatever kills the process, even while a
handler holds the interpreter's lock, the supervisor knows what had started, what had ended and how, and what had only
waited. To write a note is to copy bytes into shared memory: there is no system call, and nothing to wait for.
"""

import itertools
import mmap
import os
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any, NamedTuple

from django_delayq.brokers.base import Claimed, Header, PermitRequest
from django_delayq.core import codec, transitions
from django_delayq.core.transitions import SettleAction, Span, Transition
from django_delayq.worker.leases import Lease, LeaseLog

_HALF = 1 << 25
"""The bytes in each half of the memory for notes. When one half is full, the notes of held leases go to the other."""
_LEAST = 1 << 18
"""A half counts as full at this many bytes, or at twice the bytes copied into it, so that little memory is used."""
_HALVES = (4_096, 4_096 + _HALF + 8)
_SIZE = _HALVES[1] + _HALF

# Numbers at fixed places, each written in one piece
_END, _HELD, _BEAT, _ALIVE, _DEADLINE, _STARTED, _RENEWED_FOR, _HELD_UNTIL = range(0, 64, 8)
_COUNT_PLACES = {action: 64 + 8 * number for number, action in enumerate(SettleAction)}
_NAME = 512
_MOST_NAME = 512

_WHOLE, _REAL = struct.Struct("Q"), struct.Struct("d")
_NOTE = struct.Struct("!IBQ")  # the size of what follows, the kind of note, and the number of the lease
_LEASED, _STARTED_AT, _ENDED, _FINISHED, _FORGOTTEN = range(5)
# Every message has these notes: JSON would take longer than a handler that does nothing
_START, _START_NOTE = struct.Struct("!dd"), struct.Struct(f"{_NOTE.format}dd")
_FINISH, _FINISH_NOTE = struct.Struct("!qq?"), struct.Struct(f"{_NOTE.format}qq?")


class _LeasedNote(NamedTuple):
    """The note of a lease. It is written as a JSON array, because an object with names would take twice as long."""

    id: str
    token: int
    due_ms: int
    header: Header | None
    failures: int
    crashes: int
    pk: str
    history: str
    claimed_ms: int
    worker: str
    rule: str
    clock_ms: float


_NOTED = _LeasedNote._fields[:-1]
"""The fields that `Claimed` has too."""
_noted_fields = attrgetter(*_NOTED)


@dataclass(slots=True)
class Leased:
    """A lease that the process took. Its message has no body here, so nobody can run it from a journal."""

    claimed: Claimed
    clock_ms: float


@dataclass(slots=True)
class Started:
    """The start of a handler, by the monotonic clock, which all processes of a machine share.

    The supervisor ends the process at the `deadline`. If that is 0, the process itself enforces the time-out.
    """

    at: float
    deadline: float
    permit_request: PermitRequest | None = None


@dataclass(slots=True)
class Held:
    """One lease as its process left it: not started, started, or ended by `transition` but not known as settled."""

    leased: Leased
    started: Started | None = None
    transition: Transition | None = None

    @property
    def runs(self) -> bool:
        """Return whether its handler had started and not ended."""
        return self.started is not None and self.transition is None


def open_memory() -> int:
    """Return a descriptor of empty memory for a journal. Only what is written takes up memory."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("delayq")
    else:  # no Linux
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd


class _Notes:
    """The notes on one lease, as they were written."""

    __slots__ = ("leased", "named", "number", "permit", "progress", "start")

    def __init__(self, number: int, leased: bytes) -> None:
        self.number = number
        self.leased = leased
        self.progress = b""
        self.start = 0  # its number among the starts of the process
        self.permit = 0  # the token of the permit that it names while it runs
        self.named: set[int] | None = None  # the tokens that running handlers name of its block; None if it has none

    def drop_permit(self) -> None:
        """Name no permit any more: the handler does not run."""
        if self.named is not None:
            self.named.discard(self.permit)


class Journal(LeaseLog):
    """A journal as the worker writes it, from any thread. `name` is the worker's."""

    def __init__(self, fd: int, name: str) -> None:
        self._memory = mmap.mmap(fd, _SIZE)
        self._lock = threading.Lock()
        self._notes: dict[Lease, _Notes] = {}
        self._deadlines: dict[Lease, float] = {}
        self._first_deadline = 0.0
        self._numbers = itertools.count(1)
        self._count = 0
        self._half = 0
        self._end = _HALVES[0]
        self._full_at = self._end + _LEAST
        self._put(_END, _WHOLE, self._end)
        text = name.encode()[:_MOST_NAME]
        self._memory[_NAME : _NAME + len(text)] = text

    def beat(self, state: str = "") -> None:
        """Note that the main loop is alive.

        `HeartbeatFile` calls this in place of sending a datagram to systemd. The state is ignored.
        """
        self._put(_BEAT, _REAL, monotonic())

    def tick(self) -> None:
        """Note that the threads of this process run: no handler holds the interpreter's lock."""
        self._put(_ALIVE, _REAL, monotonic())

    def lease(self, leases: Iterable[Lease]) -> None:
        """Note new leases."""
        new = {lease: self._new_notes(lease) for lease in leases}
        written = b"".join([notes.leased for notes in new.values()])
        with self._lock:  # only for a moment: a handler that starts or ends waits for it
            if not self._notes:
                self.tick()  # the thread that ticks sleeps while nothing is held
            self._notes.update(new)
            self._write(written)
            self._put(_HELD, _WHOLE, len(self._notes))

    def start(self, lease: Lease, deadline: float) -> None:
        """Note that a handler starts."""
        with self._lock:
            self._count += 1
            if (notes := self._notes.get(lease)) is not None:
                notes.start = self._count
                request = b"" if lease.permit_request is None else codec.dumps(self._permit_of(lease, notes))
                size = _START.size + len(request)
                note = _START_NOTE.pack(size, _STARTED_AT, notes.number, lease.started_at, deadline)
                self._progress(notes, note + request)
            self._put(_STARTED, _WHOLE, self._count)  # last, so that a reader finds every start that is counted
            if deadline:
                self._deadlines[lease] = deadline
                if not 0 < self._first_deadline <= deadline:
                    self._put_deadline(deadline)

    def end(self, lease: Lease, transition: Transition) -> None:
        """Note how a lease ends, before it is settled."""
        started_ms, ended_ms = transition.started_ms, transition.ended_ms
        is_finish = transition.action is SettleAction.FINISH and started_ms is not None and ended_ms is not None
        ended = b"" if is_finish else codec.dumps(transition)
        with self._lock:
            if (notes := self._notes.get(lease)) is not None:
                notes.drop_permit()
                if is_finish:
                    finish = started_ms, ended_ms, transition.is_written
                    note = _FINISH_NOTE.pack(_FINISH.size, _FINISHED, notes.number, *finish)
                else:
                    note = _note(_ENDED, notes.number, ended)
                self._progress(notes, note)
            self._drop_deadline(lease)

    def forget(self, leases: Iterable[Lease]) -> None:
        """Note that leases were settled, lost, or left to lapse."""
        forgotten = []
        with self._lock:
            for lease in leases:
                self._drop_deadline(lease)
                if (notes := self._notes.pop(lease, None)) is not None:
                    notes.drop_permit()
                    forgotten.append(_NOTE.pack(0, _FORGOTTEN, notes.number))
            self._write(b"".join(forgotten))
            self._put(_HELD, _WHOLE, len(self._notes))

    def held_until(self, lease: Lease) -> float:
        """Return until when (monotonic) the supervisor has renewed a lease that this process could not; 0 if not."""
        renewed_for = _get(self._memory, _RENEWED_FOR, _WHOLE)  # read first, because it is written first
        notes = self._notes.get(lease)
        return _get(self._memory, _HELD_UNTIL, _REAL) if notes is not None and 0 < notes.start <= renewed_for else 0.0

    def counts(self) -> "Counter[SettleAction]":
        """Return a counter of settled leases that the supervisor can read."""
        return _SharedCounts(self._memory)

    def _new_notes(self, lease: Lease) -> _Notes:
        number = next(self._numbers)
        return _Notes(number, _note(_LEASED, number, codec.dumps(_leased_note(lease))))

    def _permit_of(self, lease: Lease, notes: _Notes) -> PermitRequest | None:
        """Return the request that got the permit of a handler that starts: no two that run name the same.

        The supervisor renews the permits that are named. A block has at least one for each that runs.
        """
        request, block = lease.permit_request, lease.block
        if request is None or block is None:
            return request
        named = notes.named = block.named
        request = next((each for each in list(block.requests) if each.token not in named), request)
        notes.permit = request.token
        named.add(request.token)
        return request

    def _progress(self, notes: _Notes, note: bytes) -> None:
        notes.progress += note
        self._write(note)

    def _write(self, new: bytes) -> None:
        """Write new notes, which `_notes` has already."""
        if self._end + len(new) > self._full_at:
            self._switch_half()  # copies the new notes too, with those of their leases
        else:
            self._append(new)

    def _switch_half(self) -> None:
        free, kept = _HALF, []
        for lease, notes in tuple(self._notes.items()):
            free -= len(notes.leased) + len(notes.progress)
            if free < 0:
                notes.drop_permit()
                del self._notes[lease]  # no room: its lease lapses if the process dies
            else:
                kept.append(notes.leased + notes.progress)
        held = b"".join(kept)
        self._half = 1 - self._half
        self._end = begin = _HALVES[self._half]
        self._full_at = begin + min(max(_LEAST, 2 * len(held)), _HALF)
        self._append(held)

    def _append(self, note: bytes) -> None:
        end = self._end + len(note)
        self._memory[self._end : end] = note
        self._end = end
        self._put(_END, _WHOLE, end)  # last, so that a reader sees whole notes only

    def _drop_deadline(self, lease: Lease) -> None:
        if self._deadlines.pop(lease, None) == self._first_deadline:  # else another one is still the first
            self._put_deadline(min(self._deadlines.values(), default=0.0))

    def _put_deadline(self, first: float) -> None:
        self._first_deadline = first
        self._put(_DEADLINE, _REAL, first)

    def _put(self, place: int, number: struct.Struct, value: float) -> None:
        _put(self._memory, place, number, value)


class JournalReader:
    """A journal as the supervisor reads it: the counts of a live process, and the leases that a dead one left.

    The supervisor writes one thing: until when it holds the leases of a process that can't renew them.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)

    @property
    def name(self) -> str:
        """Return the worker's name; '' while it starts."""
        return self._memory[_NAME : _NAME + _MOST_NAME].rstrip(b"\0").decode(errors="replace")

    @property
    def beat_at(self) -> float:
        """Return when the worker's main loop last gave a sign of life, by the monotonic clock; 0 if never."""
        return float(self._get(_BEAT, _REAL))

    @property
    def alive_at(self) -> float:
        """Return when the worker's threads were last known to run, by the monotonic clock; 0 if never.

        They note it only while the worker holds a lease.
        """
        return float(self._get(_ALIVE, _REAL))

    @property
    def holds_any(self) -> bool:
        """Return whether the worker holds any lease."""
        return self._get(_HELD, _WHOLE) > 0

    @property
    def deadline(self) -> float:
        """Return when the first of the running handlers reaches its time-out, by the monotonic clock; 0 if none does.

        Only handlers that must be ended from outside count.
        """
        return float(self._get(_DEADLINE, _REAL))

    @property
    def started(self) -> int:
        """Return how many messages the worker has started."""
        return int(self._get(_STARTED, _WHOLE))

    @property
    def counts(self) -> "Counter[SettleAction]":
        """Return how many leases the worker has settled by each action."""
        counted = {action: int(self._get(place, _WHOLE)) for action, place in _COUNT_PLACES.items()}
        return Counter({action: count for action, count in counted.items() if count})

    def held(self) -> list[Held]:
        """Return the leases that the worker holds. They are exact once the worker is dead or can't write."""
        held: dict[int, Held] = {}
        for kind, number, body in self._notes():
            if kind == _LEASED:
                held[number] = Held(_leased(codec.decode_data(body, _LeasedNote)))
            elif kind == _FORGOTTEN:
                held.pop(number, None)
            elif (one := held.get(number)) is not None and kind == _STARTED_AT:
                one.started = _started(body)
            elif one is not None and kind == _FINISHED:
                started_ms, ended_ms, is_written = _FINISH.unpack(body)
                span = Span(started_ms, ended_ms)
                one.transition = transitions.finish(one.leased.claimed, span, is_written=is_written)
            elif one is not None:
                one.transition = codec.decode_data(body, Transition)
        return list(held.values())

    def _notes(self) -> Iterator[tuple[int, int, bytes]]:
        end = int(self._get(_END, _WHOLE))
        at = _HALVES[end >= _HALVES[1]]
        notes, at, end = self._memory[at:end], 0, max(end - at, 0)
        while at + _NOTE.size <= end:
            size, kind, number = _NOTE.unpack_from(notes, at)
            at += _NOTE.size
            if at + size <= end:
                yield kind, number, notes[at : at + size]
            at += size

    def hold(self, started: int, until: float) -> None:
        """Tell the worker until when (monotonic) the leases of the first `started` messages that it started are held.

        If `started` is 0, none are held for it.
        """
        if started != self._get(_RENEWED_FOR, _WHOLE):
            _put(self._memory, _HELD_UNTIL, _REAL, 0.0)  # the old time must not be read for the new leases
            _put(self._memory, _RENEWED_FOR, _WHOLE, started)
        _put(self._memory, _HELD_UNTIL, _REAL, until)

    def _get(self, place: int, number: struct.Struct) -> float:
        return _get(self._memory, place, number)


class _SharedCounts(Counter[SettleAction]):
    """A counter that also writes each count into the journal's memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__()
        self._memory = memory

    def __setitem__(self, action: SettleAction, count: int) -> None:
        super().__setitem__(action, count)
        _put(self._memory, _COUNT_PLACES[action], _WHOLE, count)


def _get(memory: mmap.mmap, place: int, number: struct.Struct) -> float:
    value: float = number.unpack_from(memory, place)[0]
    return value


def _put(memory: mmap.mmap, place: int, number: struct.Struct, value: float) -> None:
    number.pack_into(memory, place, value)


def _note(kind: int, number: int, body: bytes = b"") -> bytes:
    return _NOTE.pack(len(body), kind, number) + body


def _leased_note(lease: Lease) -> tuple[object, ...]:
    """Return the fields of a `_LeasedNote`."""
    return (*_noted_fields(lease.claimed), lease.clock_ms)


def _leased(note: _LeasedNote) -> Leased:
    claimed: dict[str, Any] = dict(zip(_NOTED, note, strict=False))
    return Leased(Claimed(body=b"", **claimed), note.clock_ms)


def _started(body: bytes) -> Started:
    at, deadline = _START.unpack_from(body)
    request = body[_START.size :]
    return Started(at, deadline, codec.decode_data(request, PermitRequest) if request else None)
