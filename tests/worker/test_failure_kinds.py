"""A kind of failure that appears is announced once, and the kinds that a worker remembers are bounded."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Message, Retry
from django_delayq.brokers.base import SettleAction
from django_delayq.signals import failure_kind_appeared
from django_delayq.worker import failure_kinds
from tests.worker.rig import Rig, make_handler

KIND = f"ValueError in {__name__}.outcome"


def outcome(message: Message[Any]) -> None:
    match message.data:
        case "value":
            raise ValueError("x")
        case "key":
            raise KeyError("x")
        case "again":
            raise Retry(60)


@pytest.fixture
def appeared() -> Iterator[list[dict[str, Any]]]:
    """Yield what was told of new kinds of failures."""
    facts: list[dict[str, Any]] = []

    def note(**told: Any) -> None:
        facts.append(told)

    failure_kind_appeared.connect(note)
    yield facts
    failure_kind_appeared.disconnect(note)


def test_each_kind_is_announced_once_with_its_first_failure(
    rig: Rig, appeared: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    handler = make_handler(outcome)
    rig.send("1", "2", "3", data="value")
    rig.send("last", data="key", max_attempts=1)
    rig.send("meant", data="again")
    rig.drain(handler)

    assert {told["fingerprint"] for told in appeared} == {KIND, KIND.replace("Value", "Key")}
    (told,) = (told for told in appeared if told["fingerprint"] == KIND)
    assert told["sender"] is handler
    assert told["id"] in {"1", "2", "3"}
    facts = {name: told[name] for name in ("using", "key", "queue", "attempt", "error")}
    assert facts == {"using": "default", "key": "k", "queue": "default", "attempt": 1, "error": "ValueError: x"}
    (line,) = (record for record in caplog.records if KIND in record.getMessage())
    assert (line.levelno, line.__dict__["id"], line.__dict__["fingerprint"]) == (logging.WARNING, told["id"], KIND)
    assert "new to this worker" in line.getMessage()


def test_a_process_that_has_met_too_many_kinds_announces_no_more(
    rig: Rig, appeared: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_kinds, "MOST_KINDS", 1)
    rig.send("a", data="value")
    rig.send("b", data="key", delay_ms=10)
    rig.broker.advance(10)
    rig.drain(make_handler(outcome))
    assert len(appeared) == 1


def test_the_settlement_comes_first_and_a_receiver_that_raises_holds_up_none(rig: Rig) -> None:
    failures: list[int] = []

    def receiver(id: str, **told: Any) -> None:
        failures.append(rig.see(id).failures)
        raise SystemExit

    failure_kind_appeared.connect(receiver)
    try:
        rig.send("a", data="value")
        rig.send("b")
        worker = rig.drain(make_handler(outcome))
    finally:
        failure_kind_appeared.disconnect(receiver)
    assert failures == [1]
    assert worker.counts == {SettleAction.RETRY: 1, SettleAction.FINISH: 1}
