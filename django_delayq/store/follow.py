"""Put what follows the ends of messages: the next steps of their sequences, and the messages of their batches.

A transaction first locks what may follow its messages, then ends their leases, and then puts what follows.
"""

from collections.abc import Iterable, Mapping, Sequence

from django_delayq.brokers.base import Alarm
from django_delayq.core.batches import batch_of
from django_delayq.core.message import State
from django_delayq.core.steps import step_of
from django_delayq.models import SequenceRow
from django_delayq.store import batches, sequences
from django_delayq.store.database import Database
from django_delayq.store.sequences import Ended, Locked

OVER = (State.FINISHED, State.FAILED, State.CANCELLED)
"""The states in which a message no longer counts as left in its batch."""


def lock(database: Database, ids: Iterable[str]) -> Locked:
    """Lock the sequences of those messages that are steps, except those that another transaction has locked."""
    return sequences.lock(database, [id for id in ids if step_of(id)])


def lock_waiting(database: Database, ids: Iterable[str]) -> dict[str, SequenceRow]:
    """Lock the sequences of those messages that are steps, and wait for each. Return them by message id."""
    steps = sorted(filter(step_of, ids))
    return {id: row for step in steps for id, row in sequences.lock_one(database, step).items()}


def follow(database: Database, rows: Mapping[str, SequenceRow], ended: Sequence[Ended]) -> list[Alarm]:
    """Put what follows messages whose leases the caller's transaction has ended. It has locked `rows` before."""
    members = [batch_of(one.id) for one in ended if one.state in OVER]
    return [*sequences.follow(database, rows, ended), *batches.end(database, filter(None, members))]
