"""Keep messages in Redis: a sorted set for each (queue, key), with bodies and leases beside it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from django_delayq.brokers.base import (
    NO_PROGRESS,
    Audit,
    CancelRequest,
    Claimed,
    ClaimRequest,
    Claims,
    Enqueued,
    Info,
    LeaseId,
    NewMessage,
    OnConflict,
    Page,
    Place,
    Takeover,
    Transition,
    check_batch,
    refuse_duplicates,
)
from django_delayq.brokers.redis import operations, queries
from django_delayq.brokers.redis.access import LOOK_BUDGET, Access
from django_delayq.brokers.redis.claim import Claimant
from django_delayq.brokers.redis.client import Operation, TransientError, gather_available
from django_delayq.brokers.redis.enqueue import due_text, enqueue, enqueue_once
from django_delayq.brokers.redis.maintenance import take_over
from django_delayq.brokers.redis.presence import noting_lanes
from django_delayq.brokers.redis.queries import audit, merge_audits
from django_delayq.brokers.redis.settle import Unconfirmed, renew, settle
from django_delayq.brokers.redis.shards import CallCells, Keys
from django_delayq.brokers.redis.timer import DueScan
from django_delayq.core.errors import BrokerUnavailable, SendError

R = TypeVar("R")


class RedisQueue(DueScan):
    """The `Queue` (brokers/base.py) in Redis. docs/internals/structures.md describes its keys."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._unconfirmed = Unconfirmed()

    # Messages in

    def enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        return self.begin_enqueue(messages, on_conflict)()

    def begin_enqueue(
        self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep"
    ) -> Callable[[], list[Enqueued]]:
        check_batch(messages)
        operation = self._access.layout.agreed(self._enqueue(messages, on_conflict))
        end = self._access.client.begin(operation, on_unavailable=partial(_send_error, messages))
        return lambda: refuse_duplicates(end(), on_conflict)

    def begin_enqueue_once(self, messages: Sequence[NewMessage], job: str, keep_ms: int) -> Callable[[], int]:
        """Begin to enqueue those messages that a Spark job has not sent before.

        The caller must call the returned function, which waits for the end and returns how many messages were taken.

        A message that the job has sent before is not taken again, whatever became of it. The ids that the job has sent
        are in its ledger, which is kept for `keep_ms` after the last of these calls.
        """
        check_batch(messages)
        access = self._access
        sending = access.shards.by_id(
            messages, _id, lambda keys, own: enqueue_once(keys, access.cells, own, job, keep_ms)
        )
        operation = access.layout.agreed(
            noting_lanes(access.shards.first, messages, access.confirming.confirmed(sending))
        )
        end = access.client.begin(operation, on_unavailable=partial(_send_error, messages))
        return lambda: sum(end())

    async def aenqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict = "keep") -> list[Enqueued]:
        check_batch(messages)
        taken = await self._access.arun(
            self._enqueue(messages, on_conflict), on_unavailable=partial(_send_error, messages)
        )
        return refuse_duplicates(taken, on_conflict)

    def _enqueue(self, messages: Sequence[NewMessage], on_conflict: OnConflict) -> Operation[list[Enqueued]]:
        access = self._access
        sending = access.shards.by_id(messages, _id, lambda keys, own: enqueue(keys, access.cells, own, on_conflict))
        return noting_lanes(access.shards.first, messages, access.confirming.confirmed(sending))

    # Messages out

    def claim(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self._claim(requests, lease_ms, worker)

    def claim_suspect(self, requests: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        return self._access.run(self._access.planner.claim_suspect(requests, Claimant(worker, lease_ms)))

    def take_over(self, workers: Collection[str]) -> Takeover:
        access = self._access
        operations = [take_over(keys, sorted(workers)) for keys in access.shards.all]
        ended = access.run(gather_available(operations))
        buried, away = [], False
        for each in ended:
            if isinstance(each, TransientError):
                away = True
            else:
                buried += each
        return Takeover(buried, left=away)

    def apply(self, transitions: Sequence[Transition]) -> Sequence[bool | CancelRequest | None]:
        check_batch(transitions)
        # The layout is not checked: a process whose layout is refused may still end its leases, which tokens prove.
        held = self._access.client.run(self._access.shards.by_id_available(transitions, _id, settle))
        return self._unconfirmed.heard(transitions, held)

    def renew(
        self, leases: Sequence[Claimed], lease_ms: int, progress: Mapping[LeaseId, str] = NO_PROGRESS
    ) -> Sequence[bool | CancelRequest | None]:
        check_batch(leases)
        renewed = self._access.shards.by_id_available(
            leases, _id, lambda keys, own: renew(keys, own, lease_ms, progress)
        )
        return self._access.client.run(renewed)

    # Operations by id

    def atomically(self, work: Callable[[], R]) -> R:
        return work()

    def cancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        return self._access.run(self._cancel(ids, running_by), on_unavailable=_may_be_done)

    async def acancel(self, ids: Sequence[str], running_by: str | None = None) -> list[bool]:
        return await self._access.arun(self._cancel(ids, running_by), on_unavailable=_may_be_done)

    def _cancel(self, ids: Sequence[str], running_by: str | None) -> Operation[list[bool]]:
        return self._change(ids, partial(operations.cancel, running_by=running_by))

    def _change(
        self, ids: Sequence[str], how: Callable[[Keys, CallCells, Sequence[str]], Operation[list[bool]]]
    ) -> Operation[list[bool]]:
        check_batch(ids)
        return self._access.shards.by_id(ids, str, lambda keys, own: how(keys, self._access.cells, own))

    def reschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return self._access.run(self._reschedule(ids, due_text(delay_ms, at_ms)), on_unavailable=_may_be_done)

    async def areschedule(self, ids: Sequence[str], *, delay_ms: int = 0, at_ms: int | None = None) -> list[bool]:
        return await self._access.arun(self._reschedule(ids, due_text(delay_ms, at_ms)), on_unavailable=_may_be_done)

    def _reschedule(self, ids: Sequence[str], due: str) -> Operation[list[bool]]:
        return self._change(ids, partial(operations.reschedule, due=due))

    def rescue(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._access.run(self._access.shards.by_id(ids, str, operations.rescue), LOOK_BUDGET, _may_be_done)

    def purge(self, ids: Sequence[str]) -> list[bool]:
        return self._access.run(self._change(ids, operations.purge), on_unavailable=_may_be_done)

    def purge_failed(self, ids: Sequence[str]) -> list[bool]:
        check_batch(ids)
        return self._access.run(self._access.shards.by_id(ids, str, operations.purge_failed), LOOK_BUDGET, _may_be_done)

    # Queries

    def get(self, id: str) -> Info | None:
        return self._access.run(queries.get(self._access.shards.of(id), id), LOOK_BUDGET)

    async def aget(self, id: str) -> Info | None:
        return await self._access.arun(queries.get(self._access.shards.of(id), id), LOOK_BUDGET)

    def peek(self, queue: str, count: int, key: str | None = None) -> list[Info]:
        peeked = self._access.shards.everywhere(lambda keys: queries.peek(keys, queue, count, key))
        found = chain(*self._access.run(peeked, LOOK_BUDGET))
        return nsmallest(count, found, key=lambda info: (info.due_ms, info.id))

    def failed(self, count: int, offset: int = 0) -> list[Info]:
        newest = self._access.shards.everywhere(lambda keys: queries.failed(keys, offset + count, 0))
        found = chain(*self._access.run(newest, LOOK_BUDGET))
        return sorted(found, key=lambda info: info.buried_ms or 0, reverse=True)[offset : offset + count]

    def audit(self) -> Audit:
        return merge_audits(self._access.run(self._access.shards.everywhere(audit), LOOK_BUDGET))

    def wait_sets(self) -> list[list[str]]:
        """Return for each shard the names ("queue:key") of its wait sets."""
        return self._access.run(self._access.shards.everywhere(queries.set_names))

    def scan(self, shard: int, name: str, place: Place, last_ms: int, count: int) -> Page:
        """Return a page of the messages in a wait set of a shard, and the next place, like `queries.scan`."""
        return self._access.run(queries.scan(self._access.shards.all[shard], name, place, last_ms, count), LOOK_BUDGET)


_id = attrgetter("id")


def _send_error(messages: Sequence[NewMessage], reason: str, may_have_run: bool) -> SendError:
    """Return the error of a send that ran out of time. If it `may_have_run`, its messages may have been taken."""
    ids = tuple(message.id for message in messages)
    what = f"Message {ids[0]!r}" if len(ids) == 1 else f"These {len(ids)} messages"
    if not may_have_run:
        return SendError(f"{reason.rstrip('.')}. {what} {'was' if len(ids) == 1 else 'were'} not sent.")
    return SendError(f"{reason.rstrip('.')}. {what} may have been taken; send again with the same id.", unknown=ids)


def _may_be_done(reason: str, may_have_run: bool) -> BrokerUnavailable:
    if not may_have_run:
        return BrokerUnavailable(reason)
    return BrokerUnavailable(f"{reason.rstrip('.')}. What was asked may have been done; asking again is safe.")
