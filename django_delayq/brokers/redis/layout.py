"""How many shards there are is for all processes the same: an id is looked for where another process put it."""

from typing import TypeVar

from django_delayq.brokers.redis.records import as_int
from django_delayq.brokers.redis.scripts import Call, Operation, load
from django_delayq.brokers.redis.shards import Shards
from django_delayq.errors import BrokerRefused

R = TypeVar("R")


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
        ours = len(self._shards.all)
        (told,) = yield [Call(load("agree"), (self._shards.first.meta,), (ours,))]
        self._is_agreed = as_int(told) == ours
        if not self._is_agreed:
            raise BrokerRefused(
                f'OPTIONS["shards"] is {ours}, but this Redis is used with {told.decode(errors="replace")} under the '
                f"prefix: give all processes the same number, or another prefix."
            )

    def _first(self, operation: Operation[R]) -> Operation[R]:
        try:
            yield from self.agree()
        except BaseException:
            operation.close()
            raise
        return (yield from operation)
