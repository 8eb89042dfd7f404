"""Ending leases: finish, retry, snooze, release, interrupt, bury; and renewing.

Operations, as `scripts.py` defines them.
"""

from collections import defaultdict
from collections.abc import Sequence

from django_delayq.brokers.base import LeaseId, Settlement, Verb, pages
from django_delayq.brokers.redis.keys import Keys, set_name
from django_delayq.brokers.redis.scripts import Argument, Call, Operation, load

CALL = 200
"""The most leases that one script call ends."""

_BACK = frozenset({Verb.RETRY, Verb.SNOOZE, Verb.RELEASE, Verb.CRASH})


def settle(keys: Keys, settlements: Sequence[Settlement]) -> Operation[list[bool]]:
    """End leases, all in one round trip: a call per verb (and wait set, where the message goes back to one)."""
    groups: defaultdict[tuple[Verb, str], list[int]] = defaultdict(list)
    for i, settlement in enumerate(settlements):
        verb = settlement.verb
        groups[verb, set_name(settlement.queue, settlement.key) if verb in _BACK else ""].append(i)
    calls: list[Call] = []
    positions: list[int] = []
    for (verb, name), group in groups.items():
        for some in pages(group, CALL):
            calls.append(_settle_call(keys, verb, name, [settlements[i] for i in some]))
            positions.extend(some)
    if not calls:
        return []
    replies = yield calls
    held = [False] * len(settlements)
    for i, answer in zip(positions, (answer for reply in replies for answer in reply), strict=True):
        # After a repeat a 0 may be our own doing: the first time did it, and its reply was lost. Nobody can tell.
        held[i] = bool(answer) or replies.repeated
    return held


class Untold:
    """Leases whose end was told to a node that did not answer: whether it has ended them is not known."""

    def __init__(self) -> None:
        self._leases: set[LeaseId] = set()

    def heard(self, settlements: Sequence[Settlement], held: Sequence[bool | None]) -> Sequence[bool | None]:
        """`held`, with True where a False may be the doing of a call before."""
        if not self._leases and None not in held:
            return held
        answers = []
        for one, answer in zip(settlements, held, strict=True):
            lease = (one.id, one.token)
            if answer is None:
                self._leases.add(lease)
            answers.append(answer if answer is None else answer or lease in self._leases)
            if answer is not None:
                self._leases.discard(lease)
        return answers


def _settle_call(keys: Keys, verb: Verb, name: str, settlements: list[Settlement]) -> Call:
    match verb:
        case Verb.FINISH:
            ids: list[Argument] = [one.id for one in settlements]
            tokens: list[Argument] = [one.token for one in settlements]
            return Call(load("finish"), (keys.running, keys.msg, keys.state, keys.count), ids + tokens)
        case Verb.BURY:
            bury = [x for one in settlements for x in (one.id, one.token, int(one.failed), _line(one), one.detail)]
            return Call(load("bury"), (keys.running, keys.msg, keys.state, keys.error, keys.count), bury)
        case Verb.CRASH:
            died = [x for one in settlements for x in (one.id, one.token, _line(one))]
            names = (keys.running, keys.state, keys.suspect, keys.sets, keys.timer, keys.count, keys.wait(name))
            return Call(load("crash"), (*names, keys.msg, keys.error), [keys.channel, *died])
        case Verb.INTERRUPT:
            pairs = [x for one in settlements for x in (one.id, one.token)]
            return Call(load("interrupt"), (keys.running, keys.state), pairs)
        case _:
            back = [x for one in settlements for x in (one.id, one.token, one.delay_ms, _line(one))]
            names = (keys.running, keys.state, keys.suspect, keys.sets, keys.timer, keys.count, keys.wait(name))
            return Call(load(verb.value), names, [keys.channel, *back])


def _line(settlement: Settlement) -> str:
    """The error, without what parts the fields of a state."""
    return settlement.error.replace("\x1e", " ").replace("\x1f", " ")


def renew(keys: Keys, leases: Sequence[LeaseId], lease_ms: int) -> Operation[list[bool]]:
    """Make leases end `lease_ms` from now."""
    calls = []
    for page in pages(leases, CALL):
        pairs: list[Argument] = [part for lease in page for part in lease]
        calls.append(Call(load("renew"), (keys.running, keys.state), [lease_ms, *pairs]))
    if not calls:
        return []
    replies = yield calls
    return [bool(answer) for reply in replies for answer in reply]
