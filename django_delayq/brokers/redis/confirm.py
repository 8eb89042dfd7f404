"""Confirm sends as OPTIONS["confirm"] asks: a send returns once the loss of the primary or its memory can't undo it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from django_delayq.brokers.redis.client import Call, Operation, Reply, TransientError, colocated, gather_available
from django_delayq.brokers.redis.shards import Shards

R = TypeVar("R")

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
        told = yield from gather_available([_probe(keys.msg, self._wait.probe) for keys in self._shards.all])
        self._is_able = not any(isinstance(each, TransientError) for each in told)

    def confirmed(self, operation: Operation[R]) -> Operation[R]:
        """Run the operation, and confirm each of its round trips.

        Raises `TransientError` for one that is not confirmed: what it wrote may stay. A repeated put writes its slot
        again, so a wait after it has something to wait for, too.
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


def _probe(key: str, probe: tuple[str | int, ...]) -> Operation[None]:
    yield [colocated(key, *probe)]


def _check(told: Reply, wait: _Wait) -> None:
    """Raise `TransientError` if a write is not confirmed. It was made, so no error here may be taken for a refusal."""
    if isinstance(told, Exception):
        raise TransientError(f"Redis took it, but does not answer {wait.command[0]} any more: {told}")
    if not wait.is_confirmed(told):
        raise TransientError(f"Redis took it, but after {wait.within_ms / 1000:g} s {wait.what}")
