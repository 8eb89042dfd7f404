"""What came from RabbitMQ for one (queue, key), and what has the server send it. No I/O."""

import heapq
from dataclasses import dataclass, field

from django_delayq.brokers.rabbitmq.names import SetName
from django_delayq.brokers.rabbitmq.notes import Note
from django_delayq.brokers.rabbitmq.outgoing import Outgoing


@dataclass(slots=True, eq=False)
class Arrival:
    """One delivered message. `ready_at` is when it is due, by the monotonic clock."""

    set_name: SetName
    note: Note
    body: bytes
    tag: int
    ready_at: float
    is_foreign: bool = False
    """Whether someone else wrote it: its note is made up."""
    is_alarm: bool = False
    again: bool = False
    """Whether a connection was lost that had it."""
    following: Outgoing | None = None
    """What is to take its place. It may be there already, where a first try could not be told of."""


@dataclass(slots=True, eq=False)
class Consumer:
    """What has the server send the messages of one box, until so many are not acknowledged as its credit says."""

    box: "Box"
    tag: str
    credit: int
    unacknowledged: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing is under way to it."""
        return self.unacknowledged >= self.credit


@dataclass(slots=True, eq=False)
class Box:
    """What came for one (queue, key)."""

    name: SetName
    held: list[tuple[float, int, Arrival]] = field(default_factory=list)
    ready: list[tuple[int, int, Arrival]] = field(default_factory=list)
    consumer: Consumer | None = None
    taken: int = 0
    """How many are claimed and not acknowledged."""
    wanted: int = 0
    wanted_at: float = 0.0

    def ripen(self, now: float) -> None:
        """What is held and due by now is ready."""
        while self.held and self.held[0][0] <= now:
            _, number, arrival = heapq.heappop(self.held)
            heapq.heappush(self.ready, (arrival.note.due_ms, number, arrival))

    def take_later(self, than: float) -> list[Arrival]:
        """Take out what is held and due later than then."""
        later = [entry[2] for entry in self.held if entry[0] > than]
        if later:
            self.held = sorted(entry for entry in self.held if entry[0] <= than)  # a heap, too
            self.taken += len(later)
        return later

    def empty(self) -> list[Arrival]:
        """Take out all of it."""
        arrivals = [entry[2] for entry in (*self.ready, *self.held)]
        self.ready, self.held = [], []
        return arrivals
