"""What a broker without a store holds that somebody may want to do something about."""

from dataclasses import dataclass
from functools import partial

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Broker, Capability, Info
from django_delayq.conf import DEFAULT_ALIAS
from django_delayq.monitor.patience import within
from django_delayq.monitor.waiting import is_asked_for

MOST = 50
"""So many of each kind are given."""
_LOOKED_THROUGH = 500


@dataclass(frozen=True, slots=True)
class Carried:
    """Buried messages, newest first; those that wait for their next attempt, of the next 500 of each queue; and those
    that no live worker asks for. The last two in due order."""

    buried: list[Info]
    retried: list[Info]
    parked: list[Info]


def carried(using: str = DEFAULT_ALIAS, *, patience_s: float | None = None) -> Carried:
    """Look at the messages that a broker carries. Changes nothing; raises as `status` does."""
    return within(patience_s, partial(_carried, get_broker(using)))


def _carried(broker: Broker) -> Carried:
    buried = broker.errors(MOST)
    if Capability.PEEK not in broker.capabilities:
        return Carried(buried, [], [])
    workers = broker.workers()
    sets = broker.counts().waiting
    retried = [info for queue in {each.queue for each in sets} for info in broker.peek(queue, _LOOKED_THROUGH)]
    unasked = [each for each in sets if not is_asked_for(each.queue, each.key, workers)]
    parked = [info for each in unasked for info in broker.peek(each.queue, MOST, each.key)]
    return Carried(buried, _nearest([info for info in retried if info.failures]), _nearest(parked))


def _nearest(infos: list[Info]) -> list[Info]:
    return sorted(infos, key=lambda info: (info.due_ms, info.id))[:MOST]
