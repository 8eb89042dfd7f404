"""The work that the passing of time alone asks for: reclaim lapsed leases, and drop outdated errors."""

from django_delayq.brokers.base import BATCH, Claimed, MaintenanceResult, earliest
from django_delayq.brokers.memory.places import AlarmName, Entry, Places
from django_delayq.brokers.memory.settling import write
from django_delayq.conf import Options
from django_delayq.core.message import State
from django_delayq.core.transitions import buried_info, lapse


def keep_up(places: Places, options: Options, now_ms: int) -> MaintenanceResult:
    """Reclaim lapsed leases and trim the errors, at most `BATCH` of each."""
    upkept = MaintenanceResult(now_ms)
    for _, id in places.running.due(now_ms, BATCH):
        _lapse(places, places.entries[id], upkept)
    for _, alarm in places.running_alarms.due(now_ms, BATCH):
        _lapse_alarm(places, alarm, upkept)
    upkept.dropped = _trim_errors(places, options, now_ms)
    upkept.suspects_due = places.suspects.up_to(now_ms)
    upkept.next_lease_end_ms = earliest(places.running.first(), places.running_alarms.first())
    return upkept


def _lapse(places: Places, entry: Entry, upkept: MaintenanceResult) -> None:
    lost = Claimed(entry.id, entry.token, entry.due_ms, entry.header, entry.body, entry.failures, entry.crashes)
    transition = lapse(lost, upkept.now_ms, at_most_once=entry.header.at_most_once, interrupted=entry.interrupted)
    write(places, entry, transition, upkept.now_ms, entry.due_ms)
    if transition.state is State.ERROR:
        upkept.buried.append(buried_info(transition))
    else:
        upkept.reclaimed += 1


def _lapse_alarm(places: Places, alarm: AlarmName, upkept: MaintenanceResult) -> None:
    queue, key, pk = alarm
    places.running_alarms.drop(alarm)
    places.alarms[queue, key].put_earlier(pk, upkept.now_ms)
    upkept.reclaimed += 1  # worth a claim, but no transition of a message


def _trim_errors(places: Places, options: Options, now_ms: int) -> int:
    too_many = max(len(places.buried) - options.error_max, 0)
    outlived_ms = now_ms - options.error_retention
    oldest = list(places.buried.items())[:BATCH]
    dropped = [name for rank, (name, buried) in enumerate(oldest) if rank < too_many or buried.buried_ms <= outlived_ms]
    for name in dropped:
        del places.buried[name]
    places.totals["dropped"] += len(dropped)
    return len(dropped)
