"""OPTIONS["confirm"]: a send that returns is where the loss of the primary, or of its memory, can not take it away."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from django_delayq.brokers.redis.replies import Passing
from django_delayq.brokers.redis.scripts import Call, Operation, Reply

R = TypeVar("R")

REPLICA_MS = 1_000
FSYNC_MS = 1_500
"""How long one round trip waits for it, within what a send may take in all. A server that writes to disk once a second
may take a second before it begins."""


class _Wait(NamedTuple):
    call: Call
    within_ms: int
    is_confirmed: Callable[[Reply], bool]
    what: str


_WAITS: Mapping[str, _Wait] = {
    "replica": _Wait(
        Call(None, (), ("WAIT", 1, REPLICA_MS)), REPLICA_MS, lambda replicas: replicas >= 1, "no replica has it"
    ),
    "fsync": _Wait(
        Call(None, (), ("WAITAOF", 1, 0, FSYNC_MS)),
        FSYNC_MS,
        lambda told: told[0] >= 1,
        "it is not in the file on disk",
    ),
}


def confirmed(operation: Operation[R], confirm: str | None) -> Operation[R]:
    """The operation, each of its round trips confirmed. Raises `Passing` for one that is not: what it wrote may stay.

    A repeated put writes its slot again, so a wait after it is for something, too.
    """
    return operation if confirm is None else _confirmed(operation, _WAITS[confirm])


def _confirmed(operation: Operation[R], wait: _Wait) -> Operation[R]:
    try:
        calls = next(operation)
        while True:
            replies = yield [*calls, wait.call]
            if not wait.is_confirmed(replies[-1]):
                raise Passing(f"Redis took it, but after {wait.within_ms / 1000:g} s {wait.what}")
            calls = operation.send(replies.part(0, len(calls)))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        operation.close()
