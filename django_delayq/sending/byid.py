"""Cancel and reschedule, by id."""

from collections.abc import Sequence
from datetime import datetime

from asgiref.sync import sync_to_async

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import BATCH, Broker, pages
from django_delayq.conf import get_alias
from django_delayq.durations import Duration
from django_delayq.sending.commit import cancel_waiting, reschedule_waiting
from django_delayq.sending.due import due_ms
from django_delayq.values import check_name, shown


def cancel_delay_messages(*ids: str, tag: str | None = None, using: str | None = None) -> int:
    """Stop waiting messages, by id or those of a `tag`, which needs a store.

    With a store all of them stop or none, as a part of the caller's transaction or in one of its own. Without one it
    acts at once, inside a transaction too, and its rollback does not bring them back; a send that waits for this
    transaction's commit is stopped as well.

    Returns how many will now never start; those that run, ended or never existed don't count. Raises
    `BrokerUnavailable` or `BrokerRefused`; calling again is safe.
    """
    alias = get_alias(using)
    checked = _checked(ids, tag)  # before a transaction is begun, or joined: an error in it would cost the caller's
    broker = get_broker(alias.name)

    def cancel() -> int:
        wanted = _wanted(broker, *checked)
        answers = [answer for batch in pages(wanted, BATCH) for answer in broker.cancel(batch)]
        return _count(wanted, answers, cancel_waiting(alias, wanted))

    return broker.together(cancel)


async def acancel_delay_messages(*ids: str, tag: str | None = None, using: str | None = None) -> int:
    """As `cancel_delay_messages`, from async code."""
    alias = get_alias(using)
    if alias.store is not None:
        return await sync_to_async(cancel_delay_messages)(*ids, tag=tag, using=using)
    broker = get_broker(alias.name)
    wanted = _wanted(broker, *_checked(ids, tag))
    answers = [answer for batch in pages(wanted, BATCH) for answer in await broker.acancel(batch)]
    return _count(wanted, answers, await sync_to_async(cancel_waiting)(alias, wanted))


def reschedule_delay_messages(
    *ids: str,
    tag: str | None = None,
    delay: Duration | None = None,
    at: datetime | None = None,
    using: str | None = None,
) -> int:
    """Give waiting messages a new due time: after `delay` or at the instant `at`, now when neither is given.

    Acts and raises as `cancel_delay_messages` does. Returns how many were waiting; others stay as they are.
    """
    alias = get_alias(using)
    checked = _checked(ids, tag)
    delay_ms, at_ms = due_ms(delay, at)
    broker = get_broker(alias.name)

    def reschedule() -> int:
        wanted = _wanted(broker, *checked)
        answers = [
            answer
            for batch in pages(wanted, BATCH)
            for answer in broker.reschedule(batch, delay_ms=delay_ms, at_ms=at_ms)
        ]
        return _count(wanted, answers, reschedule_waiting(alias, wanted, delay_ms, at_ms))

    return broker.together(reschedule)


async def areschedule_delay_messages(
    *ids: str,
    tag: str | None = None,
    delay: Duration | None = None,
    at: datetime | None = None,
    using: str | None = None,
) -> int:
    """As `reschedule_delay_messages`, from async code."""
    alias = get_alias(using)
    if alias.store is not None:
        return await sync_to_async(reschedule_delay_messages)(*ids, tag=tag, delay=delay, at=at, using=using)
    delay_ms, at_ms = due_ms(delay, at)
    broker = get_broker(alias.name)
    wanted = _wanted(broker, *_checked(ids, tag))
    answers = [
        answer
        for batch in pages(wanted, BATCH)
        for answer in await broker.areschedule(batch, delay_ms=delay_ms, at_ms=at_ms)
    ]
    return _count(wanted, answers, await sync_to_async(reschedule_waiting)(alias, wanted, delay_ms, at_ms))


def _checked(ids: tuple[str, ...], tag: str | None) -> tuple[list[str], str | None]:
    """Return the ids and the tag as plain names. Raises `TypeError` or `ValueError` naming the one that is none."""
    for id in ids:
        if not isinstance(id, str):
            raise TypeError(f"id={shown(id)} is {type(id).__name__}; give each id as a str of its own: (*ids).")
    return [check_name(id, "id") for id in ids], None if tag is None else check_name(tag, "tag")


def _wanted(broker: Broker, ids: list[str], tag: str | None) -> list[str]:
    """The ids, and those that wait under the tag."""
    return ids if tag is None else [*ids, *broker.tagged(tag)]


def _count(ids: Sequence[str], answers: Sequence[bool], uncommitted: set[str]) -> int:
    return len({id for id, answer in zip(ids, answers, strict=True) if answer} | uncommitted)
