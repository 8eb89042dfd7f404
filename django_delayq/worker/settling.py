"""The ends of leases, sent to the broker in batches by a thread of their own."""

import logging
import threading
from collections import Counter, deque
from time import monotonic, sleep

from django_delayq.brokers.base import BATCH, Broker, Settlement, Verb
from django_delayq.worker import attempt
from django_delayq.worker.lanes import Lease
from django_delayq.worker.leases import Leases
from django_delayq.worker.outage import Outage, waits

LINGER_S = 0.050
ENOUGH = 100

_logger = logging.getLogger("django_delayq")
Ended = tuple[Lease, Settlement]


class Settling:
    """Takes settlements from every hand, and sends them within 50 ms or 100 messages."""

    def __init__(self, broker: Broker, leases: Leases, outage: Outage) -> None:
        self._broker = broker
        self._leases = leases
        self._outage = outage
        self._ended: deque[Ended] = deque()
        self.counts: Counter[Verb] = Counter()
        """How many leases ended in which way."""
        self._some = threading.Event()
        self._enough = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._settle_forever, name="delayq-settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, lease: Lease, settlement: Settlement, *, urgent: bool = True) -> None:
        """Settle a lease soon, at once when `urgent`. Never blocks, and takes no lock while a batch gathers."""
        self._ended.append((lease, settlement))
        if not self._some.is_set():
            self._some.set()
        if (urgent or len(self._ended) >= ENOUGH) and not self._enough.is_set():
            self._enough.set()

    def release(self, leases: list[Lease]) -> None:
        """Give back what was not started."""
        for lease in leases:
            self.add(lease, attempt.release(lease.claimed, Verb.RELEASE))

    def close(self, timeout: float) -> None:
        """Settle what has ended, for at most `timeout` seconds, and end the thread."""
        self._closed.set()
        self._some.set()
        self._enough.set()
        self._thread.join(timeout)

    def _settle_forever(self) -> None:
        while not (self._closed.is_set() and not self._ended):
            self._some.wait()
            self._enough.wait(LINGER_S)
            # Cleared before the take: what is added meanwhile sets them again.
            self._enough.clear()
            self._some.clear()
            while batch := self._take():
                self._settle(batch)
            if self._closed.is_set():
                self._some.set()

    def _take(self) -> list[Ended]:
        ended = self._ended
        return [ended.popleft() for _ in range(min(len(ended), BATCH))]  # this thread alone pops

    def _settle(self, batch: list[Ended]) -> None:
        pauses = waits()
        repeated = False
        while batch := self._still_held(batch):
            try:
                settled = self._broker.settle([settlement for _, settlement in batch])
            except Exception as error:  # noqa: BLE001 - whatever it is, what ended must be told as long as it is held
                self._outage.begin("settling", error)
                repeated = True
                sleep(next(pauses))
                continue
            self._outage.end("settling")
            self._leases.remove(lease for lease, _ in batch)
            for (lease, settlement), was_held in zip(batch, settled, strict=True):
                if was_held:
                    self.counts[settlement.verb] += 1
                else:
                    _tell_refused(lease, settlement, repeated)
            return

    def _still_held(self, batch: list[Ended]) -> list[Ended]:
        now = monotonic()
        held = []
        for lease, settlement in batch:
            if lease.lost or lease.held_until <= now:
                _tell_refused(lease, settlement, repeated=False)
            else:
                held.append((lease, settlement))
        return held


def _tell_refused(lease: Lease, settlement: Settlement, repeated: bool) -> None:
    claimed = lease.claimed
    if settlement.verb is Verb.RELEASE:
        return  # nothing was done that another could do twice
    extra = {"id": claimed.id, "key": settlement.key, "queue": settlement.queue, "token": claimed.token}
    if repeated:
        _logger.warning(
            "Message %r (%s): its %s was sent twice since an answer was lost; the second found it settled, or lost.",
            claimed.id, settlement.key, settlement.verb.value, extra=extra,
        )  # fmt: skip
        return
    _logger.error(
        "overrun: message %r (%s) ended after its lease was lost; its %s is refused, and it runs again.",
        claimed.id, settlement.key, settlement.verb.value, extra=extra,
    )  # fmt: skip
