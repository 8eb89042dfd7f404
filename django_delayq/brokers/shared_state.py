"""Define an alias's shared state as a value: its pauses, its workers' heartbeats, and the cursor of its alarms."""

from dataclasses import dataclass, field, replace

from django_delayq.core.codec import Instant
from django_delayq.core.requests import Heard, Pause, WorkerInfo

HEARTBEAT_MS = 15_000
FORGOTTEN_MS = 60_000


@dataclass(slots=True)
class SharedState:
    """The workers' heartbeats and the cursor of the alarms. It has no clock: every time is passed in."""

    workers: dict[str, WorkerInfo] = field(default_factory=dict)
    cursor: Instant | None = None
    """The due time up to which every alarm was scheduled; None until it is set for the first time."""

    def workers_at(self, now_ms: int) -> list[WorkerInfo]:
        """Return the workers whose heartbeat is at most 15 s old."""
        return [info for info in self.workers.values() if info.seen_ms >= now_ms - HEARTBEAT_MS]

    def record(self, worker: WorkerInfo, now_ms: int) -> None:
        """Record a heartbeat, and forget the workers whose last one is over 60 s old."""
        young = {name: info for name, info in self.workers.items() if info.seen_ms >= now_ms - FORGOTTEN_MS}
        self.workers = {**young, worker.name: replace(worker, seen_ms=now_ms)}

    def leave(self, worker: str) -> None:
        """Delete a worker's heartbeat, if there is one."""
        self.workers.pop(worker, None)

    def advance_cursor(self, from_ms: int | None, to_ms: int) -> int | None:
        """Set the cursor forward like `Window.advance_cursor`, and return it."""
        if self.cursor is None:
            self.cursor = to_ms if from_ms is None else None
        elif from_ms is not None and from_ms <= self.cursor:
            self.cursor = max(self.cursor, to_ms)
        return self.cursor

    def set_cursor_back(self, to_ms: int) -> None:
        """Set the cursor, if there is one, back to `to_ms`, and in any case by at least 1 ms."""
        if self.cursor is not None:
            self.cursor = min(self.cursor - 1, to_ms)


@dataclass(slots=True)
class StateWithPauses(SharedState):
    """The shared state of a broker that carries messages: it keeps the pauses too."""

    pauses: list[Pause] = field(default_factory=list)

    def pauses_at(self, now_ms: int) -> list[Pause]:
        """Return the pauses in force, by queue and key."""
        held = (pause for pause in self.pauses if pause.holds(now_ms))
        return sorted(held, key=lambda pause: (pause.queue or "", pause.key or ""))

    def pause(self, pause: Pause, now_ms: int) -> None:
        """Add a pause, which replaces one of the same queue and key."""
        self.resume(pause.queue, pause.key, now_ms)
        self.pauses.append(replace(pause, paused_ms=now_ms))

    def resume(self, queue: str | None, key: str | None, now_ms: int) -> bool:
        """Drop a pause, and all pauses that have ended. Return whether that pause was in force."""
        held = self.pauses_at(now_ms)
        self.pauses = [pause for pause in held if (pause.queue, pause.key) != (queue, key)]
        return len(self.pauses) < len(held)

    def heartbeat(self, worker: WorkerInfo, now_ms: int) -> Heard:
        """Record a heartbeat, and return the pauses in force and the workers that are alive."""
        self.record(worker, now_ms)
        return Heard(self.pauses_at(now_ms), self.workers_at(now_ms))
