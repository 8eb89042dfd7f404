"""The options of `run_delayq`."""

from dataclasses import dataclass
from pathlib import Path

from django_delayq.worker.queues import ServedQueue


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one worker; lengths of time in seconds."""

    queues: tuple[ServedQueue, ...] = ()
    """Empty: every queue that a handler names, and "default", in no order."""
    threads: int = 4
    max_threads: int = 32
    processes: int = 0
    shutdown_timeout: float = 30.0
    drain: bool = False
    heartbeat_file: Path | None = None
    max_messages: int | None = None
    max_memory: int | None = None
    """Bytes, of the worker's own process and of each child."""
