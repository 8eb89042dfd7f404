"""Running sync handlers in a child process of the hand's own."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from django_delayq.brokers.base import Settlement, Verb
from django_delayq.errors import HandlerTimeout
from django_delayq.worker import attempt
from django_delayq.worker.children import Child, ChildDiedError
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import Lease
from django_delayq.worker.outcome import Outcome

RESTART_PAUSE_S = 1.0

_logger = logging.getLogger("django_delayq")


@contextmanager
def in_child(worker: str, using: str, outcome: Outcome) -> Iterator[Run]:
    """A way to run messages for one thread: in a child that starts with the first one, and anew after each death."""
    hand = ChildHand(worker, using, outcome)
    try:
        yield hand.run
    finally:
        hand.close()


class ChildHand:
    """Keeps one child process."""

    def __init__(self, worker: str, using: str, outcome: Outcome) -> None:
        self._worker = worker
        self._using = using
        self._outcome = outcome
        self._child: Child | None = None

    def run(self, lease: Lease) -> Settlement | None:
        """Run one message. None when the child died of it: the lapse of this one lease counts the crash."""
        try:
            child = self._child = self._child or Child(self._worker, self._using)
        except (ChildDiedError, OSError) as error:
            _logger.error("A child process can't start (%s); trying again.", error)
            sleep(RESTART_PAUSE_S)
            return attempt.release(lease.claimed, Verb.RELEASE)
        try:
            return child.run(lease)
        except HandlerTimeout as timeout:
            self._replace(child)
            settlement = attempt.settle_for(
                lease.claimed, lease.lane.handler, timeout.with_traceback(None), lease.now_ms()
            )
            self._outcome.ended(lease, settlement, None, timeout)
            return settlement
        except ChildDiedError as death:
            self._replace(child)
            _logger.error(
                "Message %r (%s): its process died (%s); it counts a crash when its lease ends.",
                lease.claimed.id, lease.lane.handler.key, death, extra={"id": lease.claimed.id},
            )  # fmt: skip
            return None

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()

    def _replace(self, child: Child) -> None:
        child.kill()
        self._child = None
