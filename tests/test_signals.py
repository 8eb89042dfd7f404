"""Signals: a receiver that raises harms nothing and is logged."""

import asyncio
import logging
import sys
from typing import Any

import pytest
from django.dispatch import Signal

from django_delayq.signals import aemit, emit

SENDER = object()


class Receivers:
    """Receivers of one signal, in order: one that raises, one that calls sys.exit() if told, one that notes."""

    def __init__(self) -> None:
        self.signal = Signal()
        self.noted: list[dict[str, Any]] = []

    def fails(self, **kwargs: Any) -> None:
        raise RuntimeError("receiver broke")

    def exits(self, **kwargs: Any) -> None:
        sys.exit("receiver left")

    def notes(self, **kwargs: Any) -> None:
        self.noted.append(kwargs)


def emit_sync(signal: Signal, **kwargs: Any) -> None:
    emit(signal, SENDER, **kwargs)


def emit_async(signal: Signal, **kwargs: Any) -> None:
    asyncio.run(aemit(signal, SENDER, **kwargs))


@pytest.mark.parametrize("send", [emit_sync, emit_async])
def test_the_others_receive_when_one_raises(send: Any, caplog: pytest.LogCaptureFixture) -> None:
    receivers = Receivers()
    receivers.signal.connect(receivers.fails)
    receivers.signal.connect(receivers.notes, sender=SENDER)
    send(receivers.signal, id="a")
    assert receivers.noted == [{"signal": receivers.signal, "sender": SENDER, "id": "a"}]
    assert "receiver broke" in caplog.text


@pytest.mark.parametrize("send", [emit_sync, emit_async])
def test_a_receiver_that_exits_does_not_end_the_process(send: Any, caplog: pytest.LogCaptureFixture) -> None:
    receivers = Receivers()
    receivers.signal.connect(receivers.exits)
    send(receivers.signal)
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.ERROR, "django_delayq")]


def test_a_receiver_of_another_sender_is_not_called() -> None:
    receivers = Receivers()
    receivers.signal.connect(receivers.notes, sender=object)
    emit(receivers.signal, SENDER)
    assert receivers.noted == []


def test_async_receivers_receive_too() -> None:
    receivers = Receivers()

    async def notes(**kwargs: Any) -> None:
        receivers.noted.append({"id": kwargs["id"]})

    receivers.signal.connect(notes)
    emit_async(receivers.signal, id="a")
    emit_sync(receivers.signal, id="b")
    assert receivers.noted == [{"id": "a"}, {"id": "b"}]
