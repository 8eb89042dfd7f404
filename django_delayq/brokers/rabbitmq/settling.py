"""How a lease ends: what takes the place of the message that is then acknowledged. No I/O."""

from collections.abc import Iterable

from django_delayq.brokers.base import BuriedInfo, Transition
from django_delayq.brokers.rabbitmq.boxes import Arrival
from django_delayq.brokers.rabbitmq.clock import Clock
from django_delayq.brokers.rabbitmq.names import Names
from django_delayq.brokers.rabbitmq.notes import ALARM, MESSAGE
from django_delayq.brokers.rabbitmq.outgoing import LONGEST_HOLD_MS, Outgoing, back, buried, delayed
from django_delayq.core.transitions import LAPSED_AT_MOST_ONCE, SUSPECT_CRASHES
from django_delayq.message import State

NOT_OURS = "its header can't be read: not written by django-delayq"

End = tuple[Arrival, Outgoing | None]
"""A message that is over here, and what takes its place."""


def successor(names: Names, arrival: Arrival, end: Transition, clock: Clock) -> Outgoing | None:
    """Return what to publish before the acknowledgement; None when the message is finished."""
    note, now_ms = arrival.note.anew(failures=end.failures, crashes=end.crashes), clock.now_ms()
    if end.error is not None:
        note = note.anew(error=end.error)
    match end.state:
        case State.FINISHED:
            return None
        case State.ERROR:
            return buried(names, note.anew(detail=end.detail, buried_ms=now_ms), arrival.body)
        case _ if end.delay_ms is None:
            return back(names, note, arrival.body)
        case _:
            return delayed(names, note.anew(due_ms=now_ms + end.delay_ms), arrival.body, end.delay_ms, clock)


def bury(names: Names, arrival: Arrival, error: str, now_ms: int, detail: str = "", failed: int = 0) -> Outgoing:
    """What takes its place in error."""
    failures = arrival.note.failures + failed
    note = arrival.note.anew(failures=failures, error=error, detail=detail, buried_ms=now_ms)
    return buried(names, note, arrival.body)


def lapsed(names: Names, arrival: Arrival, clock: Clock, after: str = "") -> Outgoing:
    """What takes the place of a message whose worker died or could not renew: a crash is counted, at most two.

    It is held for as long as it still was, if it may be that the worker still held it: nobody can tell.
    """
    if reason := _why_buried(arrival):
        return bury(names, arrival, reason, clock.now_ms())
    crashes = min(arrival.note.crashes + 1, SUSPECT_CRASHES)
    return back(names, arrival.note.anew(crashes=crashes, after=after), arrival.body, _hold_ms(arrival, clock))


def after_lapse(names: Names, arrival: Arrival, interrupted: bool, clock: Clock) -> Outgoing:
    """What takes the place of one whose lease ran out here: where its handler was told to stop, no crash is counted."""
    if interrupted and not arrival.note.header.at_most_once:
        return again(names, arrival, 0, clock)
    return lapsed(names, arrival, clock)


def told_of(names: Names, ends: Iterable[End]) -> list[BuriedInfo]:
    """What is told of those that were buried when they lapsed."""
    return [_told_of(arrival) for arrival, following in ends if following and following.routing_key == names.error]


def unclaimed(names: Names, arrivals: Iterable[Arrival], clock: Clock) -> list[End]:
    """What takes the place of each that was not claimed: as it was, for what is left of its delay."""
    return [(arrival, again(names, arrival, _hold_ms(arrival, clock), clock)) for arrival in arrivals]


def again(names: Names, arrival: Arrival, hold_ms: int, clock: Clock) -> Outgoing:
    """What takes the place of a message that was not started, or interrupted: as it was."""
    if arrival.is_foreign:
        return bury(names, arrival, NOT_OURS, clock.now_ms())
    note, kind = arrival.note.anew(), ALARM if arrival.is_alarm else MESSAGE
    if hold_ms > LONGEST_HOLD_MS:
        return delayed(names, note, arrival.body, hold_ms, clock, kind)
    return back(names, note, arrival.body, hold_ms, kind)


def _hold_ms(arrival: Arrival, clock: Clock) -> int:
    """How long it is still to be held."""
    return max(clock.ms_until(arrival.ready_at), 0)


def _told_of(arrival: Arrival) -> BuriedInfo:
    note = arrival.note
    return BuriedInfo(note.id, note.header.queue, note.header.key, note.failures, _why_buried(arrival))


def _why_buried(arrival: Arrival) -> str:
    """Why it is buried when its lease has lapsed; "" where it is not."""
    if arrival.is_foreign:
        return NOT_OURS
    return LAPSED_AT_MOST_ONCE if arrival.note.header.at_most_once else ""
