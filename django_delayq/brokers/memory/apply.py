"""Move messages between their places: enqueue and settle them, change them by id, and end lapsed leases."""

from dataclasses import replace

from django_delayq.brokers.base import (
    BATCH,
    CancelRequest,
    Claimed,
    Enqueued,
    MaintenanceResult,
    NewMessage,
    OnConflict,
    earliest,
)
from django_delayq.brokers.memory.places import AlarmName, Entry, Places
from django_delayq.conf import Options
from django_delayq.core.kept import Kept, bounded, keep
from django_delayq.core.message import State
from django_delayq.core.transitions import INTERRUPT_MS, TOTALS, Transition, buried_info, lapse


def enqueue(places: Places, message: NewMessage, on_conflict: OnConflict, now_ms: int, due_ms: int) -> Enqueued:
    """Enqueue one message, due at `due_ms`. If its id waits or runs already, do what `on_conflict` says."""
    entry = places.entries.get(message.id)
    if entry is None:
        _place_new(places, message, now_ms, due_ms)
        places.totals["sent"] += 1
        return Enqueued(message.id, due_ms, created=True)
    if entry.token:
        if message.while_running == "again":
            entry.again = keep(message, due_ms, now_ms, entry.again)
            return Enqueued(message.id, entry.again.due_ms, created=False, running=True, kept=True)
        return Enqueued(message.id, entry.due_ms, created=False, running=True)
    if on_conflict == "replace":
        first_ms = entry.header.sent_ms if entry.first_ms is None else entry.first_ms
        if entry.failures or entry.crashes:  # what was sent first has run
            first_ms = now_ms
        due_ms = bounded(due_ms, first_ms, message.max_wait_ms, now_ms)
        places.take_out(entry)
        new = _place_new(places, message, now_ms, due_ms)
        new.first_ms, new.merged = first_ms, entry.merged + 1
        return Enqueued(message.id, due_ms, created=False)
    if (on_conflict == "earliest" and due_ms < entry.due_ms) or (on_conflict == "latest" and due_ms > entry.due_ms):
        reschedule(places, message.id, due_ms)
    return Enqueued(message.id, entry.due_ms, created=False)


def _place_new(places: Places, message: NewMessage, now_ms: int, due_ms: int) -> Entry:
    header = replace(message.header, sent_ms=now_ms, scheduled_ms=due_ms)
    entry = Entry(message.id, header, message.body)
    places.put_waiting(entry, due_ms)
    return entry


def _send_kept(places: Places, id: str, kept: Kept, now_ms: int) -> None:
    """Send what was kept for the end of a run, as a part of that end."""
    sent = enqueue(places, kept.message(id), "replace", now_ms, max(kept.due_ms, now_ms))
    entry = places.entries[id]
    entry.header.sent_ms = kept.header.sent_ms
    entry.merged += kept.merged
    entry.first_ms = kept.first_ms if sent.created else min(entry.first_ms or now_ms, kept.first_ms)


def settle(places: Places, transition: Transition, now_ms: int, due_ms: int) -> bool | CancelRequest:
    """Write one transition. Return False if the lease was lost, or if this would interrupt it a second time.

    Return the request to cancel the message if there is one and the transition yields to it.

    If the transition has a delay, the message is due at `due_ms`.
    """
    entry = places.find_held(transition.id, transition.token)
    if entry is None or transition.is_repeated(interrupted=entry.interrupted):
        return False
    if entry.cancel_request is not None and transition.yields_to_cancel:
        return entry.cancel_request
    _write(places, entry, transition, now_ms, entry.due_ms if transition.delay_ms is None else due_ms)
    return True


def _write(places: Places, entry: Entry, transition: Transition, now_ms: int, due_ms: int) -> None:
    """Write a transition to a running message, whose lease may have lapsed."""
    kept = None
    if transition.state is not State.RUNNING:
        kept, entry.again = entry.again, None
    entry.failures, entry.crashes = transition.failures, transition.crashes
    if transition.error is not None:
        entry.error = transition.error
    match transition.state:
        case State.FINISHED | State.CANCELLED:
            places.take_out(entry)
        case State.FAILED:
            places.put_buried(entry, now_ms, entry.error, transition.detail)
        case State.RUNNING:
            entry.interrupted = True
            places.running.put(entry.id, now_ms + INTERRUPT_MS)
        case _:
            places.put_waiting(entry, due_ms)
    if total := TOTALS.get(transition.action):
        places.totals[total] += 1
    if kept is not None:
        transition.is_replaced = True
        _send_kept(places, entry.id, kept, now_ms)


def remove_waiting(places: Places, id: str, total: str) -> bool:
    """Remove a waiting message, and count it under `total`. Return False if none waits with this id."""
    entry = places.find_waiting(id)
    if entry is None:
        return False
    places.take_out(entry)
    places.totals[total] += 1
    return True


def cancel(places: Places, id: str, running_by: str | None, now_ms: int) -> bool:
    """Cancel a waiting message; with `running_by`, also ask a running one to end. Return False if there is none."""
    entry = places.entries.get(id)
    if entry is None or not entry.token:
        return remove_waiting(places, id, "cancelled")
    if running_by is None:
        return False
    entry.again = None  # it is cancelled with the message; what is sent later is kept
    entry.cancel_request = entry.cancel_request or CancelRequest(running_by, now_ms)
    return True


def reschedule(places: Places, id: str, due_ms: int) -> bool:
    """Make a waiting message due at `due_ms`, from which its expiry counts. Return False if none waits with this id."""
    entry = places.find_waiting(id)
    if entry is None:
        return False
    entry.header.scheduled_ms = due_ms
    places.put_waiting(entry, due_ms)
    return True


def rescue(places: Places, id: str, now_ms: int) -> bool:
    """Make ready the message that was buried last under the id. Return False if it can't be rescued."""
    names = places.find_buried(id)
    if not names or id in places.entries:
        return False
    entry = places.buried.pop(names[-1]).entry
    entry.failures = entry.crashes = entry.merged = 0
    entry.error = ""
    entry.header.scheduled_ms = now_ms  # else one that expired would expire again at once
    places.put_waiting(entry, now_ms)
    places.totals["rescued"] += 1
    return True


def purge_failed(places: Places, id: str) -> bool:
    """Remove all messages that were buried under the id, and count them as purged. Return False if there are none."""
    names = places.find_buried(id)
    for name in names:
        del places.buried[name]
    places.totals["purged"] += len(names)
    return bool(names)


def maintain(places: Places, options: Options, now_ms: int) -> MaintenanceResult:
    """Reclaim lapsed leases of messages and alarms, and trim buried messages, at most `BATCH` of each."""
    result = MaintenanceResult(now_ms)
    for _, id in places.running.due(now_ms, BATCH):
        _lapse(places, places.entries[id], result)
    for _, alarm in places.running_alarms.due(now_ms, BATCH):
        _lapse_alarm(places, alarm, result)
    result.dropped = _trim_errors(places, options, now_ms)
    result.suspects_due = places.suspects.up_to(now_ms)
    result.next_lease_end_ms = earliest(places.running.first(), places.running_alarms.first())
    return result


def _lapse(places: Places, entry: Entry, result: MaintenanceResult) -> None:
    lost = Claimed(entry.id, entry.token, entry.due_ms, entry.header, entry.body, entry.failures, entry.crashes)
    transition = lapse(
        lost,
        result.now_ms,
        at_most_once=entry.header.at_most_once,
        interrupted=entry.interrupted,
        cancel_request=entry.cancel_request,
    )
    _write(places, entry, transition, result.now_ms, entry.due_ms)
    if transition.state is State.FAILED:
        result.buried.append(buried_info(transition))
    else:
        result.reclaimed += 1


def _lapse_alarm(places: Places, alarm: AlarmName, result: MaintenanceResult) -> None:
    queue, key, pk = alarm
    places.running_alarms.drop(alarm)
    places.alarms[queue, key].put_earlier(pk, result.now_ms)
    result.reclaimed += 1  # so that the worker claims, though no message was moved


def _trim_errors(places: Places, options: Options, now_ms: int) -> int:
    too_many = max(len(places.buried) - options.error_max, 0)
    outlived_ms = now_ms - options.error_retention
    oldest = list(places.buried.items())[:BATCH]
    dropped = [name for rank, (name, buried) in enumerate(oldest) if rank < too_many or buried.buried_ms <= outlived_ms]
    for name in dropped:
        del places.buried[name]
    places.totals["dropped"] += len(dropped)
    return len(dropped)
