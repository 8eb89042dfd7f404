"""Renew and give back the slots that leases hold, of limits over all workers, along with the leases."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace

from django_delayq.brokers.base import BATCH, Broker, PermitRequest, pages
from django_delayq.core.errors import DelayqError
from django_delayq.worker.prefetch import Lease


def renew_slots(broker: Broker, leases: Iterable[Lease], lease_ms: int) -> None:
    """Hold the slots of `leases` for as long again. A slot that can't be renewed lapses, as the lease would."""
    asks = [(lease, ask) for lease in leases if (ask := lease.ask) is not None and ask.most is not None]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.acquire([replace(ask, interval_us=None, held=True) for _, ask in page], lease_ms=lease_ms)
            # A slot that was given back before this renewal would stay taken, by nobody.
            again = [ask for lease, ask in page if lease.ask is not ask]
            if again:
                broker.give_back(again)


def give_back_slots(broker: Broker, leases: Iterable[Lease]) -> bool:
    """Free the slots of `leases`, and return whether there were any. A slot that can't be freed lapses."""
    given_up = [_give_up(lease) for lease in leases]
    asks = [ask for ask in given_up if ask is not None and ask.most is not None]
    with contextlib.suppress(DelayqError):
        for page in pages(asks, BATCH):
            broker.give_back(page)
    return bool(asks)


def _give_up(lease: Lease) -> PermitRequest | None:
    ask, lease.ask = lease.ask, None
    return ask
