"""The slots that leases hold, of limits over all workers: renewed and given back with them."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from django_delayq.brokers.base import BATCH, Ask, Broker, pages
from django_delayq.errors import DelayqError
from django_delayq.worker.heirs import give_up
from django_delayq.worker.lanes import Lane, Lease


def renew_slots(broker: Broker, leases: Iterable[Lease], held: Callable[[], Iterable[Lease]], lease_ms: int) -> None:
    """Hold the slots of `leases` for as long again. What can't be renewed lapses, as the lease would.

    `held` gives every lease that this process holds.
    """
    asks = [(lease, ask) for lease in leases if (ask := lease.ask) is not None and ask.most is not None]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.acquire([replace(ask, interval_us=None, held=True) for _, ask in page], lease_ms=lease_ms)
            # One that was given back before its renewal came would be nobody's, and taken.
            again = [ask for lease, ask in page if lease.ask is not ask and not _has(lease.lane, ask, held)]
            if again:
                broker.give_back(again)


def _has(lane: Lane, ask: Ask, held: Callable[[], Iterable[Lease]]) -> bool:
    """Return whether a slot is held in a lane: it may have been handed on there."""
    with lane.handing:
        return any(lease.ask is ask for lease in held())


def give_back_slots(broker: Broker, leases: Iterable[Lease]) -> bool:
    """Free them; whether there were any. What can't be freed lapses."""
    given_up = (give_up(lease) for lease in leases if lease.ask is not None)
    asks = [ask for ask in given_up if ask is not None and ask.most is not None]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.give_back(page)
    return bool(asks)
