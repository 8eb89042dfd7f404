"""What concerns the delayq as a whole and none of its messages: the workers' heartbeats, and pauses."""

from dataclasses import replace

from django_delayq.brokers.figures import Pause, WorkerInfo

HEARTBEAT_MS = 15_000


class Meta:
    """Heartbeats by worker, pauses by queue and key."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerInfo] = {}
        self._pauses: dict[tuple[str, str], Pause] = {}  # "" stands for every queue, or every key

    def announce(self, worker: WorkerInfo, now_ms: int) -> None:
        self._workers[worker.name] = replace(worker, seen_ms=now_ms)

    def retire(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def workers(self, now_ms: int) -> list[WorkerInfo]:
        oldest_ms = now_ms - HEARTBEAT_MS
        return [replace(worker) for worker in self._workers.values() if worker.seen_ms >= oldest_ms]

    def pause(self, pause: Pause, now_ms: int) -> None:
        self._pauses[pause.queue or "", pause.key or ""] = replace(pause, paused_ms=now_ms)

    def resume(self, queue: str | None, key: str | None, now_ms: int) -> bool:
        pause = self._pauses.pop((queue or "", key or ""), None)
        return pause is not None and pause.holds(now_ms)

    def pauses(self, now_ms: int) -> list[Pause]:
        return [pause for _, pause in sorted(self._pauses.items()) if pause.holds(now_ms)]
