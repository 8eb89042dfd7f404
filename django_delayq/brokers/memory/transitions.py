"""The operations on one message by its id: pure functions of the places."""

from django_delayq.brokers.memory.places import Places


def remove_waiting(places: Places, id: str, total: str) -> bool:
    """Remove a waiting message, and count it under `total`."""
    entry = places.find_waiting(id)
    if entry is None:
        return False
    places.take_out(entry)
    places.totals[total] += 1
    return True


def reschedule(places: Places, id: str, due_ms: int) -> bool:
    """Make a waiting message due at `due_ms`, from which its expiry counts."""
    entry = places.find_waiting(id)
    if entry is None:
        return False
    entry.header.scheduled_ms = due_ms
    places.put_waiting(entry, due_ms)
    return True


def rescue(places: Places, id: str, now_ms: int) -> bool:
    """Make the message that was buried last under the id ready again."""
    names = places.find_buried(id)
    if not names or id in places.entries:
        return False
    entry = places.buried.pop(names[-1]).entry
    entry.failures = entry.crashes = 0
    entry.error = ""
    entry.header.scheduled_ms = now_ms  # else one that expired would expire again at once
    places.put_waiting(entry, now_ms)
    places.totals["rescued"] += 1
    return True


def purge_errors(places: Places, id: str) -> bool:
    """Remove all that is buried under the id, and count it as purged."""
    names = places.find_buried(id)
    for name in names:
        del places.buried[name]
    places.totals["purged"] += len(names)
    return bool(names)
