"""How a lease ends by the hand that holds it."""

from django_delayq.brokers.base import FATAL_CRASHES, Settlement, Verb
from django_delayq.brokers.memory.places import Entry, Places

INTERRUPTED_LEASE_MS = 1_000


def settle(places: Places, settlement: Settlement, now_ms: int, due_ms: int) -> bool:
    """End one lease; what waits for a delay is due at `due_ms`. False where the lease was lost."""
    entry = places.find_held(settlement.id, settlement.token)
    if entry is None:
        return False
    match settlement.verb:
        case Verb.FINISH:
            places.take_out(entry)
            places.totals["finished"] += 1
        case Verb.RETRY:
            entry.failures += 1
            entry.crashes = 0
            entry.error = settlement.error
            places.put_waiting(entry, due_ms)
            places.totals["retried"] += 1
        case Verb.SNOOZE:
            entry.crashes = 0
            places.put_waiting(entry, due_ms)
            places.totals["snoozed"] += 1
        case Verb.RELEASE:
            places.put_waiting(entry, due_ms if settlement.delay_ms else entry.due_ms)
            places.totals["released"] += 1
        case Verb.INTERRUPT:
            return _interrupt(places, entry, now_ms)
        case Verb.CRASH:
            _crash(places, entry, settlement, now_ms)
        case Verb.BURY:
            entry.failures += settlement.failed
            places.put_buried(entry, now_ms, settlement.error, settlement.detail)
            places.totals["buried"] += 1
    return True


def _crash(places: Places, entry: Entry, settlement: Settlement, now_ms: int) -> None:
    entry.crashes += 1
    entry.error = settlement.error
    if entry.crashes < FATAL_CRASHES:
        places.put_waiting(entry, entry.due_ms)
        return
    places.put_buried(entry, now_ms, f"killed its worker {entry.crashes} times: {settlement.error}", detail="")
    places.totals["buried"] += 1


def _interrupt(places: Places, entry: Entry, now_ms: int) -> bool:
    if entry.interrupted:
        return False
    # Not ready at once: a thread that can't be stopped gets this second to end.
    entry.interrupted = True
    places.running.put(entry.id, now_ms + INTERRUPTED_LEASE_MS)
    return True
