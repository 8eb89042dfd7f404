"""Query the places. The functions change nothing."""

from collections import Counter
from dataclasses import replace

from django_delayq.brokers.memory.places import Buried, Entry, Places, SetName
from django_delayq.core.message import State
from django_delayq.core.requests import LEFT, TOTALS, AlarmInfo, Audit, Counts, Info, SetCount


def see(places: Places, entry: Entry, now_ms: int) -> Info:
    """Describe a message that waits or runs."""
    return replace(
        _info(entry, _state(entry, now_ms)),
        holder=entry.holder,
        lease_end_ms=places.running.time_of(entry.id),
        suspect=entry.id in places.suspects,
        merged=entry.merged + (0 if entry.again is None else entry.again.merged),
        again_ms=None if entry.again is None else entry.again.due_ms,
        cancel_request=entry.cancel_request,
        progress=entry.progress,
    )


def see_buried(buried: Buried) -> Info:
    """Describe a buried message."""
    return replace(_info(buried.entry, State.FAILED), detail=buried.detail, buried_ms=buried.buried_ms)


def _info(entry: Entry, state: State) -> Info:
    """Describe a message by the fields that it has in every place."""
    return Info(
        id=entry.id,
        state=state,
        due_ms=entry.due_ms,
        header=replace(entry.header),
        body=entry.body,
        failures=entry.failures,
        crashes=entry.crashes,
        error=entry.error,
    )


def next_waiting(places: Places, queue: str, count: int, key: str | None) -> list[Entry]:
    """Return the next `count` messages that wait in a queue, of one key or of all, in due order, with suspects."""
    waiting = [
        entry
        for entry in places.entries.values()
        if entry.header.queue == queue and key in (None, entry.header.key) and not entry.token
    ]
    return sorted(waiting, key=lambda entry: (entry.due_ms, entry.id))[: max(count, 0)]


def see_alarm(places: Places, name: SetName, pk: str, now_ms: int | None = None) -> AlarmInfo | None:
    """Return the alarm of a row; None if there is none."""
    due_ms, lease_end_ms = places.alarms[name].time_of(pk), places.running_alarms.time_of((*name, pk))
    return None if due_ms is lease_end_ms is None else AlarmInfo(pk, due_ms, lease_end_ms, now_ms)


def page_of_alarms(places: Places, name: SetName, after: str, most: int) -> tuple[list[AlarmInfo], str]:
    """Return at most `most` alarms of a set whose pks come after `after`, in the order of their pks.

    Also return the last of these pks, or "" if no more alarms follow.
    """
    pks = {pk for _, pk in places.alarms[name]} | {pk for _, (*of, pk) in places.running_alarms if (*of,) == name}
    rest = sorted(pk for pk in pks if pk > after)
    found = [alarm for pk in rest[:most] if (alarm := see_alarm(places, name, pk))]
    return found, rest[most - 1] if len(rest) > most else ""


def count(places: Places, now_ms: int) -> Counts:
    """Return the counts of all places. Alarms are counted with the messages that wait and run."""
    names = sorted({*places.waiting, *places.alarms})
    return Counts(
        now_ms=now_ms,
        waiting=[_count_set(places, name, now_ms) for name in names if places.next_due(name) is not None],
        running=len(places.running) + len(places.running_alarms),
        suspects=len(places.suspects),
        error=len(places.buried),
        totals={total: places.totals[total] for total in TOTALS},
    )


def audit(places: Places, now_ms: int) -> Audit:
    """Compare the totals with the messages that exist, and check that each is in one place only. Ignore alarms."""
    states = Counter(str(_state(entry, now_ms)) for entry in places.entries.values())
    found = {state: states[state] for state in ("pending", "ready", "running")} | {"error": len(places.buried)}
    totals = {total: places.totals[total] for total in TOTALS}
    return Audit(totals, found, [*_missing(totals, found), *_misplaced(places)])


def _state(entry: Entry, now_ms: int) -> State:
    if entry.token:
        return State.RUNNING
    return State.READY if entry.due_ms <= now_ms else State.PENDING


def _count_set(places: Places, name: SetName, now_ms: int) -> SetCount:
    ready = places.waiting[name].up_to(now_ms) + places.alarms[name].up_to(now_ms)
    size = len(places.waiting[name]) + len(places.alarms[name])
    return SetCount(*name, pending=size - ready, ready=ready, next_due_ms=places.next_due(name))


def _missing(totals: dict[str, int], found: dict[str, int]) -> list[str]:
    accounted = sum(found.values()) + sum(totals[total] for total in LEFT)
    if accounted == totals["sent"]:
        return []
    return [f"{totals['sent']} sent, but {accounted} accounted for"]


def _misplaced(places: Places) -> list[str]:
    placed = Counter(id for schedule in places.waiting.values() for _, id in schedule)
    placed.update(id for _, id in places.suspects)
    placed.update(id for _, id in places.running)
    ids = sorted({*placed, *places.entries})
    return [f"{id!r} is in {placed[id]} places" for id in ids if placed[id] != 1 or id not in places.entries]
