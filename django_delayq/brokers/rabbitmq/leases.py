"""What this process has claimed. A lease is a message that is not acknowledged on a connection that lives."""

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from django_delayq.brokers.base import Alarm, Claimed
from django_delayq.brokers.rabbitmq.boxes import Arrival

REMEMBERED = 10_000
"""Of so many messages a worker knows that it has had them, should they be delivered once more."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on one arrival until `until`, by the monotonic clock."""

    arrival: Arrival
    token: int
    until: float
    interrupted: bool = False


class Leases:
    """Messages by token, alarms by row."""

    def __init__(self) -> None:
        self._tokens = count(secrets.randbits(62))
        self._messages: dict[int, Lease] = {}
        self._alarms: dict[tuple[str, str, str], list[Lease]] = {}
        self._seen: OrderedDict[str, bool] = OrderedDict()  # uid -> whether its lease ended here

    def lose_all(self) -> None:
        """The connection is gone, and with it every lease."""
        self._messages, self._alarms = {}, {}

    def is_double(self, arrival: Arrival) -> bool:
        """Whether this process has had this very publishing: it was sent again for want of a confirm.

        What comes again since a connection was lost is none, unless its lease had ended, or it must not start twice.
        """
        may_start = arrival.again and not self.is_over(arrival) and not arrival.note.header.at_most_once
        return arrival.note.uid in self._seen and not may_start

    def is_over(self, arrival: Arrival) -> bool:
        """Whether its lease ended here, and the acknowledgement was lost with the connection."""
        return self._seen.get(arrival.note.uid, False)

    def lease(self, arrival: Arrival, until: float) -> Claimed:
        """A new lease on a message."""
        lease = Lease(arrival, next(self._tokens), until)
        self._messages[lease.token] = lease
        note = arrival.note
        self._remember(note.uid, over=False)
        header = None if arrival.is_foreign else note.header
        return Claimed(note.id, lease.token, note.due_ms, header, arrival.body, note.failures, note.crashes)

    def lease_alarm(self, arrival: Arrival, until: float) -> Alarm:
        """A new lease on an alarm."""
        name = (*arrival.set_name, arrival.note.id)
        self._alarms.setdefault(name, []).append(Lease(arrival, 0, until))
        return Alarm(*name)

    def find(self, id: str, token: int) -> Lease | None:
        """The lease that this token proves."""
        lease = self._messages.get(token)
        return lease if lease is not None and lease.arrival.note.id == id else None

    def end(self, lease: Lease) -> None:
        """A lease on a message is over."""
        del self._messages[lease.token]
        self._remember(lease.arrival.note.uid, over=True)

    def end_alarm(self, alarm: Alarm) -> list[Arrival]:
        """The leases on an alarm are over."""
        return [lease.arrival for lease in self._alarms.pop((alarm.queue, alarm.key, alarm.pk), ())]

    def lapsed(self, now: float) -> list[Lease]:
        """Those on messages that have run out."""
        return [lease for lease in self._messages.values() if lease.until <= now]

    def lapsed_alarms(self, now: float) -> Iterator[Arrival]:
        """Take out the alarms whose leases have run out."""
        names = [name for name, leases in self._alarms.items() if leases[0].until <= now]
        for name in names:
            yield from (lease.arrival for lease in self._alarms.pop(name))

    def interrupted(self) -> list[Lease]:
        """Those whose handlers were told to stop."""
        return [lease for lease in self._messages.values() if lease.interrupted]

    def next_end(self) -> float | None:
        """When the first one runs out."""
        ends = [lease.until for lease in self._messages.values()]
        return min(ends + [leases[0].until for leases in self._alarms.values()], default=None)

    def _remember(self, uid: str, over: bool) -> None:
        self._seen[uid] = over
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
