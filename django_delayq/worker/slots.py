"""The slots that leases hold, of limits over all workers: renewed and given back with them."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django_delayq.brokers.base import BATCH, Ask, Broker, pages
from django_delayq.errors import DelayqError
from django_delayq.worker.heirs import give_up
from django_delayq.worker.lanes import Lease


def renew_slots(broker: Broker, leases: Iterable[Lease], lease_ms: int) -> None:
    """Hold them for as long again. What can't be renewed lapses, as the lease would."""
    asks = [replace(ask, interval_us=None) for ask in _slots_of(leases)]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.acquire(page, lease_ms=lease_ms)


def give_back_slots(broker: Broker, leases: Iterable[Lease]) -> bool:
    """Free them; whether there were any. What can't be freed lapses."""
    given_up = (give_up(lease) for lease in leases if lease.ask is not None)
    asks = [ask for ask in given_up if ask is not None and ask.most is not None]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.give_back(page)
    return bool(asks)


def _slots_of(leases: Iterable[Lease]) -> Sequence[Ask]:
    return [lease.ask for lease in leases if lease.ask is not None and lease.ask.most is not None]
