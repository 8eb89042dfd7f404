"""What time alone does: leases lapse, and errors outlive their retention."""

from django_delayq.brokers.base import BATCH, LAPSED_AT_MOST_ONCE, SUSPECT_CRASHES, BuriedInfo, Upkept, earliest
from django_delayq.brokers.memory.places import AlarmName, Entry, Places
from django_delayq.conf import Options


def keep_up(places: Places, options: Options, now_ms: int) -> Upkept:
    """Reclaim what lapsed and trim the errors, at most `BATCH` of each."""
    upkept = Upkept(now_ms)
    for _, id in places.running.due(now_ms, BATCH):
        _lapse(places, places.entries[id], upkept)
    for _, alarm in places.running_alarms.due(now_ms, BATCH):
        _lapse_alarm(places, alarm, upkept)
    upkept.dropped = _trim_errors(places, options, now_ms)
    upkept.suspects_due = places.suspects.up_to(now_ms)
    upkept.next_lease_end_ms = earliest(places.running.first(), places.running_alarms.first())
    return upkept


def _lapse(places: Places, entry: Entry, upkept: Upkept) -> None:
    if not entry.interrupted:
        entry.crashes = min(entry.crashes + 1, SUSPECT_CRASHES)
    if entry.header.at_most_once:
        _bury(places, entry, upkept, LAPSED_AT_MOST_ONCE)
    else:
        places.put_waiting(entry, entry.due_ms)
        places.totals["reclaimed"] += 1
        upkept.reclaimed += 1


def _bury(places: Places, entry: Entry, upkept: Upkept, reason: str) -> None:
    places.put_buried(entry, upkept.now_ms, reason, detail="")
    places.totals["buried"] += 1
    header = entry.header
    upkept.buried.append(BuriedInfo(entry.id, header.queue, header.key, entry.failures, reason))


def _lapse_alarm(places: Places, alarm: AlarmName, upkept: Upkept) -> None:
    queue, key, pk = alarm
    places.running_alarms.drop(alarm)
    places.alarms[queue, key].put_earlier(pk, upkept.now_ms)
    upkept.reclaimed += 1  # worth a claim, but no move of a message


def _trim_errors(places: Places, options: Options, now_ms: int) -> int:
    too_many = max(len(places.buried) - options.error_max, 0)
    outlived_ms = now_ms - options.error_retention
    oldest = list(places.buried.items())[:BATCH]
    dropped = [name for rank, (name, buried) in enumerate(oldest) if rank < too_many or buried.buried_ms <= outlived_ms]
    for name in dropped:
        del places.buried[name]
    places.totals["dropped"] += len(dropped)
    return len(dropped)
