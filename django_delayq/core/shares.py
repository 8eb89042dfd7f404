"""Share a handler fairly: among its messages that are due, the shares take turns. Pure: no Django, no I/O.

Each message belongs to a share, for example that of a shop: the text that `share_key` makes of its data. The shares of
a (queue, key) take turns by deficit round robin (Shreedhar and Varghese, 1995). At each turn a share may give `QUANTUM`
messages times its weight, so that a claim reads the rows of a few shares, however many are due. A turn that a claim has
no room for goes on in the next one.

A share of which nothing was due before comes first, like a new flow of FQ-CoDel (RFC 8290), for one turn. It gets at
most half of a claim, so that shares that keep coming can't starve the others.

Messages in due order are claimed faster than in turns, because their rows lie next to each other. So while the next
messages in due order are *mixed*, which gives each share about its part, they are claimed in that order.
"""

import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django_delayq.core.templates import checked_template, fields_in, filled
from django_delayq.support.validation import check_count, short_repr

T = TypeVar("T")

MOST_SHARE = 150
"""The most characters of a share. MySQL and MariaDB have no room for more in an index with the alias, queue and key."""
MOST_WEIGHT = 100
QUANTUM = 10
"""How many messages a share of weight 1 gives at its turn: each share costs a claim a look into the index."""
MOST_IN_CLAIM = 50
"""The most shares of which one claim takes messages."""
MOST_DUE = 10_000
"""The most shares that a worker keeps in mind. Others take their turns once some of these are empty."""
AHEAD_TURNS, AHEAD_CLAIMS = 3, 4
"""The messages in due order that are looked at together: those of so many turns of each share, or of so many claims."""
UNEVEN = 3
"""In mixed messages no share has more than so many times its part, nor less than its part divided by this.

Of shares that send as much at random times, three turns have so much more or less once in 100,000 times.
"""

Weights = Mapping[str, int] | Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Shares:
    """How the messages of a handler are shared: the template of the share, and the weights."""

    share_key: str
    weights: Weights | None = None

    def share_of(self, data: Any) -> str:
        """Return the share of a message with `data`, plain JSON values. Raises `DataMismatch` like `Limits`."""
        return filled("share_key", self.share_key, data, MOST_SHARE)

    def weight_of(self, share: str) -> int:
        """Return the weight of a share: 1 if there is none. Raises what the site's function raises, or `ValueError`."""
        if self.weights is None:
            return 1
        weight = self.weights.get(share, 1) if isinstance(self.weights, Mapping) else self.weights(share)
        return check_count(weight, "the weight of a share", most=MOST_WEIGHT)

    @property
    def fields(self) -> list[str]:
        """Return the fields of the data that make the share; '' stands for the data itself."""
        return fields_in(self.share_key)


def check_shares(share_key: str | None, share_weight: Weights | None) -> Shares | None:
    """Check the arguments of `delay_execute` about shares, and return them as `Shares`; None if there are none.

    Raises `ValueError` or `TypeError`, naming the value and the fix.
    """
    if share_key is None:
        if share_weight is not None:
            raise ValueError("share_weight weighs nothing alone; add share_key='shop:{shop_id}'.")
        return None
    if isinstance(share_weight, Mapping):
        for share, weight in share_weight.items():
            check_count(weight, f"the weight of {share!r} in share_weight", most=MOST_WEIGHT)
    elif share_weight is not None and not callable(share_weight):
        raise TypeError(
            f"share_weight={share_weight!r} is {type(share_weight).__name__}; give a dict of share and weight, or a "
            "function of the share."
        )
    elif share_weight is not None and not _takes_one(share_weight):
        raise TypeError(
            f"share_weight={short_repr(share_weight)} takes {inspect.signature(share_weight)}; it must take one "
            "positional argument: (share)."
        )
    return Shares(checked_template("share_key", share_key), share_weight)


def _takes_one(func: Callable[[str], int]) -> bool:
    try:
        inspect.signature(func).bind("")
    except TypeError:
        return False
    except ValueError:  # a function of C may have none
        pass
    return True


@dataclass(slots=True)
class _Turn:
    """The turn of a share: how many messages it may still give, and when the last that is known falls due.

    `seen` is how many are known to be due; None if unknown.
    """

    weight: int
    credit: int
    last_ms: int
    seen: int | None = None


class Turns:
    """The turns of the shares of one (queue, key), as one worker takes them.

    `weight_of` returns the weight of a share, and is called once for each share that becomes due.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._new: OrderedDict[str, _Turn] = OrderedDict()
        self._old: OrderedDict[str, _Turn] = OrderedDict()
        self._had_new = False  # whether the last claim had room for shares of which nothing was due before
        self.passed_ms = 0
        """Claims in due order have taken all that is due before this time, whatever its share."""

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __contains__(self, share: object) -> bool:
        return share in self._new or share in self._old

    def add(self, share: str, last_ms: int, seen: int | None = None) -> bool:
        """Note that messages of a share are due, the last at `last_ms`: `seen` of them, or an unknown number.

        Return whether nothing of it was due before.
        """
        if (old := self._old.get(share)) and self._is_passed(old) and old.last_ms < last_ms:
            del self._old[share]
        if turn := self._new.get(share) or self._old.get(share):
            turn.last_ms = max(turn.last_ms, last_ms)
            turn.seen = None if seen is None or turn.seen is None else max(turn.seen, seen)
            return False
        if len(self) >= MOST_DUE:
            return False
        weight = self._weight_of(share)
        self._new[share] = _Turn(weight, weight * QUANTUM, last_ms, seen)
        return True

    def _is_passed(self, turn: _Turn) -> bool:
        return turn.last_ms < self.passed_ms

    def ahead(self, count: int) -> int:
        """Return how many messages in due order to look at, for claims of `count`, to tell whether they are mixed."""
        weights = sum(turn.weight for turn in (*self._new.values(), *self._old.values()) if not self._is_passed(turn))
        return max(AHEAD_TURNS * QUANTUM * weights, AHEAD_CLAIMS * count)

    def note_ahead(self, counts: Mapping[str | None, int], end_ms: int | None) -> bool:
        """Return whether messages in due order are mixed, of which each share has `counts`.

        They are all that is due before `end_ms`, or all that is due if that is None. Each share must have about its
        part, by weight; less only if it has no more. A share that was added with the number of its messages does not
        count, because it comes first in any case.
        """
        for share in counts:
            if share is not None and share not in self:
                self.add(share, self.passed_ms if end_ms is None else end_ms)
        for turns in self._new, self._old:
            for share, turn in tuple(turns.items()):
                if self._is_passed(turn) or (end_ms is None and share not in counts):
                    del turns[share]
        added = {share: turn for share, turn in self._new.items() if turn.seen is None}
        counted = {**added, **self._old}
        part = sum(counts.values()) / max(sum(turn.weight for turn in counted.values()), 1)
        for share, turn in counted.items():
            own, number = part * turn.weight, counts.get(share, 0)
            has_more = end_ms is not None and turn.last_ms >= end_ms
            if number > UNEVEN * max(own, QUANTUM * turn.weight) or (has_more and number * UNEVEN < own):
                return False
        for share, turn in added.items():
            del self._new[share]
            self._old[share] = turn
        return True

    def plan(self, count: int) -> dict[str, int]:
        """Return how many of `count` messages to claim of each share, in the order of their turns."""
        planned = self.plan_new(count)
        left = count - sum(planned.values())
        while left > 0 and self._old:
            share, turn = next(iter(self._old.items()))
            if len(planned) >= MOST_IN_CLAIM and share not in planned:
                break
            taken = min(turn.credit, left)
            planned[share] = planned.get(share, 0) + taken
            turn.credit -= taken
            left -= taken
            if turn.credit == 0:
                turn.credit = turn.weight * QUANTUM
                self._old.move_to_end(share)
        return planned

    def plan_new(self, count: int) -> dict[str, int]:
        """Return how many of `count` messages to claim of each share of which nothing was due before."""
        planned: dict[str, int] = {}
        if count <= 0:
            return planned
        part = 2 if self._old else 1  # of the messages, and of the shares
        self._had_new = count // part > 0 or not self._had_new  # of claims of one message, every second one
        most = max(count // part, 1) if self._had_new else 0
        while most > 0 and self._new and len(planned) < MOST_IN_CLAIM // part:
            share, turn = self._new.popitem(last=False)
            taken = min(turn.credit, most)
            if turn.seen is not None and turn.seen <= taken:
                taken = turn.seen  # and no more are expected, so that the share takes part in no further turns
            else:
                turn.credit = turn.credit - taken or turn.weight * QUANTUM
                self._old[share] = turn
            planned[share] = taken
            most -= taken
        return planned

    def note(self, planned: Mapping[str, int], given: Mapping[str, int]) -> None:
        """Note how many messages a claim that was `planned` gave. Shares that gave less have none left."""
        for share, count in planned.items():
            if given.get(share, 0) < count:
                self._old.pop(share, None)

    def forget(self) -> None:
        """Forget which shares are due."""
        self._new.clear()
        self._old.clear()


def in_turn(items: Iterable[T], share_of: Callable[[T], str | None], order: Iterable[str] = ()) -> list[T]:
    """Return items so that their shares alternate. Those of a share keep their own order.

    The shares come in this order, and then as they come first among the items.
    """
    places: dict[str | None, int] = {share: place for place, share in enumerate(order)}
    numbers: Counter[str | None] = Counter()
    keyed = []
    for item in items:
        share = share_of(item)
        numbers[share] += 1
        keyed.append((numbers[share], places.setdefault(share, len(places)), item))
    keyed.sort(key=lambda one: one[:2])
    return [item for _, _, item in keyed]
