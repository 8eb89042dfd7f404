"""How many shards there are is for all processes the same: an id is looked for where another process put it."""

from typing import TypeVar

from django_delayq.brokers.redis.keys import Keys
from django_delayq.brokers.redis.scripts import Call, Operation, load, plain
from django_delayq.brokers.redis.shards import Shards, together
from django_delayq.errors import BrokerRefused

R = TypeVar("R")

CHANGED = "The number of shards was changed: give this process the new one, and restart it."


class Layout:
    """What this process knows of the number of shards that Redis was used with: at first nothing."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._is_agreed = False

    def agreed(self, operation: Operation[R]) -> Operation[R]:
        """The operation, once Redis is known to be used with as many shards as ours.

        Raises `BrokerRefused` where it is not, and has changed nothing then.
        """
        return operation if self._is_agreed else self._first(operation)

    def agree(self) -> Operation[None]:
        """Say how many they are, where nobody has since a loss; raises as `agreed` does."""
        yield from self._agree()

    def by_number(self) -> Operation[Shards]:
        """The shards by the number that is in force."""
        if self._shards.before is None:
            return self._shards
        told = yield from self._agree()
        return self._shards if told == self._shards.count else self._shards.before

    def _agree(self) -> Operation[int]:
        """The number in force. While it changes that is the old one where nobody has said one."""
        ours, before = self._shards.count, self._shards.before
        in_force = ours if before is None else before.count
        (reply,) = yield [Call(load("agree"), (self._shards.first.meta,), (in_force,))]
        told, left = (each.decode(errors="replace") for each in reply)
        known = {(str(ours), "")} if before is None else {(str(before.count), ""), (str(ours), "")}
        if before is not None:
            known.add((str(ours), str(before.count)))
        self._is_agreed = (told, left) in known
        if not self._is_agreed:
            raise BrokerRefused(_refusal(self._shards, told, left))
        return int(told)

    def _first(self, operation: Operation[R]) -> Operation[R]:
        try:
            yield from self.agree()
        except BaseException:
            operation.close()
            raise
        return (yield from operation)


def still_known(keys: Keys, operation: Operation[R]) -> Operation[R]:
    """A look, of which what it does not find is nowhere. Raises `BrokerRefused` where another number of shards was
    told meanwhile: then it may be elsewhere."""
    found, _ = yield from together([operation, _known(keys)])
    return found  # type: ignore[return-value]  # the first


def _known(keys: Keys) -> Operation[None]:
    (told,) = yield [plain("HGET", keys.count, "shards")]
    if told is not None and f"({told.decode(errors='replace')})" not in keys.numbers:
        raise BrokerRefused(CHANGED)


def _refusal(shards: Shards, told: str, left: str) -> str:
    ours, before = shards.count, shards.before
    if left:
        has = f"{ours} without old_shards" if before is None else f"{ours} and old_shards {before.count}"
        what = (
            "what this Redis" if told == str(ours) else f"this Redis is used with {told} under the prefix, and what it"
        )
        return (
            f'OPTIONS["shards"] is {has}, but {what} holds by {left} has not drained: give all processes '
            f'{{"shards": {told}, "old_shards": {left}}} until `delayq shards --end` is done.'
        )
    if before is not None:
        return (
            f'OPTIONS["shards"] is {ours} and old_shards {before.count}, but this Redis is used with {told} under the '
            f"prefix: give {told} as one of the two."
        )
    return (
        f'OPTIONS["shards"] is {ours}, but this Redis is used with {told} under the prefix: give all processes the '
        f"same number, or another prefix; docs/how-to/upgrading.md tells how it is changed."
    )
