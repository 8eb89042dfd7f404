"""Run operations on the Redis of one alias, for its timer, queue, presence and limiter.

All processes must use the same layout of keys under a prefix, because each looks for an id where another one has stored
it. This is checked here. Sends are also confirmed here, if OPTIONS["confirm"] asks for it: a confirmed send returns
only when the loss of the primary, or of its memory, can't undo it any more.
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
    unavailable,
)
from django_delayq.brokers.redis.maintenance import MaintenanceSchedule
from django_delayq.brokers.redis.shards import CallCells, Shards, load
from django_delayq.brokers.redis.waiter import Waiter
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable, ForeignMark, PartlyUnavailable

R = TypeVar("R")

LOOK_BUDGET = 60.0
"""Seconds for an operation that reads everything in many round trips, such as an audit."""


class Access:
    """The client of one alias, with the knowledge about its Redis that all parts of the backend share."""

    def __init__(self, alias: Alias) -> None:
        self.options = options = alias.options
        self.location = parse_location(alias.location)
        self.client = client_of(self.location)
        self.shards = Shards(options.prefix, options.shards, options.max_data, options.sign)
        self.layout = Layout(self.shards, self.location.shown)
        self.confirming = Confirming(alias.options.confirm, self.shards)
        self.cells = CallCells()
        self.waiter = Waiter(self.client, [keys.channel for keys in self.shards.all])
        self.ownership = PollOwnership(self.shards.all, self.client.node_of, self.waiter.hears)
        self.planner = ClaimPlanner(self.shards, self.cells, self.waiter, self.ownership)
        self.maintenance = MaintenanceSchedule(alias, self.shards.all, self.planner, self.ownership, self.client)

    def open(self) -> None:
        """Connect, and check that the layout is the one that other processes use."""
        self.client.run(gather([self.layout.agree(), self.confirming.ask()]))

    def close(self) -> None:
        """Close every connection, and end a running `wait`."""
        self.waiter.close()
        self.client.close()

    def run(self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = unavailable) -> R:
        """Return the result of an operation. After `budget` seconds, raise the error that `on_unavailable` returns."""
        try:
            return self.client.run(self.layout.agreed(operation), budget, on_unavailable)
        except BrokerUnavailable:
            self.maintenance.ask_all()
            raise

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = unavailable
    ) -> R:
        """Return the result of an operation, as `run` does, but without blocking the event loop."""
        return await self.client.arun(self.layout.agreed(operation), budget, on_unavailable)

    def raise_if_away(self, away: str) -> None:
        """Raise `PartlyUnavailable` if `away`, the reason why some shards were not reached, is not empty.

        The next maintenance then asks all shards.
        """
        if away:
            self.maintenance.ask_all()
            raise PartlyUnavailable(away)


LAYOUT = 1
"""The version of the keys and their content. A change that earlier versions can't work with gets another number."""


class Layout:
    """The check that Redis is used with this layout. It is made once, before the first operation of this process."""

    def __init__(self, shards: Shards, shown: str) -> None:
        self._shards = shards
        self._shown = shown
        self._is_agreed = False

    def agreed(self, operation: Operation[R]) -> Operation[R]:
        """Check the layout, if that was not done yet, and then run the operation.

        Raises `ForeignMark`, before anything is changed, if Redis is used with another layout.
        """
        return operation if self._is_agreed else self._first(operation)

    def agree(self) -> Operation[None]:
        """Record the layout in Redis, unless one is recorded already. Raises `ForeignMark` if that is another one."""
        ours = LAYOUT, len(self._shards.all)
        (reply,) = yield [Call(load("agree"), (self._shards.first.meta,), ours)]
        version, count = (each.decode(errors="replace") for each in reply)
        self._is_agreed = (version, count) == tuple(map(str, ours))
        if not self._is_agreed:
            key, refusal = self._shards.first.meta, self._refusal(version, count)
            raise ForeignMark(
                f"{refusal} If nobody uses it so, forget that in Redis at {self._shown}: HDEL {key} layout shards."
            )

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
"""How long one round trip waits for the confirmation, within the time that a send may take. A server that writes to its
disk once a second may begin a second later."""


class _Wait(NamedTuple):
    command: tuple[str | int, ...]
    probe: tuple[str | int, ...]  # the same command, but it waits only 1 ms
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
        lambda reply: reply[0] >= 1,
        "it is not in the file on disk: the disk is slow, or appendfsync is no",
    ),
}


class Confirming:
    """The confirmation of writes that OPTIONS["confirm"] asks for, and whether all servers are known to support it."""

    def __init__(self, confirm: str | None, shards: Shards) -> None:
        self._wait = None if confirm is None else _WAITS[confirm]
        self._shards = shards
        self._is_able = False

    def ask(self) -> Operation[None]:
        """Ask each server, before anything is written to it, whether it can confirm.

        A server that can't (it is too old, or has no append-only file or no permission) makes this raise an error that
        says what to mend. A server that is away is asked again next time.
        """
        if self._wait is None or self._is_able:
            return
        replies = yield from gather_available(
            [ask(colocated(keys.msg, *self._wait.probe)) for keys in self._shards.all]
        )
        self._is_able = not any(isinstance(reply, TransientError) for reply in replies)

    def confirmed(self, operation: Operation[R]) -> Operation[R]:
        """Run the operation, and wait for the confirmation of each of its round trips.

        Raises `TransientError` if a round trip is not confirmed, although its writes may stay. A repeated send writes
        at least its call cell again, so that there is a write to confirm.
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


def _check(reply: Reply, wait: _Wait) -> None:
    """Raise `TransientError` unless the reply confirms the write. The write was made in any case."""
    if isinstance(reply, Exception):
        raise TransientError(f"Redis took it, but does not answer {wait.command[0]} any more: {reply}")
    if not wait.is_confirmed(reply):
        raise TransientError(f"Redis took it, but after {wait.within_ms / 1000:g} s {wait.what}")
