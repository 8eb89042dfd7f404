"""Send settlements to the queue in batches, in a thread of their own."""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from time import monotonic, sleep
from typing import NamedTuple

from django_delayq.brokers.base import BATCH, Backend, CancelRequest, SettleAction, Transition
from django_delayq.core import transitions
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.message import State
from django_delayq.support.logging import logger
from django_delayq.worker import attempt, failure
from django_delayq.worker.failure_kinds import FailureKinds
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog, backoff_delays, guarded

LINGER_S = 0.050
"""How long to gather settlements into one batch, in seconds."""
REFUSED_PAUSE_S = 2.0
REFUSED_TRIES = 5
"""How many times a rejected settlement is tried again unchanged, because the cause may pass."""
ENOUGH = 100
"""How many settlements are enough for a batch that is sent at once."""

Settlement = tuple[Lease, Transition]
"""A lease that ends, and what becomes of its message."""


class Rejected(NamedTuple):
    """A rejected settlement, how many tries are left, and when the next is due by the monotonic clock."""

    lease: Lease
    transition: Transition
    tries: int
    at: float


class Settler:
    """The thread that collects settlements from all slots, and sends them in batches.

    A batch is sent after 50 ms, or earlier once there are 100 settlements or one of them is urgent.
    """

    def __init__(
        self,
        backend: Backend,
        leases: Leases,
        outage_log: OutageLog,
        wake: Callable[[], None] = lambda: None,
        count: Callable[[Sequence[Settlement]], None] | None = None,
    ) -> None:
        self._backend = backend
        self._leases = leases
        self._outage_log = outage_log
        self._wake = wake
        self._count = count
        self._ended: deque[Settlement] = deque()
        self._retry_locked: list[Settlement] = []
        self._rejected: list[Rejected] = []
        self.counts: Counter[SettleAction] = Counter()
        """How many leases ended by each action."""
        self._some = threading.Event()
        self._enough = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._settle_forever, name="delayq-settle", daemon=True)

    @cached_property
    def _failure_kinds(self) -> FailureKinds:
        return FailureKinds(self._backend)

    def start(self) -> None:
        self._thread.start()

    def add(self, lease: Lease, transition: Transition, *, urgent: bool = True) -> None:
        """Settle a lease soon; at once if it is `urgent`, or others may wait for its permit.

        This never blocks, and takes no lock while a batch gathers.
        """
        self._ended.append((lease, transition))
        if not self._some.is_set():
            self._some.set()
        if (urgent or lease.holds_up or len(self._ended) >= ENOUGH) and not self._enough.is_set():
            self._enough.set()

    def release(self, leases: list[Lease]) -> None:
        """Release leases that were not started."""
        for lease in leases:
            lease.released = True
            self.add(lease, transitions.release(lease.claimed))

    def put_off(self, waits_ms: Mapping[Lease, int]) -> None:
        """Release leases that may not start yet. Each message is due again after its wait in milliseconds."""
        for lease, wait_ms in waits_ms.items():
            self.add(lease, transitions.release(lease.claimed, wait_ms))

    def close(self, timeout: float) -> None:
        """Settle what has ended, for at most `timeout` seconds, and end the thread."""
        self._closed.set()
        self._some.set()
        self._enough.set()
        self._thread.join(timeout)

    def _settle_forever(self) -> None:
        while not self._closed.is_set() or self._ended or self._rejected:
            if not self._ended:  # what is left has locked rows, for which a linger is wait enough
                self._some.wait(REFUSED_PAUSE_S if self._rejected else None)
            self._enough.wait(LINGER_S)
            # Clear first, so that what is added meanwhile sets them again.
            self._enough.clear()
            self._some.clear()
            guarded(self._settle_ended)
            self._ended.extend(self._retry_locked)
            self._retry_locked.clear()
            if self._closed.is_set():
                self._some.set()

    def _settle_ended(self) -> None:
        ended = self._ended
        while ended:
            self._settle([ended.popleft() for _ in range(min(len(ended), BATCH))])  # this thread alone pops
        if self._rejected:
            self._settle_rejected()

    def _settle(self, batch: list[Settlement]) -> None:
        try:
            self._send(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, one bad settlement must not hold up the others
            if len(batch) == 1:
                self._reject(*batch[0], error)
                return
            for ended in batch:
                self._settle([ended])

    def _reject(self, lease: Lease, transition: Transition, error: Exception) -> None:
        """Send a rejected settlement with its texts in ASCII. If they are ASCII already, keep it for another try."""
        in_ascii = attempt.in_ascii(transition)
        if in_ascii != transition:
            self._settle([(lease, in_ascii)])
            return
        self._rejected.append(Rejected(lease, transition, REFUSED_TRIES, monotonic() + REFUSED_PAUSE_S))
        _log_rejected(lease, transition, error, "Trying again.")

    def _settle_rejected(self) -> None:
        """Try rejected settlements again: those that are due, or all once the settler closes."""
        until = math.inf if self._closed.is_set() else monotonic()
        due = [one for one in self._rejected if one.at <= until]
        self._rejected = [one for one in self._rejected if one.at > until]
        for lease, transition, tries, _ in due:
            try:
                self._send([(lease, transition)])
            except Exception as error:  # noqa: BLE001 - as above
                if tries > 1:
                    self._rejected.append(Rejected(lease, transition, tries - 1, monotonic() + REFUSED_PAUSE_S))
                else:
                    self._fail(lease, transition, error)

    def _fail(self, lease: Lease, transition: Transition, error: Exception) -> None:
        """Count the attempt as failed because its settlement is rejected for good.

        Otherwise its message would run again and again.
        """
        then = "Its lease is left to lapse."
        for instead in attempt.in_place_of(transition, lease.claimed, lease.handler, error):
            with suppress(Exception):  # then the next is tried
                is_taken = self._send([(lease, instead)])
                then = f"Its attempt counts as failed ({instead.action.value})." if is_taken else "Its lease is lost."
                break
        else:
            self._leases.remove([lease])
        _log_rejected(lease, transition, error, then)

    def _send(self, batch: list[Settlement]) -> bool:
        """Send settlements, however long the broker is away. Return whether any is written, or waits for a locked row.

        Those of a lease that is lost are reported instead.
        """
        backoff = None
        repeated = False
        while batch := self._without_lost(batch):
            try:
                settled = self._backend.queue.apply([transition for _, transition in batch])
            except BrokerUnavailable as error:  # settlements must be sent, however late
                self._outage_log.begin("settling", error)
                repeated = True
                backoff = backoff or backoff_delays()
                sleep(next(backoff))
                continue
            if self._outage_log.failing:
                self._outage_log.end("settling")
            answers = list(zip(batch, settled, strict=True))
            self._retry_locked += [ended for ended, was_held in answers if was_held is None]
            self._retry_locked += [_cancelled(*ended, was) for ended, was in answers if isinstance(was, CancelRequest)]
            over = [lease for (lease, _), was_held in answers if isinstance(was_held, bool)]
            self._release_permits(over)
            self._leases.remove(over)
            written = [ended for ended, was_held in answers if was_held is True]
            for lease, transition in written:
                if transition.is_replaced and transition.state is State.PENDING:
                    _log_replaced(lease, transition)
            if self._count is not None:
                self._count(written)
            # Each item that is set costs a supervised worker a write into shared memory
            for action, count in Counter(transition.action for _, transition in written).items():
                self.counts[action] += count
            if failed := [ended for ended in written if ended[1].fingerprint]:
                self._failure_kinds.note(failed)
            self._report_lost([ended for ended, was_held in answers if was_held is False], repeated)
            return any(was_held is not False for was_held in settled)
        return False

    def _without_lost(self, batch: list[Settlement]) -> list[Settlement]:
        """Return the settlements to send, and report those whose lease is lost.

        A lease that could not be renewed in time is not lost yet: the broker knows whose it is.
        """
        held: list[Settlement] = []
        lost: list[Settlement] = []
        for lease, transition in batch:
            (lost if lease.lost and not transition.is_written else held).append((lease, transition))
        if lost:
            self._release_permits(lease for lease, _ in lost if not lease.runs)
            self._report_lost(lost, repeated=False)
        return held

    def _release_permits(self, leases: Iterable[Lease]) -> None:
        if self._leases.release_permits(leases):
            self._wake()  # other messages of the handler may have waited for these permits

    def _report_lost(self, lost: Sequence[Settlement], repeated: bool) -> None:
        """Log each settlement whose lease is gone, except releases.

        Of those that a dead process may have sent already, log only the number.
        """
        for lease, transition in lost:
            if not lease.maybe_settled and transition.action is not SettleAction.RELEASE:
                _log_lost(lease, transition, repeated)  # a released message has not run: nothing is done twice
        count = sum(lease.maybe_settled for lease, _ in lost)
        if count:
            logger.info(
                "%d message(s) that had ended in a worker process before it died need nothing more:"
                " it had settled them, or lost their leases.",
                count,
            )


def _cancelled(lease: Lease, transition: Transition, request: CancelRequest) -> Settlement:
    """Return what to settle instead, because the queue was asked to cancel the message and wrote nothing."""
    lease.cancel_request = request
    cancelled = attempt.unless_cancelled(lease, transition)
    if transition.action is not SettleAction.RELEASE:
        claimed = lease.claimed
        logger.info(
            "Message %r (%s): its %s is not written; it was %s.",
            claimed.id, transition.key, transition.action.value, cancelled.error,
            extra={"id": claimed.id, "key": transition.key, "queue": transition.queue, "token": claimed.token},
        )  # fmt: skip
    return lease, cancelled


def _log_replaced(lease: Lease, transition: Transition) -> None:
    """Log that a message does not wait again, as its end said, because a send was kept until then."""
    claimed = lease.claimed
    logger.info(
        "Message %r (%s): in place of its %s, the send that was kept until its run ended runs.",
        claimed.id, transition.key, transition.action.value,
        extra={"id": claimed.id, "key": transition.key, "queue": transition.queue, "token": claimed.token},
    )  # fmt: skip


def _log_lost(lease: Lease, transition: Transition, repeated: bool) -> None:
    claimed = lease.claimed
    extra = {"id": claimed.id, "key": transition.key, "queue": transition.queue, "token": claimed.token}
    if repeated:
        logger.warning(
            "Message %r (%s): its %s was sent twice because an answer was lost; the second found it settled or lost.",
            claimed.id, transition.key, transition.action.value, extra=extra,
        )  # fmt: skip
    else:
        logger.error(
            "overrun: message %r (%s) ended after its lease was lost; its %s is refused"
            " (delayq explain tells of it).",
            claimed.id, transition.key, transition.action.value, extra=extra,
        )  # fmt: skip


def _log_rejected(lease: Lease, transition: Transition, error: Exception, then: str) -> None:
    claimed = lease.claimed
    logger.error(
        "Message %r (%s): its %s is refused (%s). %s",
        claimed.id, transition.key, transition.action.value, failure.first_line(error), then,
        extra={"id": claimed.id, "key": transition.key, "token": claimed.token},
    )  # fmt: skip
