"""The access of one alias to its Redis: what the timer and the queue share, and what holds for each of their calls.

All processes must agree on the layout of the keys under a prefix, because an id is looked for where another process
stored it. And a send is confirmed as OPTIONS["confirm"] asks: it returns once the loss of the primary or its memory
can't undo it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from django_delayq.brokers.redis.claim import ClaimPlanner, PollOwnership
from django_delayq.brokers.redis.client import (
    BUDGET,
    Call,
    ErrorFactory,
    Operation,
    Reply,
    TransientError,
    ask,
    client_of,
    colocated,
    gather,
    gather_available,
    parse_location,
)
from django_delayq.brokers.redis.maintenance import MaintenanceSchedule
from django_delayq.brokers.redis.shards import CallCells, Shards, load
from django_delayq.brokers.redis.waiter import Waiter
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable, PartlyUnavailable

R = TypeVar("R")

LOOK_BUDGET = 60.0
"""Seconds that a query of everything (audit, failed messages, an id among them) may take, in many round trips."""


class Access:
    """Runs operations on the Redis of one alias. The timer, the queue, the presence and the limiter share it."""

    def __init__(self, alias: Alias) -> None:
        self.options = alias.options
        self.location = parse_location(alias.location)
        self.client = client_of(self.location)
        self.shards = Shards(alias.options.prefix, alias.options.shards)
        self.layout = Layout(self.shards)
        self.confirming = Confirming(alias.options.confirm, self.shards)
        self.cells = CallCells()
        self.waiter = Waiter(self.client, [keys.channel for keys in self.shards.all])
        self.ownership = PollOwnership(self.shards.all, self.client.node_of, self.waiter.hears)
        self.planner = ClaimPlanner(self.shards, self.cells, self.waiter, self.ownership)
        self.maintenance = MaintenanceSchedule(alias, self.shards.all, self.planner, self.ownership, self.client)

    def open(self) -> None:
        """Connect, and check that the shards are those that other processes use."""
        self.client.run(gather([self.layout.agree(), self.confirming.ask()]))

    def close(self) -> None:
        """Close every connection, and end a running `wait`."""
        self.waiter.close()
        self.client.close()

    def run(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Return the result of an operation. After `budget` seconds raise the error that `on_unavailable` makes."""
        try:
            return self.client.run(self.layout.agreed(operation), budget, on_unavailable)
        except BrokerUnavailable:
            self.maintenance.ask_all()
            raise

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Return the result of an operation like `run`, without blocking the event loop."""
        return await self.client.arun(self.layout.agreed(operation), budget, on_unavailable)

    def raise_if_away(self, away: str) -> None:
        """Raise `PartlyUnavailable` if `away`, the reason why some shards were not reached, is not empty.

        Then the next maintenance asks all shards.
        """
        if away:
            self.maintenance.ask_all()
            raise PartlyUnavailable(away)


LAYOUT = 1
"""The version of the keys and what they hold. A layout that this one can't work beside gets another number."""


class Layout:
    """This process's knowledge of the layout that Redis is used with: at first nothing."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._is_agreed = False

    def agreed(self, operation: Operation[R]) -> Operation[R]:
        """Run the operation once Redis is known to be used with this layout.

        Raises `BrokerRefused`, before anything is changed, if it is used with another one.
        """
        return operation if self._is_agreed else self._first(operation)

    def agree(self) -> Operation[None]:
        """Record the layout in Redis, unless one is recorded there. Raises `BrokerRefused` if that is another one."""
        ours = LAYOUT, len(self._shards.all)
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
        if version != str(LAYOUT):
            return (
                f"This Redis is used with layout {version} under prefix {prefix!r}, and this version of django-delayq "
                f"knows layout {LAYOUT}: give this process the version of the others, or another OPTIONS['prefix']."
            )
        return (
            f'OPTIONS["shards"] is {len(self._shards.all)}, but this Redis is used with {count} under prefix '
            f"{prefix!r}: give all processes {count}, or another OPTIONS['prefix'] beside the new number. With a store "
            "its alarms are rebuilt there; without one, keep an alias with the old settings until it is empty."
        )


REPLICA_MS = 1_000
FSYNC_MS = 1_500
"""How long one round trip waits for the confirmation, within the time that a send may take. A server that writes to
disk once a second may take a second before it begins."""


class _Wait(NamedTuple):
    command: tuple[str | int, ...]
    probe: tuple[str | int, ...]  # the same command, which waits no more than a moment
    within_ms: int
    is_confirmed: Callable[[Reply], bool]
    what: str


_WAITS: Mapping[str, _Wait] = {
    "replica": _Wait(
        ("WAIT", 1, REPLICA_MS), ("WAIT", 0, 1), REPLICA_MS, lambda replicas: replicas >= 1, "no replica has it"
    ),
    "fsync": _Wait(
        ("WAITAOF", 1, 0, FSYNC_MS),
        ("WAITAOF", 1, 0, 1),
        FSYNC_MS,
        lambda told: told[0] >= 1,
        "it is not in the file on disk: the disk is slow, or appendfsync is no",
    ),
}


class Confirming:
    """This process's knowledge of whether Redis can confirm: at first nothing."""

    def __init__(self, confirm: str | None, shards: Shards) -> None:
        self._wait = None if confirm is None else _WAITS[confirm]
        self._shards = shards
        self._is_able = False

    def ask(self) -> Operation[None]:
        """Ask each server, before anything is written to it, whether it can confirm.

        One that can't (too old, without the file, without the permission) answers with an error that says what to mend.
        One that is away is asked another time.
        """
        if self._wait is None or self._is_able:
            return
        told = yield from gather_available([ask(colocated(keys.msg, *self._wait.probe)) for keys in self._shards.all])
        self._is_able = not any(isinstance(each, TransientError) for each in told)

    def confirmed(self, operation: Operation[R]) -> Operation[R]:
        """Run the operation, and confirm each of its round trips.

        Raises `TransientError` for one that is not confirmed, although what it wrote may stay. A repeated send writes
        its call cell again, so that there is a write to confirm then too.
        """
        return operation if self._wait is None else self._confirmed(operation, self._wait)

    def _confirmed(self, operation: Operation[R], wait: _Wait) -> Operation[R]:
        try:
            yield from self.ask()
            calls = next(operation)
            while True:
                replies = yield [*calls, Call(None, (), wait.command)]
                _check(replies[-1], wait)
                calls = operation.send(replies.part(0, len(calls)))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            operation.close()


def _check(told: Reply, wait: _Wait) -> None:
    """Raise `TransientError` if a write is not confirmed, or can't be: the write was made in any case."""
    if isinstance(told, Exception):
        raise TransientError(f"Redis took it, but does not answer {wait.command[0]} any more: {told}")
    if not wait.is_confirmed(told):
        raise TransientError(f"Redis took it, but after {wait.within_ms / 1000:g} s {wait.what}")
