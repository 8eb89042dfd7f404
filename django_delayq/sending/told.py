"""The signals that tell of sends."""

from collections.abc import Iterable, Sequence

from asgiref.sync import sync_to_async
from django.db import connections

from django_delayq.brokers.base import Placed, Put
from django_delayq.conf import Alias
from django_delayq.handlers import get_handler
from django_delayq.signals import aemit, emit, message_sent, send_failed


def tell_sent(alias: Alias, puts: Sequence[Put], placed: Sequence[Placed]) -> None:
    """Tell of accepted messages; with a store after the commit that decides about them."""
    if not message_sent.receivers:
        return

    def tell() -> None:
        for put, answer in zip(puts, placed, strict=True):
            emit(message_sent, get_handler(alias.name, put.header.key), **_sent(alias.name, put, answer))

    if alias.store is None:
        tell()
    else:
        connections[alias.database].on_commit(tell, robust=True)


async def atell_sent(alias: Alias, puts: Sequence[Put], placed: Sequence[Placed]) -> None:
    """As `tell_sent`, from async code."""
    if not message_sent.receivers:
        return
    if alias.store is not None:
        await sync_to_async(tell_sent)(alias, puts, placed)
        return
    for put, answer in zip(puts, placed, strict=True):
        await aemit(message_sent, get_handler(alias.name, put.header.key), **_sent(alias.name, put, answer))


def tell_failed(using: str, puts: Iterable[Put], error: Exception) -> None:
    """Tell of messages whose transaction was committed and that were not taken, or perhaps not."""
    for put in puts:
        emit(send_failed, get_handler(using, put.header.key), **_message(using, put), error=error)


def _sent(using: str, put: Put, answer: Placed) -> dict[str, object]:
    return {
        **_message(using, put),
        "due_ms": answer.due_ms,
        "created": answer.created,
        "running": answer.running,
    }


def _message(using: str, put: Put) -> dict[str, object]:
    return {"using": using, "id": put.id, "key": put.header.key, "queue": put.header.queue}
