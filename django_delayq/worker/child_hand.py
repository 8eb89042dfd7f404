"""Running sync handlers in a child process of the hand's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from django_delayq.brokers.base import Settlement
from django_delayq.errors import HandlerTimeout
from django_delayq.safe_logs import logger
from django_delayq.sizes import to_text
from django_delayq.worker import attempt
from django_delayq.worker.children import Child, ChildDiedError, ChildGaveUpError, ChildUnavailableError
from django_delayq.worker.cut_short import cut_short
from django_delayq.worker.exactly_once import was_committed
from django_delayq.worker.hands import Run
from django_delayq.worker.lanes import Lease
from django_delayq.worker.outcome import Outcome

RESTART_PAUSE_S = 1.0


@contextmanager
def in_child(worker: str, using: str, outcome: Outcome, max_memory: int | None) -> Iterator[Run]:
    """A way to run messages for one thread: in a child that starts with the first one, and anew after each death.

    One that takes more than `max_memory` bytes after a message is ended, too.
    """
    hand = ChildHand(worker, using, outcome, max_memory)
    try:
        yield hand.run
    finally:
        hand.close()


class ChildHand:
    """Keeps one child process."""

    def __init__(self, worker: str, using: str, outcome: Outcome, max_memory: int | None) -> None:
        self._worker = worker
        self._using = using
        self._outcome = outcome
        self._max_memory = max_memory
        self._child: Child | None = None

    def run(self, lease: Lease) -> Settlement | None:
        """Run one message. A child that dies of it costs this one message a crash; None to let its lease lapse."""
        try:
            self._child = self._child or Child(self._worker, self._using)
            settlement = self._child.run(lease)
        except BaseException as ending:  # noqa: BLE001 - raised again where it is not known
            self._discard()  # whatever it is: a late answer must not be taken for that to another message
            return self._settle(lease, ending)
        self._recycle()
        return settlement

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()

    def _recycle(self) -> None:
        """End a child that takes too much: the next message starts another."""
        if self._child is None or self._max_memory is None or self._child.resident <= self._max_memory:
            return
        logger.info(
            "A child process takes %s, and --max-memory is %s: it is replaced.",
            to_text(self._child.resident), to_text(self._max_memory),
        )  # fmt: skip
        self._discard()

    def _settle(self, lease: Lease, ending: BaseException) -> Settlement | None:
        claimed, handler = lease.claimed, lease.lane.handler
        match ending:
            case ChildUnavailableError() | OSError():
                logger.error("A child process can't run messages (%s); starting another.", ending)
                sleep(RESTART_PAUSE_S)
                return attempt.release(claimed)
            case HandlerTimeout() | ChildDiedError() | ChildGaveUpError() if was_committed(claimed, handler):
                logger.warning(
                    "Message %r (%s) is finished: its transaction was committed before its process died.",
                    claimed.id, handler.key, extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
                )  # fmt: skip
                settlement = attempt.settle_for(claimed, handler, None, lease.ms_of(lease.started_at), lease.now_ms())
                self._outcome.ended(lease, settlement, None, None)
                return settlement
            case HandlerTimeout():
                ending = ending.with_traceback(None)
                settlement = attempt.settle_for(claimed, handler, ending, lease.ms_of(lease.started_at), lease.now_ms())
            case ChildDiedError() if lease.is_held():
                settlement = attempt.crash(claimed, handler, str(ending), lease.ms_of(lease.started_at))
            case ChildDiedError() | ChildGaveUpError():
                return cut_short(lease, "so did the process that ran it")
            case _:
                raise ending
        self._outcome.ended(lease, settlement, None, ending)
        return settlement

    def _discard(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
