"""What a worker tells: structured log lines, Django signals, a heartbeat file."""

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from django.dispatch import Signal

from django_delayq import Message, Retry, Snooze, signals
from django_delayq.brokers.base import ClaimRequest, Claims
from django_delayq.worker import lifecycle
from django_delayq.worker.lifecycle import HeartbeatFile
from tests.worker.rig import PATIENCE_S, Rig, make_handler


def outcome(message: Message[Any]) -> None:
    match message.data:
        case "fail":
            raise ValueError("x")
        case "snooze":
            raise Snooze(60)


async def async_outcome(message: Message[Any]) -> None:
    outcome(message)


class Heard:
    """The signals that were sent."""

    def __init__(self) -> None:
        self.all: list[tuple[Signal, dict[str, Any]]] = []

    def __call__(self, signal: Signal, **facts: Any) -> None:
        self.all.append((signal, facts))

    def of(self, signal: Signal) -> list[dict[str, Any]]:
        return [facts for heard, facts in self.all if heard is signal]


WORKERS = [signals.message_started, signals.message_finished, signals.message_retried, signals.message_failed]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    for signal in WORKERS:
        signal.connect(heard)
    yield heard
    for signal in WORKERS:
        signal.disconnect(heard)


@pytest.mark.parametrize("func", [outcome, async_outcome], ids=["sync", "async"])
def test_each_end_has_its_signal(rig: Rig, heard: Heard, func: Any) -> None:
    handler = make_handler(func, backoff=60)
    rig.send("ok")
    rig.send("retried", data="fail")
    rig.send("failed", data="fail", max_attempts=1)
    rig.send("snoozed", data="snooze")
    rig.drain(handler)

    assert {facts["id"] for facts in heard.of(signals.message_started)} == {"ok", "retried", "failed", "snoozed"}
    (finished,) = heard.of(signals.message_finished)
    assert finished["sender"] is handler
    assert (finished["id"], finished["key"], finished["queue"], finished["attempt"]) == ("ok", "k", "default", 1)
    assert finished["using"] == "default"
    assert finished["duration_ms"] >= 0
    retried = {facts["id"]: facts for facts in heard.of(signals.message_retried)}
    assert set(retried) == {"retried", "snoozed"}
    assert (retried["retried"]["delay_ms"], str(retried["retried"]["exception"])) == (60_000, "x")
    (failed,) = heard.of(signals.message_failed)
    assert (failed["id"], failed["error"]) == ("failed", "ValueError: x")


@pytest.mark.parametrize("func", [outcome, async_outcome], ids=["sync", "async"])
def test_a_receiver_that_raises_harms_nothing(rig: Rig, func: Any) -> None:
    def receiver(**facts: Any) -> None:
        raise SystemExit

    for signal in WORKERS:
        signal.connect(receiver)
    try:
        rig.send("a", "b")
        rig.drain(make_handler(func))
    finally:
        for signal in WORKERS:
            signal.disconnect(receiver)
    assert rig.broker.queue.counts().totals["finished"] == 2


def garbled(claims: Claims) -> Claims:
    for claimed in claims.messages:
        claimed.header = None
    return claims


@pytest.mark.parametrize("case", ["its lease ran out", "someone else wrote it", "interrupted by a stop"])
def test_what_is_buried_without_an_end_of_its_handler_is_told_once(
    rig: Rig, heard: Heard, caplog: pytest.LogCaptureFixture, gate: threading.Event, case: str
) -> None:
    started = threading.Event()

    def handler(message: Message[Any]) -> None:
        started.set()
        gate.wait(PATIENCE_S)

    rig.send("a", at_most_once=True)
    claim = rig.broker.queue.claim
    match case:
        case "its lease ran out":
            rig.broker.advance(1)
            claim([ClaimRequest("default", "k", 1)], lease_ms=0, worker="dead")
        case "someone else wrote it":
            rig.broker.queue.claim = lambda *args, **kwargs: garbled(claim(*args, **kwargs))  # type: ignore[method-assign]
        case _:
            worker = rig.start(make_handler(handler), shutdown_timeout=0.0)
            assert started.wait(PATIENCE_S)
            worker.stop()
            rig.join()
    if not started.is_set():
        rig.drain(make_handler(handler))
    ((_, facts),) = [(signal, facts) for signal, facts in heard.all if signal is signals.message_failed]
    assert (facts["id"], facts["attempt"], facts["using"]) == ("a", 1, "default")
    assert facts["error"] == rig.see("a").error
    assert caplog.text.count("Message 'a' (") == caplog.text.count("failed for good: ") == 1


def test_a_message_that_someone_else_removed_is_told_by_its_id(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    claim = rig.broker.queue.claim

    def claim_without_body(*args: Any, **kwargs: Any) -> Claims:
        claims = claim(*args, **kwargs)
        claims.without_body = ["gone"]
        return claims

    rig.broker.queue.claim = claim_without_body  # type: ignore[method-assign]
    rig.drain(make_handler(outcome))
    assert "Message 'gone' is gone" in caplog.text


def test_log_lines_carry_what_a_log_is_searched_by(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("ok", trace_id="trace")
    rig.send("retried", data="fail")
    rig.send("failed", data="fail", max_attempts=1)
    with caplog.at_level(logging.DEBUG, "django_delayq"):
        worker = rig.drain(make_handler(outcome))
    all_records: list[Any] = caplog.records
    records = {record.id: record for record in all_records if hasattr(record, "lateness_ms")}
    levels = {id: record.levelname for id, record in records.items()}
    assert levels == {"ok": "DEBUG", "retried": "WARNING", "failed": "ERROR"}
    ok = records["ok"]
    assert (ok.key, ok.queue, ok.attempt, ok.trace_id, ok.worker) == ("k", "default", 1, "trace", worker.name)
    assert ok.token > 0
    assert ok.duration_ms >= 0
    assert ok.lateness_ms >= 0
    assert records["failed"].exc_info[0] is ValueError


def test_no_id_and_no_error_forges_a_log_line_or_takes_over_a_terminal(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message[Any]) -> None:
        raise ValueError("\x1b[2J\r\n2026 ERROR forged \u202e\u200b")

    rig.send("id\u202e\u200b\x1b[31m", max_attempts=1)
    rig.send("again")
    rig.drain(make_handler(handler))
    assert "ValueError" in caplog.text
    assert "Traceback" in caplog.text
    assert "\\x1b[2J\\r\n    2026" in caplog.text  # of a traceback, lines stay lines
    assert not {"\x1b", "\r", "\u202e", "\u200b"} & set(caplog.text)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert any(record.exc_info for record in caplog.records)  # whole, for what groups errors


def test_a_retry_that_an_error_made_necessary_shows_that_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: Message[Any]) -> None:
        if message.data == "wait":
            raise Retry(delay="1h")
        try:
            raise ConnectionError("the bank hung up")
        except ConnectionError as error:
            raise Retry(delay="1h") from error

    rig.send("asked", data="wait")
    rig.drain(make_handler(handler))
    assert "Traceback" not in caplog.text
    rig.send("failed")
    rig.drain(make_handler(handler))
    assert "ConnectionError: the bank hung up" in caplog.text


def test_the_traceback_of_an_attempt_is_made_once_for_its_record_and_its_log_line(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def counted(*arguments: Any) -> list[str]:
        nonlocal made
        made += 1
        return format_exception(*arguments)

    monkeypatch.setattr("traceback.format_exception", counted)
    rig.send("retried", data="fail")
    rig.send("failed", data="fail", max_attempts=1)
    rig.drain(make_handler(outcome))
    assert caplog.text.count('raise ValueError("x")') == 2
    assert made == 2


def test_a_broker_that_lost_its_record_is_an_error_and_a_signal(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    upkeep = rig.broker.queue.maintain

    def upkeep_of_a_restarted_one(*, lease_ms: int) -> Any:
        upkept = upkeep(lease_ms=lease_ms)
        upkept.lost_record = "it restarted without its data"
        return upkept

    monkeypatch.setattr(rig.broker, "maintain", upkeep_of_a_restarted_one)
    signals.broker_changed.connect(heard)
    try:
        rig.drain(make_handler(outcome))
    finally:
        signals.broker_changed.disconnect(heard)
    assert heard.all[0][1]["reason"] == "it restarted without its data"
    assert "may be gone: it restarted without its data" in caplog.text


def test_a_heartbeat_is_a_touched_file(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    HeartbeatFile(path, lambda state: None).beat()
    assert path.exists()


def test_a_heartbeat_that_cannot_be_written_is_said_once_until_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "EVERY_S", 0)
    directory = tmp_path / "late"
    beating = HeartbeatFile(directory / "beat", lambda state: None)
    said = []
    for exists in (False, False, True, False):
        if exists:
            directory.mkdir()
        elif directory.exists():
            shutil.rmtree(directory)
        caplog.clear()
        beating.beat()
        said.append(caplog.text.count("can't be touched"))
    assert said == [1, 0, 0, 1]


def test_an_async_handler_that_is_interrupted_is_told_as_no_failure(
    rig: Rig, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    started = threading.Event()

    async def handler(message: Message[Any]) -> None:
        started.set()
        await asyncio.sleep(PATIENCE_S)

    rig.send("a")
    with caplog.at_level(logging.WARNING, "django_delayq"):
        worker = rig.start(make_handler(handler, max_attempts=1), shutdown_timeout=0.0)
        assert started.wait(PATIENCE_S)
        worker.stop()
        rig.join()
    assert heard.of(signals.message_failed) == heard.of(signals.message_retried) == []
    assert [record.getMessage() for record in caplog.records] == [
        "Message 'a' (k): its worker stops, and its handler was cancelled."
    ]
