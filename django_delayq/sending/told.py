"""The signals that tell of sends."""

from collections.abc import Iterable, Sequence

from django_delayq.brokers.base import Placed, Put
from django_delayq.handlers import get_handler
from django_delayq.signals import aemit, emit, message_sent, send_failed


def tell_sent(using: str, puts: Sequence[Put], placed: Sequence[Placed]) -> None:
    """Tell of accepted messages."""
    if message_sent.receivers:
        for put, answer in zip(puts, placed, strict=True):
            emit(message_sent, get_handler(using, put.header.key), **_sent(using, put, answer))


async def atell_sent(using: str, puts: Sequence[Put], placed: Sequence[Placed]) -> None:
    """As `tell_sent`, from async code."""
    if message_sent.receivers:
        for put, answer in zip(puts, placed, strict=True):
            await aemit(message_sent, get_handler(using, put.header.key), **_sent(using, put, answer))


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
