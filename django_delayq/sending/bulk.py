"""Sending many messages in few round trips, lazily and in bounded memory."""

from collections.abc import AsyncIterable, Callable, Iterable

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import BATCH, Placed
from django_delayq.conf import Alias
from django_delayq.sending.batches import Batch, Batches
from django_delayq.sending.commit import waits_for_commit
from django_delayq.sending.told import atell_sent, tell_sent
from django_delayq.sends import Send, SentMany
from django_delayq.transactions import is_in_transaction, warn_of_others
from django_delayq.values import check_flag


def send_delay_messages(
    sends: Iterable[Send], *, batch_size: int = BATCH, using: str | None = None, on_commit: bool | None = None
) -> SentMany:
    """Send every message of `sends`, which is read as it goes: a generator of a million takes the memory of a batch.

    Each batch of at most `batch_size` is one call of the broker; it holds neighbours with the same alias and
    `on_conflict`. A `delay` counts from when its batch is sent. `using` overrides the alias of each.

    With a store the rows are part of the caller's transaction; outside of one, each batch commits by itself.

    Without a store it raises inside `atomic()` on the alias's database, since a million can't wait for a commit in
    bounded memory; `on_commit=False` sends at once, whatever becomes of the transaction. The transaction around a
    `TestCase` does not count.

    Raises `SendError` for whatever goes wrong on the way, with its reason as `__cause__`: the first `accepted`
    messages were taken, `unknown` are the ids of the batch in flight, and nothing after those was sent.
    """
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    # While one batch is on its way the next is made ready; never two, so that a failure stays a prefix.
    on_its_way: list[tuple[Batch, Callable[[], list[Placed]]]] = []
    with batches.failures_told():
        try:
            for batch in batches.of(sends):
                if waits_for_commit(batch.alias, on_commit):
                    _refuse_in_transaction(batch.alias)
                _arrive(batches, on_its_way)
                begin = get_broker(batch.alias.name).begin_put
                on_its_way.append((batch, begin(batches.departs(batch), batch.on_conflict)))
        finally:
            _arrive(batches, on_its_way)
    return batches.sent


def _arrive(batches: Batches, on_its_way: list[tuple[Batch, Callable[[], list[Placed]]]]) -> None:
    while on_its_way:
        batch, wait = on_its_way.pop()
        placed = wait()
        batches.answered(placed)
        tell_sent(batch.alias, batch.puts, placed)


async def asend_delay_messages(
    sends: Iterable[Send] | AsyncIterable[Send],
    *,
    batch_size: int = BATCH,
    using: str | None = None,
    on_commit: bool | None = None,
) -> SentMany:
    """As `send_delay_messages`, from async code and also from an async iterable."""
    batches = Batches(batch_size, using)
    if on_commit is not None:
        check_flag(on_commit, "on_commit")
    with batches.failures_told():
        async for batch in batches.of_async(sends):
            if waits_for_commit(batch.alias, on_commit):
                await sync_to_async(_refuse_in_transaction)(batch.alias)
            placed = await get_broker(batch.alias.name).aput(batches.departs(batch), batch.on_conflict)
            batches.answered(placed)
            await atell_sent(batch.alias, batch.puts, placed)
    return batches.sent


def _refuse_in_transaction(alias: Alias) -> None:
    warn_of_others(alias)
    # TestCase marks its own block, as it does for atomic(durable=True).
    if is_in_transaction(alias) and not getattr(connections[alias.database].atomic_blocks[-1], "_from_testcase", False):
        raise TransactionManagementError(
            f"A bulk send can't wait for the commit on database {alias.database!r}; "
            "call it outside atomic(), or with on_commit=False to send at once."
        )
