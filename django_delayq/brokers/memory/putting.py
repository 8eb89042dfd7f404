"""Put messages: beside those that wait, or in the place of one."""

from dataclasses import replace

from django_delayq.brokers.base import Enqueued, NewMessage, OnConflict
from django_delayq.brokers.memory import transitions
from django_delayq.brokers.memory.places import Entry, Places


def place(places: Places, put: NewMessage, on_conflict: OnConflict, now_ms: int, due_ms: int) -> Enqueued:
    """Put one message, due at `due_ms`. If its id waits or runs already, do what `on_conflict` says."""
    entry = places.entries.get(put.id)
    if entry is None:
        _place_new(places, put, now_ms, due_ms)
        places.totals["sent"] += 1
        return Enqueued(put.id, due_ms, created=True)
    if entry.token:
        return Enqueued(put.id, entry.due_ms, created=False, running=True)
    if on_conflict == "replace":
        places.take_out(entry)
        _place_new(places, put, now_ms, due_ms)
        return Enqueued(put.id, due_ms, created=False)
    if (on_conflict == "earliest" and due_ms < entry.due_ms) or (on_conflict == "latest" and due_ms > entry.due_ms):
        transitions.reschedule(places, put.id, due_ms)
    return Enqueued(put.id, entry.due_ms, created=False)


def _place_new(places: Places, put: NewMessage, now_ms: int, due_ms: int) -> None:
    header = replace(put.header, sent_ms=now_ms, scheduled_ms=due_ms)
    places.put_waiting(Entry(put.id, header, put.body), due_ms)
