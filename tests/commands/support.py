"""What the tests of the commands share: a clock that they move, messages in each state, and the command itself."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management import call_command

from django_delayq.brokers.base import (
    BATCH,
    Backend,
    Claimed,
    ClaimRequest,
    Header,
    NewMessage,
    SettleAction,
    WorkerInfo,
)
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import Alias
from tests.brokers.rig import settlement

LEASE_MS = 15_000


@dataclass
class Clock:
    """Epoch milliseconds that stand still until they are moved."""

    now_ms: int = 1_800_000_000_000  # 2027-01-15T08:00:00Z

    def __call__(self) -> int:
        return self.now_ms


clock = Clock()


class ClockedBroker(MemoryBroker):
    """BROKER of the tests that move time."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias, clock)


def delayq(*args: str, **options: Any) -> str:
    """Return what `manage.py delayq` writes."""
    out = io.StringIO()
    call_command("delayq", *args, stdout=out, **options)
    return out.getvalue()


def delayq_json(*args: str) -> Any:
    """Return what `manage.py delayq … --json` says."""
    return json.loads(delayq(*args, "--json"))


def send(broker: Backend, *ids: str, delay_ms: int = 0, body: bytes | None = None, **header: Any) -> None:
    """Messages that carry their id, or `body`, as data. Without a delay they are ready on return."""
    made = Header(**{"queue": "default", "key": "order.close"} | header)
    puts = [NewMessage(id, made, json.dumps(id).encode() if body is None else body, delay_ms) for id in ids]
    due_ms = max(placed.due_ms for batch in batched(puts) for placed in broker.queue.enqueue(batch))
    while not delay_ms and broker.queue.counts().now_ms < due_ms:
        pass  # due times are rounded up, so this takes up to 1 ms


def batched(puts: Sequence[NewMessage]) -> Iterator[Sequence[NewMessage]]:
    """`puts` in pieces that one call takes."""
    return (puts[start : start + BATCH] for start in range(0, len(puts), BATCH))


def claim(broker: Backend, count: int = 1, *, queue: str = "default", key: str = "order.close") -> Sequence[Claimed]:
    """Lease what is due, as the worker `host:1`."""
    return broker.queue.claim([ClaimRequest(queue, key, count)], lease_ms=LEASE_MS, worker="host:1").messages


def bury(broker: Backend, *ids: str, key: str = "order.close", error: str = "ValueError: no", detail: str = "") -> None:
    """Messages that were sent, claimed and buried."""
    for id in ids:
        send(broker, id, key=key)
        (claimed,) = claim(broker, key=key)
        assert broker.queue.apply([settlement(claimed, SettleAction.BURY, error=error, detail=detail)]) == [True]


def serve(broker: Backend, *keys: str, queue: str = "default") -> None:
    """Announce a live worker for these keys."""
    broker.presence.heartbeat(WorkerInfo("host:1", [queue], list(keys), running=0, started_ms=clock.now_ms))
