"""What this process has claimed. A lease is a message that is not acknowledged.

One whose connection is lost is adrift: its message goes to whoever comes first. If that is this process, nobody else
has begun it, and the lease goes on. So it does where another process has put the message anew, and this one is the
first to have that. Else it is lost.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from django_delayq.brokers.base import Alarm, Claimed
from django_delayq.brokers.rabbitmq.boxes import Arrival
from django_delayq.brokers.rabbitmq.names import SetName

ADRIFT_S = 2.0
"""How long a message is waited for on a new connection, before its lease is lost."""

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
        self._adrift: dict[str, Lease] = {}  # by uid: those of the messages whose connection was lost
        self._adrift_until = 0.0
        self._alarms: dict[tuple[str, str, str], list[Lease]] = {}
        self._seen: OrderedDict[str, bool] = OrderedDict()  # uid -> whether it is held here, or was to its end

    def set_adrift(self, now: float) -> None:
        """The connection is gone. Alarms are lost with it: their rows have the leases."""
        self._adrift = {lease.arrival.note.uid: lease for lease in self._messages.values()}
        self._adrift_until = now + ADRIFT_S
        for uid in self._adrift:
            self._remember(uid, spare=False)
        self._alarms = {}

    def is_adrift(self, lease: Lease) -> bool:
        """Whether nobody can tell yet whose it is."""
        return lease.arrival.note.uid in self._adrift

    def take_up(self, arrival: Arrival, until: float) -> bool:
        """Whether a lease goes on that was adrift, since its message is here again."""
        note = arrival.note
        lease = self._adrift.pop(note.uid if arrival.again else note.after or note.uid, None)
        if lease is None:
            return False
        arrival.following = lease.arrival.following
        lease.arrival = arrival
        if not lease.interrupted:  # else it is to end soon
            lease.until = until
        self._remember(note.uid, spare=True)
        return True

    def lose_adrift(self, now: float) -> None:
        """What has not come again by now is another's."""
        if now >= self._adrift_until:
            for lease in self._adrift.values():
                del self._messages[lease.token]
            self._adrift = {}

    def sets(self) -> Counter[SetName]:
        """How many messages are leased of each set."""
        return Counter(lease.arrival.set_name for lease in self._messages.values())

    def is_double(self, arrival: Arrival) -> bool:
        """Whether this process has had this very publishing: it was sent again for want of a confirm.

        What comes again since a connection was lost is none, unless it is spare, or must not start twice. Nor is that
        with which a lease goes on. What took the place of one copy is a double of another that is held here, or was.
        """
        uid = arrival.note.uid
        if not arrival.again and self._seen.get(arrival.note.after):
            return True
        may_start = arrival.again and not self.is_spare(arrival) and not arrival.note.header.at_most_once
        return uid in self._seen and uid not in self._adrift and not may_start

    def is_spare(self, arrival: Arrival) -> bool:
        """Whether another copy of it is held here; or was to its end, and the acknowledgement may have been lost."""
        return self._seen.get(arrival.note.uid, False)

    def lease(self, arrival: Arrival, until: float) -> Claimed:
        """A new lease on a message."""
        lease = Lease(arrival, next(self._tokens), until)
        self._messages[lease.token] = lease
        note = arrival.note
        self._remember(note.uid, spare=True)
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

    def end_alarm(self, alarm: Alarm) -> list[Arrival]:
        """The leases on an alarm are over."""
        return [lease.arrival for lease in self._alarms.pop((alarm.queue, alarm.key, alarm.pk), ())]

    def lapsed(self, now: float) -> list[Lease]:
        """Those on messages that have run out."""
        return [lease for lease in self._here() if lease.until <= now]

    def lapsed_alarms(self, now: float) -> Iterator[Arrival]:
        """Take out the alarms whose leases have run out."""
        names = [name for name, leases in self._alarms.items() if leases[0].until <= now]
        for name in names:
            yield from (lease.arrival for lease in self._alarms.pop(name))

    def interrupted(self) -> list[Lease]:
        """Those whose handlers were told to stop."""
        return [lease for lease in self._here() if lease.interrupted]

    def next_end(self) -> float | None:
        """When the first one runs out."""
        ends = [lease.until for lease in self._here()]
        return min(ends + [leases[0].until for leases in self._alarms.values()], default=None)

    def _here(self) -> Iterator[Lease]:
        """Those on messages that are not adrift."""
        return (lease for lease in self._messages.values() if not self.is_adrift(lease))

    def _remember(self, uid: str, spare: bool) -> None:
        self._seen[uid] = spare
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
