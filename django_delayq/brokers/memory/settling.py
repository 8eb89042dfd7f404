"""Write the outcome of leased messages to the places."""

from django_delayq.brokers.memory.places import Entry, Places
from django_delayq.core.message import State
from django_delayq.core.transitions import INTERRUPT_MS, TOTALS, Transition


def settle(places: Places, transition: Transition, now_ms: int, due_ms: int) -> bool:
    """Write one transition. Return False where the lease was lost.

    A message that waits for a delay is due at `due_ms`.
    """
    entry = places.find_held(transition.id, transition.token)
    if entry is None or transition.is_repeated(interrupted=entry.interrupted):
        return False
    write(places, entry, transition, now_ms, entry.due_ms if transition.delay_ms is None else due_ms)
    return True


def write(places: Places, entry: Entry, transition: Transition, now_ms: int, due_ms: int) -> None:
    """Write the outcome of a message whose lease was still held."""
    entry.failures, entry.crashes = transition.failures, transition.crashes
    if transition.error is not None:
        entry.error = transition.error
    match transition.state:
        case State.FINISHED:
            places.take_out(entry)
        case State.ERROR:
            places.put_buried(entry, now_ms, entry.error, transition.detail)
        case State.RUNNING:
            entry.interrupted = True
            places.running.put(entry.id, now_ms + INTERRUPT_MS)
        case _:
            places.put_waiting(entry, due_ms)
    if total := TOTALS.get(transition.action):
        places.totals[total] += 1
