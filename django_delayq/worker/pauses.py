"""A worker's copy of the pauses: read before the first claim, on every notification, and with every heartbeat.

The heartbeat is for a worker whose connection for notifications was broken.
"""

from collections.abc import Sequence

from django_delayq.brokers.base import Backend, Pause, covering, earliest
from django_delayq.support.logging import logger
from django_delayq.support.timestamps import from_ms
from django_delayq.worker.prefetch import Lease


class Pauses:
    """The pauses that the broker gave last, without those that have ended by themselves."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.known: Sequence[Pause] = []
        """The pauses in force."""
        self._heard = -1

    @property
    def next_end_ms(self) -> int | None:
        """Return when the first of them ends by itself, by the authoritative clock."""
        return earliest(*(pause.until_ms for pause in self.known))

    def cover(self, lease: Lease) -> bool:
        """Return whether a lease may not start, because its queue or key is paused."""
        header = lease.claimed.header
        return header is not None and bool(covering(self.known, header.queue, header.key))

    def read_due(self) -> None:
        """Read the pauses when that is due.

        It stays due until a read has worked, and until then nothing is to be claimed.
        """
        heard = self._backend.presence.pause_version  # before the read: what is told meanwhile is read by the next
        if heard == self._heard:
            return
        self.take(self._backend.presence.pauses())
        self._heard = heard

    def end(self, now_ms: int) -> None:
        """Drop the pauses that have ended by `now_ms`."""
        self.take([pause for pause in self.known if pause.holds(now_ms)])

    def take(self, pauses: list[Pause]) -> None:
        """Replace the pauses by these, and log the changes."""
        before, self.known = self.known, pauses
        for pause in pauses:
            if pause not in before:
                logger.info("Paused %s: %s. Nothing of it starts until %s.", pause.names, pause.reason, _end(pause))
        names = {pause.names for pause in pauses}
        for pause in before:
            if pause.names not in names:
                logger.info("Resumed %s.", pause.names)


def _end(pause: Pause) -> str:
    if pause.until_ms is None:
        return "it is resumed"
    try:
        return from_ms(pause.until_ms).isoformat(timespec="seconds")
    except OverflowError:  # someone else wrote it
        return f"{pause.until_ms} ms"
