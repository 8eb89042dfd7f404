"""A real worker with real threads on the memory broker, which tells when it moved something."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import (
    NO_PROGRESS,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Claims,
    Header,
    Info,
    LeaseId,
    MaintenanceResult,
    NewMessage,
    Pause,
    PermitRequest,
    Throttled,
    Transition,
)
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.brokers.memory.limiter import MemoryLimiter
from django_delayq.conf import Alias, Options as AliasOptions
from django_delayq.core import codec
from django_delayq.core.limits import Limits
from django_delayq.core.message import Message, State
from django_delayq.core.retry import Backoff
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker

PATIENCE_S = 20.0
"""How long a test waits for what must come; it never waits for nothing to happen."""


def make_handler(
    func: Callable[[Message[Any]], Any] | Callable[[list[Message[Any]]], Any],
    key: str = "k",
    *,
    former_keys: tuple[str, ...] = (),
    queue: str = "default",
    max_attempts: int = 4,
    backoff: Backoff = 60,
    timeout_ms: int = 3_600_000,
    concurrency: int | None = None,
    atomic: bool = False,
    at_most_once: bool = False,
    limits: Limits | None = None,
    batch: int | None = None,
    wait_ms: int = 0,
) -> Handler[Any, Any]:
    """A handler that no registry knows."""
    return Handler(
        func,
        key,
        former_keys,
        queue,
        "default",
        max_attempts,
        backoff,
        timeout_ms,
        concurrency,
        None,
        atomic,
        at_most_once,
        limits,
        batch=batch,
        wait_ms=wait_ms,
    )


class WatchedLimiter(MemoryLimiter):
    """The memory limiter, which counts what it is asked, and calls `tell` after it."""

    def __init__(self, clock_ms: Callable[[], float], tell: Callable[[], None]) -> None:
        super().__init__(clock_ms)
        self.acquires = self.renewals = 0
        self._tell = tell

    def acquire(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> list[Throttled | None]:
        answers = super().acquire(asks, lease_ms=lease_ms)
        self.acquires += 1
        self._tell()
        return answers

    def renew(self, asks: Sequence[PermitRequest], *, lease_ms: int) -> None:
        super().renew(asks, lease_ms=lease_ms)
        self.renewals += 1
        self._tell()


class WatchedBroker(MemoryBroker):
    """The memory broker, with a clock that can be moved on, and a call that waits for a state of affairs."""

    limiter: WatchedLimiter

    def __init__(self, alias: Alias) -> None:
        self.ahead_ms = 0
        self.claims = self.upkeeps = self.reads = 0
        self._moved = threading.Condition()
        super().__init__(alias, lambda: time.time_ns() / 1_000_000 + self.ahead_ms)

    def limit_by(self, limiter_class: type[WatchedLimiter]) -> None:
        """Have a limiter of this class keep the limits."""
        self._limits = self.limiter = limiter_class(self._clock_ms, self.tell)

    def advance(self, ms: int) -> None:
        """Let the broker's time pass."""
        self.ahead_ms += ms
        self.queue.wake()

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait until `is_so`; it is asked after each move."""
        with self._moved:
            assert self._moved.wait_for(is_so, PATIENCE_S), "it did not come to that"

    def tell(self) -> None:
        """Something happened: let `until` look."""
        with self._moved:
            self._moved.notify_all()

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        claims = super().claim(wants, lease_ms=lease_ms, worker=worker)
        self.claims += 1
        self.tell()
        return claims

    def apply(self, transitions: Sequence[Transition]) -> list[bool | CancelRequest]:
        settled = super().apply(transitions)
        self.tell()
        return settled

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> list[bool | CancelRequest]:
        held = super().renew(leases, lease_ms, progress)
        self.tell()
        return held

    def pauses(self) -> list[Pause]:
        pauses = super().pauses()
        self.reads += 1
        self.tell()
        return pauses

    def maintain(self, *, lease_ms: int) -> MaintenanceResult:
        upkept = super().maintain(lease_ms=lease_ms)
        self.upkeeps += 1
        self.tell()
        return upkept


class Rig:
    """Workers on one broker. `broker_class` and `limiter_class` let a test put faults between them."""

    def __init__(
        self,
        lease_ms: int = 15_000,
        broker_class: type[WatchedBroker] = WatchedBroker,
        limiter_class: type[WatchedLimiter] = WatchedLimiter,
    ) -> None:
        self.alias = Alias("default", options=AliasOptions(lease=lease_ms))
        self.broker = broker_class(self.alias)
        self.broker.limit_by(limiter_class)
        self._running: list[tuple[Worker, threading.Thread]] = []
        self.ended_well: dict[str, bool] = {}

    def send(self, *ids: str, data: object = None, key: str = "k", delay_ms: int = 0, **header: Any) -> None:
        """Send messages of one key."""
        queue = header.pop("queue", "default")
        body = codec.dumps(data)
        self.broker.queue.enqueue([NewMessage(id, Header(queue, key, **header), body, delay_ms) for id in ids])

    def send_together(self, *ids: str, once: Sequence[str] = ()) -> None:
        """Send messages that are all due at one instant, soon; those named in `once` must not start twice."""
        at_ms = self.broker.queue.counts().now_ms + 50
        self.broker.queue.enqueue(
            [NewMessage(id, Header("default", "k", id in once), b"null", at_ms=at_ms) for id in ids]
        )

    def make(self, *handlers: Handler[Any, Any], **options: Any) -> Worker:
        """A worker that does not run yet."""
        by_key = {key: handler for handler in handlers for key in (handler.key, *handler.former_keys)}
        return Worker(self.alias, self.broker, by_key, Options(**options))

    def start(self, *handlers: Handler[Any, Any], **options: Any) -> Worker:
        """A worker that runs in a thread; `stop` ends it."""
        worker = self.make(*handlers, **options)

        def run() -> None:
            self.ended_well[worker.name] = worker.run()

        thread = threading.Thread(target=run, daemon=True)
        self._running.append((worker, thread))
        thread.start()
        return worker

    def drain(self, *handlers: Handler[Any, Any], **options: Any) -> Worker:
        """A worker that has run all that was due."""
        self.broker.advance(1)  # due times are rounded up
        worker = self.start(*handlers, drain=True, **options)
        self.join()
        return worker

    def join(self) -> None:
        """Wait until every worker has ended."""
        while self._running:
            worker, thread = self._running.pop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"worker {worker.name} did not end"

    def stop(self) -> None:
        """End every worker."""
        for worker, _ in self._running:
            worker.stop()
        self.join()

    def see(self, id: str) -> Info:
        """A message that is somewhere."""
        info = self.broker.queue.get(id)
        assert info is not None, f"there is no message {id!r}"
        return info

    def until_gone(self, *ids: str) -> None:
        """Wait until messages are finished."""
        self.broker.until(lambda: all(self.broker.queue.get(id) is None for id in ids))

    def until_state(self, id: str, state: State) -> Info:
        """Wait until a message is in a state."""
        self.broker.until(lambda: (info := self.broker.queue.get(id)) is not None and info.state is state)
        return self.see(id)
