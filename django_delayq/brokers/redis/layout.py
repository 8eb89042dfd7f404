"""The layout of the keys under a prefix. All processes must agree on it: an id is looked for where another put it."""

from typing import TypeVar

from django_delayq.brokers.redis.client import Call, Operation
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.shards import Shards
from django_delayq.core.errors import BrokerRefused

R = TypeVar("R")

VERSION = 1
"""The version of the keys and what they hold. A layout that this one can't work beside gets another number."""


class Layout:
    """This process's knowledge of the layout that Redis is used with: at first nothing."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._is_agreed = False

    def agreed(self, operation: Operation[R]) -> Operation[R]:
        """Run the operation once Redis is known to be used with this layout.

        Raises `BrokerRefused` where it is not, and has changed nothing then.
        """
        return operation if self._is_agreed else self._first(operation)

    def agree(self) -> Operation[None]:
        """Record the layout, unless another process has since the data was last lost. Raises as `agreed` does."""
        ours = VERSION, len(self._shards.all)
        (reply,) = yield [Call(load("agree"), (self._shards.first.meta,), ours)]
        version, count = (each.decode(errors="replace") for each in reply)
        self._is_agreed = (version, count) == tuple(map(str, ours))
        if not self._is_agreed:
            raise BrokerRefused(self._refusal(version, count))

    def _first(self, operation: Operation[R]) -> Operation[R]:
        try:
            yield from self.agree()
        except BaseException:
            operation.close()
            raise
        return (yield from operation)

    def _refusal(self, version: str, count: str) -> str:
        prefix = self._shards.first.prefix
        if version != str(VERSION):
            return (
                f"This Redis is used with layout {version} under prefix {prefix!r}, and this version of django-delayq "
                f"knows layout {VERSION}: give this process the version of the others, or another OPTIONS['prefix']."
            )
        return (
            f'OPTIONS["shards"] is {len(self._shards.all)}, but this Redis is used with {count} under prefix '
            f"{prefix!r}: give all processes {count}, or another OPTIONS['prefix'] beside the new number. With a store "
            "its alarms are rebuilt there; without one, keep an alias with the old settings until it is empty."
        )
