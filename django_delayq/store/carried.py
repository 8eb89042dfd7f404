"""Messages that the clock carries from before the store: their leases are its own."""

from collections.abc import Sequence

from django_delayq.brokers.base import Broker, Claims, LeaseId, Transition
from django_delayq.errors import DelayqError


class Carried:
    """The leases of such messages, so that the clock is not asked about those of rows."""

    def __init__(self, clock: Broker) -> None:
        self._clock = clock
        self._leases: set[LeaseId] = set()

    def __contains__(self, lease: LeaseId) -> bool:
        return lease in self._leases

    def add(self, found: Claims) -> None:
        """Note what the clock has leased."""
        self._leases.update((claimed.id, claimed.token) for claimed in found.messages)

    def settle(self, settlements: Sequence[Transition]) -> Sequence[bool | None]:
        """As the broker's, of carried messages only."""
        if not settlements:
            return []
        held = self._clock.settle(settlements)
        self._leases.difference_update(
            (one.id, one.token) for one, answer in zip(settlements, held, strict=True) if answer is not None
        )
        return held

    def renew(self, leases: Sequence[LeaseId], lease_ms: int) -> Sequence[bool | None]:
        """As the broker's, of carried messages only. While the clock is away none is held, as far as one can tell."""
        if not leases:
            return []
        try:
            return self._clock.renew(leases, lease_ms)
        except DelayqError:
            return [False] * len(leases)
