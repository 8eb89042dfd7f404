"""The alarms that this process has claimed: a lease is a message that is not acknowledged."""

from collections.abc import Iterable

from django_delayq.brokers.base import Alarm
from django_delayq.brokers.rabbitmq.deliveries import Delivery

Name = tuple[str, str, str]


def _name(alarm: Alarm) -> Name:
    return alarm.queue, alarm.key, alarm.pk


class Leases:
    """Leased deliveries by alarm. There may be several for one: nothing keeps a row from having two alarms."""

    def __init__(self) -> None:
        self._deliveries: dict[Name, list[Delivery]] = {}
        self._ends: dict[Name, float] = {}  # by the monotonic clock

    def lease(self, delivery: Delivery, until: float) -> Alarm:
        """Lease one delivery, and return its alarm."""
        name = _name(delivery.alarm)
        self._deliveries.setdefault(name, []).append(delivery)
        self._ends.setdefault(name, until)
        return delivery.alarm

    def end(self, alarms: Iterable[Alarm]) -> list[Delivery]:
        """End the leases of these alarms, and return what was delivered for them."""
        return [delivery for alarm in alarms for delivery in self._end(_name(alarm))]

    def end_lapsed(self, now: float) -> list[Delivery]:
        """End the leases that have run out, and return what was delivered for them."""
        lapsed = [name for name, end in self._ends.items() if end <= now]
        return [delivery for name in lapsed for delivery in self._end(name)]

    def _end(self, name: Name) -> list[Delivery]:
        self._ends.pop(name, None)
        return self._deliveries.pop(name, [])

    def next_end(self) -> float | None:
        """Return when the first lease runs out, None without any."""
        return min(self._ends.values(), default=None)

    def clear(self) -> None:
        """Forget all leases: the connection is gone, and the server delivers their messages to others.

        Their rows have leases of their own.
        """
        self._deliveries.clear()
        self._ends.clear()
