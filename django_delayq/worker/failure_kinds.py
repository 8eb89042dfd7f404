"""Announce the kinds of failures that were not seen before: by a log line and a signal."""

from collections.abc import Sequence
from functools import partial

from django_delayq import signals
from django_delayq.brokers.base import Backend, Transition
from django_delayq.store import queries
from django_delayq.support.logging import logger
from django_delayq.worker.leases import Lease
from django_delayq.worker.logs import guarded

MOST_KINDS = 1_000
"""How many kinds a process remembers. Once it has met as many as that, it announces no more."""


class FailureKinds:
    """The kinds of failures that this process has met, and the announcement of those that are new.

    A kind is new if this process has not met it and, with a store, no failed message of this kind is kept. The database
    is asked once for each kind. The thread of the settler does all of it, after the settlement.
    """

    def __init__(self, backend: Backend) -> None:
        self._database = backend.store.database if backend.store else None
        self._met: set[str] = set()

    def note(self, failed: Sequence[tuple[Lease, Transition]]) -> None:
        """Announce each new kind of failure among settlements that took effect."""
        for lease, transition in failed:
            if transition.fingerprint not in self._met and len(self._met) < MOST_KINDS:
                guarded(partial(self._meet, lease, transition))

    def _meet(self, lease: Lease, transition: Transition) -> None:
        """Announce a kind, unless a failed message of this kind is kept that failed before the lease began.

        A message that failed later is as new as this one: the two may have been settled together.
        """
        kind, claimed = transition.fingerprint, lease.claimed
        first_ms = queries.first_failed_ms(self._database, kind) if self._database else None
        self._met.add(kind)
        if first_ms is not None and first_ms < claimed.claimed_ms:
            return
        facts = {"id": claimed.id, "key": transition.key, "queue": transition.queue, "attempt": claimed.failures + 1}
        logger.warning(
            "A kind of failure that is new%s: %s. Message %r (%s) was the first: %s",
            "" if self._database else " to this worker", kind, claimed.id, transition.key, transition.error,
            extra=facts | {"fingerprint": kind, "worker": claimed.worker},
        )  # fmt: skip
        signals.emit(
            signals.failure_kind_appeared,
            lease.handler,
            **facts,
            using=lease.handler.using,
            fingerprint=kind,
            error=transition.error or "",
        )
