"""The options of `run_delayq`."""

from dataclasses import dataclass

from django_delayq.worker.queues import ServedQueue


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one worker; lengths of time in seconds."""

    queues: tuple[ServedQueue, ...] = ()
    """Empty: every queue that a handler names, and "default", in no order."""
    threads: int = 4
    max_threads: int = 32
    processes: int = 0
    """How many workers share the `concurrency` of each handler; 0: this one has it for itself."""
    index: int = 0
    """The number of this one among them, from 0."""
    shutdown_timeout: float = 30.0
    drain: bool = False
    heartbeat_file: str | None = None
    max_messages: int | None = None
    max_memory: int | None = None
    """Bytes, of each worker's process."""
