"""Sends that wait for the commit of the caller's transaction, since without a store nothing else ties the two."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db import connections

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import BATCH, Put
from django_delayq.conf import Alias, get_alias
from django_delayq.safe_logs import logger
from django_delayq.sending.told import tell_failed, tell_sent
from django_delayq.sends import OnConflict
from django_delayq.transactions import is_in_transaction, warn_of_others
from django_delayq.values import check_flag, shown


@dataclass(slots=True, eq=False)
class WaitingSend:
    """One send of a transaction. `over` when it was put or cancelled.

    `group` holds the sends that were made right after one another under the same savepoints: the first one that the
    commit calls puts all from itself on, so that a loop of sends costs one round trip.
    """

    using: str
    put: Put
    on_conflict: OnConflict
    called_ns: int  # by the monotonic clock: a delay counts from the call
    group: list["WaitingSend"]
    over: bool = False

    def after_commit(self) -> None:
        """The `on_commit` callback. It logs what goes wrong and never raises: the caller's work is committed."""
        if self.over:
            return
        waiting = [send for send in self.group[self.group.index(self) :] if not send.over]
        for send in waiting:
            send.over = True
            send.put.delay_ms = max(0, send.put.delay_ms - (time.monotonic_ns() - send.called_ns) // 1_000_000)
        puts = [send.put for send in waiting]
        try:
            placed = get_broker(self.using).put(puts, self.on_conflict)
        except Exception as error:
            logger.exception(
                "%s could not be sent after the commit; the first is %r (key %r).",
                "1 message" if len(puts) == 1 else f"{len(puts)} messages",
                puts[0].id,
                puts[0].header.key,
                extra={"ids": [put.id for put in puts], "using": self.using},
            )
            tell_failed(self.using, puts, error)
        else:
            tell_sent(get_alias(self.using), puts, placed)

    def reschedule(self, delay_ms: int, at_ms: int | None) -> None:
        """Change the due time. A delay counts from now."""
        self.put.delay_ms, self.put.at_ms, self.called_ns = delay_ms, at_ms, time.monotonic_ns()


def waits_for_commit(alias: Alias, on_commit: bool | None) -> bool:
    """Whether a send waits for the commit; with a store it is part of the transaction instead.

    Raises `TypeError` for an `on_commit` that means nothing.
    """
    if alias.store is None:
        return True if on_commit is None else check_flag(on_commit, "on_commit")
    if on_commit is not None:
        raise TypeError(
            f"on_commit={shown(on_commit)}: alias {alias.name!r} has a store, so that a send commits and rolls back "
            "with the caller's transaction; leave it out."
        )
    return False


def wait_for_commit(alias: Alias, put: Put, on_conflict: OnConflict) -> bool:
    """Send `put` after the commit of the open transaction on the alias's database. False when there is none."""
    if not is_in_transaction(alias):
        warn_of_others(alias)
        return False
    connection = connections[alias.database]
    group = _group_to_join(alias, on_conflict)
    group.append(WaitingSend(alias.name, put, on_conflict, time.monotonic_ns(), group))
    connection.on_commit(group[-1].after_commit, robust=True)
    return True


def waiting_sends(alias: Alias) -> Iterator[WaitingSend]:
    """What waits for the commit of this thread's transaction, in the order sent."""
    for entry in connections[alias.database].run_on_commit:
        send = getattr(entry[1], "__self__", None)
        if isinstance(send, WaitingSend) and send.using == alias.name and not send.over:
            yield send


def cancel_waiting(alias: Alias, ids: Iterable[str]) -> set[str]:
    """Drop what waits for the commit under `ids`; gives the ids that it found."""
    found = [send for send in waiting_sends(alias) if send.put.id in ids]
    for send in found:
        send.over = True
    return {send.put.id for send in found}


def reschedule_waiting(alias: Alias, ids: Iterable[str], delay_ms: int, at_ms: int | None) -> set[str]:
    """Change the due time of what waits for the commit under `ids`; gives the ids that it found."""
    found = [send for send in waiting_sends(alias) if send.put.id in ids]
    for send in found:
        send.reschedule(delay_ms, at_ms)
    return {send.put.id for send in found}


def _group_to_join(alias: Alias, on_conflict: OnConflict) -> list[WaitingSend]:
    """The group of the callback registered last, when nothing can part its fate or its order from the next send."""
    connection = connections[alias.database]
    if not connection.run_on_commit or on_conflict == "raise":  # a refusal must name the one that was refused
        return []
    savepoints, callback = connection.run_on_commit[-1][:2]
    last = getattr(callback, "__self__", None)
    if (
        isinstance(last, WaitingSend)
        and (last.using, last.on_conflict) == (alias.name, on_conflict)
        and savepoints == set(connection.savepoint_ids)
        and len(last.group) < BATCH
    ):
        return last.group
    return []
