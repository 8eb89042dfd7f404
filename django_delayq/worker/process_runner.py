"""Run sync handlers in a child process of the hand's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from django_delayq.brokers.base import BATCH, Transition
from django_delayq.core import transitions
from django_delayq.core.errors import HandlerTimeout
from django_delayq.core.transitions import Span
from django_delayq.support.logging import logger
from django_delayq.support.units import size_text
from django_delayq.worker import attempt
from django_delayq.worker.batches import Batch
from django_delayq.worker.children import Child, ChildDiedError, ChildGaveUpError, ChildUnavailableError
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.exactly_once import was_committed
from django_delayq.worker.executors.base import interrupted_settlement as cut_short
from django_delayq.worker.prefetch import Lease, PrefetchBuffer
from django_delayq.worker.turns import Turns, Work

RESTART_PAUSE_S = 1.0
"""How long a hand whose child can't take messages rests: the next child may fail as well."""


@contextmanager
def in_child(
    worker: str, using: str, outcome: AttemptEvents, max_memory: int | None, most: int, turns: Turns
) -> Iterator[Work]:
    """Yield a way to work for one thread of `most`, in a child process.

    The child starts with the first message, and again after each death. A child that takes more than `max_memory` bytes
    after a message is ended, too.
    """
    hand = ProcessRunner(worker, using, outcome, max_memory, most, turns)
    try:
        yield hand.work
    finally:
        hand.close()


class ProcessRunner:
    """Keeps one child process."""

    def __init__(
        self, worker: str, using: str, outcome: AttemptEvents, max_memory: int | None, most: int, turns: Turns
    ) -> None:
        self._worker = worker
        self._using = using
        self._outcome = outcome
        self._max_memory = max_memory
        self._most = most
        self._turns = turns
        self._child: Child | None = None

    def work(self, buffer: PrefetchBuffer) -> tuple[int, float]:
        """Have the child run a batch of a lane. If it dies of a message, only that message is charged with a crash."""
        self._discard_dead()
        batch = Batch(buffer, self._turns, self._most)
        batch.fill(BATCH if self._child else 1)  # a child takes a while to start, and other hands may be free
        if not batch.left:
            return 0, 0.0
        try:
            self._child = self._child or Child(self._worker, self._using, self._max_memory)
            self._child.run(batch)
        except BaseException as ending:  # noqa: BLE001 - whatever it is, this thread must live on
            self._discard()  # a late answer must not be taken for that to another message
            self._settle(batch, ending)
        else:
            self._recycle(self._child)
        return batch.ended, batch.seconds

    def close(self) -> None:
        """End the child, which is idle."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _discard_dead(self) -> None:
        """Drop a child that died while idle (for want of memory): its death says nothing of the messages to come."""
        if self._child is not None and (death := self._child.death):
            logger.warning("A child process had nothing to run, and is gone (%s); starting another.", death)
            self._discard()

    def _recycle(self, child: Child) -> None:
        """End a child that takes too much memory: the next message starts another."""
        if self._max_memory is None or not child.is_full:
            return
        logger.info(
            "A child process takes %s, and --max-memory is %s: it is replaced.",
            size_text(child.resident), size_text(self._max_memory),
        )  # fmt: skip
        self.close()

    def _settle(self, batch: Batch, ending: BaseException) -> None:
        """Settle what a dead child has left: it ran the first message, and had not started the others."""
        if isinstance(ending, ChildUnavailableError | OSError):
            logger.error("A child process can't run messages (%s); starting another.", ending)
            batch.release()  # at once: another worker's children may be able to
            self._turns.rest(RESTART_PAUSE_S)
        elif batch.left:
            batch.end_first(self._transition_of(batch.left[0], ending), monotonic())
            batch.put_back()

    def _transition_of(self, lease: Lease, ending: BaseException) -> Transition | None:
        claimed, handler = lease.claimed, lease.buffer.handler
        started_ms = lease.ms_of(lease.started_at)
        exception: BaseException | None = ending
        match ending:
            case HandlerTimeout() | ChildDiedError() | ChildGaveUpError() if was_committed(claimed, handler):
                logger.warning(
                    "Message %r (%s) is finished: its transaction was committed before its process died.",
                    claimed.id, handler.key, extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
                )  # fmt: skip
                exception = None
                transition = attempt.after(claimed, handler, None, started_ms, lease.now_ms())
            case HandlerTimeout():
                exception = ending.with_traceback(None)
                transition = attempt.after(claimed, handler, exception, started_ms, lease.now_ms())
            case ChildDiedError() if lease.is_held():
                exception = ending.with_traceback(None)  # this tells nothing about its handler
                span = Span(started_ms, lease.now_ms())
                transition = transitions.crash(claimed, str(ending), attempt.policy_of(claimed, handler), span)
            case ChildGaveUpError() if lease.is_held():  # what ran before it was to be stopped, and ended just then
                return transitions.interrupt(claimed, attempt.policy_of(claimed, handler), Span(started_ms))
            case ChildDiedError() | ChildGaveUpError():
                return cut_short(lease, "the process that ran it ended")
            case _:
                logger.error("Message %r is left to lapse.", claimed.id, exc_info=ending, extra={"id": claimed.id})
                return None
        self._outcome.ended(lease, transition, None, exception)
        return transition

    def _discard(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
