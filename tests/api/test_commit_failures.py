"""A broker that fails after the commit: the caller's work stands, the loss is logged and told, nothing is raised."""

import logging

import pytest
from django.db import transaction

from django_delayq import BrokerUnavailable, Handler, brokers
from django_delayq.brokers.memory import MemoryBroker
from tests.api.support import Failing, Noted, waiting_ids

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = BrokerUnavailable("redis is away")


def test_it_is_logged_and_told_and_the_next_callback_runs(
    close_order: Handler[int, None],
    broker: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failed_signals: Noted,
) -> None:
    monkeypatch.setitem(brokers._backends, "default", Failing(broker, AWAY))
    after: list[str] = []
    with transaction.atomic():
        close_order.send(1, id="a")
        close_order.send(2, id="b")
        transaction.on_commit(lambda: after.append("ran"))
    assert after == ["ran"]
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "django_delayq")
    assert record.getMessage() == (
        "2 messages could not be sent after the commit; the first is 'a' (key 'order.close')."
    )
    assert getattr(record, "ids", None) == ["a", "b"]
    assert [(signal["id"], signal["error"], signal["sender"]) for signal in failed_signals] == [
        ("a", AWAY, close_order),
        ("b", AWAY, close_order),
    ]


def test_one_message_is_logged_in_the_singular(
    close_order: Handler[int, None],
    broker: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(brokers._backends, "default", Failing(broker, AWAY))
    with transaction.atomic():
        close_order.send(1, id="a")
    assert "1 message could not be sent after the commit" in caplog.text


def test_a_refused_duplicate_takes_no_other_send_with_it(
    close_order: Handler[int, None], broker: MemoryBroker, failed_signals: Noted
) -> None:
    close_order.send(1, id="a")
    with transaction.atomic():
        close_order.send(2, id="a", on_conflict="raise")
        close_order.send(3, id="b", on_conflict="raise")
    assert [signal["id"] for signal in failed_signals] == ["a"]
    assert set(waiting_ids(broker)) == {"a", "b"}


def test_a_receiver_that_raises_harms_neither(close_order: Handler[int, None], broker: MemoryBroker) -> None:
    from django_delayq.signals import message_sent

    def fails(**kwargs: object) -> None:
        raise RuntimeError("receiver broke")

    message_sent.connect(fails)
    try:
        with transaction.atomic():
            close_order.send(1, id="a")
        close_order.send(2, id="b")
    finally:
        message_sent.disconnect(fails)
    assert waiting_ids(broker) == ["a", "b"]
