"""Name the members of a batch, and say what its last message is told. Pure: no Django, no I/O."""

from dataclasses import dataclass
from typing import Any

PREFIX = "batch:"


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What the message gets that follows a batch: how its members have ended, and the `data` of the batch.

    A member that was purged, or removed by the store's retention, is counted in `total` alone.
    """

    batch: str
    total: int
    finished: int
    failed: int
    cancelled: int
    data: Any = None


def member_id(batch_id: str, number: int) -> str:
    """Return the id of the message of a member, so that members sort as they were sent."""
    return f"{batch_id}/{number:09d}"


def batch_of(message_id: str) -> str | None:
    """Return the id of the batch of which a message may be a member; None if its id is no such id."""
    if not message_id.startswith(PREFIX):
        return None
    batch_id, slash, _number = message_id.partition("/")
    return batch_id if slash else None
