"""Settlements reach the broker in batches, through outages, and never after the lease is lost."""

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from django_delayq import BrokerRefused, BrokerUnavailable, Message, Snooze
from django_delayq.brokers.base import (
    CancelRequest,
    Claimed,
    ClaimRequest,
    Header,
    NewMessage,
    SettleAction,
    Transition,
)
from django_delayq.core.errors import StoreUnavailable
from django_delayq.core.message import State
from django_delayq.worker import settler as settling_module
from django_delayq.worker.leases import Lease, Leases
from django_delayq.worker.logs import OutageLog
from django_delayq.worker.settler import Settler
from tests.brokers.rig import end_of, settlement
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


class SettleFailingBroker(WatchedBroker):
    """The first settles fail; `batches` are the sizes of those that worked."""

    failures: list[Exception]
    batches: list[int]

    def apply(self, settlements: Sequence[Transition]) -> list[bool | CancelRequest]:
        if self.failures:
            raise self.failures.pop()
        self.batches.append(len(settlements))
        return super().apply(settlements)


class LostReplyBroker(WatchedBroker):
    """The first settle is done, but its reply is lost."""

    lose = True

    def apply(self, settlements: Sequence[Transition]) -> list[bool | CancelRequest]:
        settled = super().apply(settlements)
        if self.lose:
            self.lose = False
            raise BrokerUnavailable("The reply was lost.")
        return settled


def nothing(message: Message[Any]) -> None: ...


@pytest.mark.parametrize("fault", [BrokerUnavailable("away"), BrokerRefused("full"), RuntimeError("a bug")], ids=repr)
def test_a_settlement_is_sent_again_until_the_broker_takes_it(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling_module, "REFUSED_PAUSE_S", 0.05)
    rig = Rig(broker_class=SettleFailingBroker)
    assert isinstance(rig.broker, SettleFailingBroker)
    rig.broker.failures, rig.broker.batches = [fault, fault], []
    rig.send("a")
    rig.start(make_handler(nothing))
    rig.until_gone("a")
    rig.stop()
    assert rig.broker.batches == [1]
    assert rig.broker.counts().totals["finished"] == 1


@pytest.mark.parametrize(("error", "action"), [(ValueError("no"), "retry"), (Snooze("1h"), "snooze")], ids=repr)
def test_a_message_that_would_wait_again_is_told_to_give_way_to_the_send_that_was_kept(
    error: Exception, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    again = NewMessage("a", Header("default", "k"), b"2", while_running="again")

    def handler(message: Message[Any]) -> None:
        if message.data == 2:
            return
        rig.broker.queue.enqueue([again], "replace")
        raise error

    with caplog.at_level(logging.INFO, "django_delayq"):
        rig.send("a")
        rig.start(make_handler(handler))
        rig.until_gone("a")
        rig.stop()
    told = f"Message 'a' (k): in place of its {action}, the send that was kept until its run ended runs."
    assert caplog.text.count(told) == caplog.text.count("in place of") == 1


def test_fast_messages_are_settled_in_batches() -> None:
    rig = Rig(broker_class=SettleFailingBroker)
    assert isinstance(rig.broker, SettleFailingBroker)
    rig.broker.failures, rig.broker.batches = [], []
    rig.send(*map(str, range(1_000)))
    rig.drain(make_handler(nothing))
    assert sum(rig.broker.batches) == 1_000
    assert len(rig.broker.batches) <= 100


def test_a_batch_gathers_until_something_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_module, "LINGER_S", 3_600)
    rig = Rig(broker_class=SettleFailingBroker)
    assert isinstance(rig.broker, SettleFailingBroker)
    rig.broker.failures, rig.broker.batches = [], []
    rig.send(*map(str, range(50)))
    rig.broker.advance(1)
    claims = rig.broker.claim([ClaimRequest("default", "k", 50)], lease_ms=60_000, worker="w")
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    settler.start()
    handler = make_handler(nothing)
    for claimed in claims.messages:
        lease = Lease(claimed, handler, 0.0, math.inf, 0.0)
        settler.add(lease, settlement(claimed, SettleAction.FINISH), urgent=claimed is claims.messages[-1])
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] == 50)
    settler.close(PATIENCE_S)
    assert rig.broker.batches == [50]


def test_a_settlement_whose_reply_was_lost_is_no_overrun(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(broker_class=LostReplyBroker)
    rig.send("a")
    with caplog.at_level(logging.WARNING, "django_delayq"):
        rig.drain(make_handler(nothing))
    assert rig.broker.queue.counts().totals["finished"] == 1
    assert "sent twice" in caplog.text
    assert "overrun" not in caplog.text


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (BrokerUnavailable("It is away."), "The broker is back."),
        (StoreUnavailable("It is away."), "The database is back."),
    ],
)
def test_an_outage_is_said_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, error: BrokerUnavailable, end: str
) -> None:
    rig = Rig(broker_class=SettleFailingBroker)
    assert isinstance(rig.broker, SettleFailingBroker)
    rig.broker.failures, rig.broker.batches = [error] * 3, []
    rig.send("a")
    with caplog.at_level(logging.INFO, "django_delayq"):
        rig.drain(make_handler(nothing))
    assert caplog.text.count("It is away.") == 1
    assert caplog.text.count(end) == caplog.text.count("is back") == 1


@pytest.mark.parametrize("is_taken", [False, True], ids=["its own all the same", "another's"])
def test_a_settlement_whose_lease_could_not_be_renewed_is_for_the_broker_to_judge(
    is_taken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.send("a")
    rig.broker.advance(1)
    claim = partial(rig.broker.queue.claim, [ClaimRequest("default", "k", 1)], worker="w")
    (claimed,) = claim(lease_ms=1_000).messages
    if is_taken:
        rig.broker.advance(1_000)
        rig.broker.queue.maintain(lease_ms=1_000)
        claim(lease_ms=60_000)
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    lease = Lease(claimed, make_handler(nothing), 0.0, held_until=0.0, clock_ms=0.0)
    settler.add(lease, settlement(claimed, SettleAction.FINISH))
    settler.start()
    settler.close(PATIENCE_S)
    assert rig.broker.queue.counts().totals["finished"] == int(not is_taken)
    assert ("overrun" in caplog.text) == is_taken
    assert "runs again" not in caplog.text  # another may have finished it, or it may start only once


def test_who_is_refused_is_sent_to_explain(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(broker_class=WatchedBroker)
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    handler = make_handler(nothing)
    settler.add(
        Lease(Claimed("a", 1, 0, None, b""), handler, 0.0, held_until=0.0, clock_ms=0.0),
        end_of("a", 1, SettleAction.FINISH, "default", "k"),
    )
    settler.start()
    settler.close(PATIENCE_S)
    assert "overrun: message 'a'" in caplog.text
    assert "delayq explain" in caplog.text


@pytest.mark.parametrize("is_known_as_lost", [False, True], ids=["refused", "not renewed"])
def test_an_end_that_a_dead_process_may_have_settled_is_no_overrun(
    is_known_as_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(broker_class=WatchedBroker)
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    for number in range(3):
        lease = Lease(Claimed(f"{number}", 1, 0, None, b""), make_handler(nothing), 0.0, math.inf, 0.0)
        lease.maybe_settled, lease.lost = number > 0, is_known_as_lost
        settler.add(lease, end_of(f"{number}", 1, SettleAction.FINISH, "default", "k"))
    with caplog.at_level(logging.INFO, "django_delayq"):
        settler.start()
        settler.close(PATIENCE_S)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "overrun: message '0'" in caplog.text
    assert "2 message(s) that had ended in a worker process before it died need nothing more" in caplog.text


class BadSettlementBroker(WatchedBroker):
    """Refuses whatever is settled together with a message named "bad"."""

    fault: Exception

    def apply(self, settlements: Sequence[Transition]) -> list[bool | CancelRequest]:
        if any(settlement.id == "bad" for settlement in settlements):
            raise self.fault
        return super().apply(settlements)


@pytest.mark.parametrize("fault", [BrokerRefused("a foreign key"), UnicodeError("a bug")], ids=repr)
def test_a_settlement_that_is_refused_for_good_lapses_and_holds_up_no_other(
    fault: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling_module, "REFUSED_PAUSE_S", 0.05)
    rig = Rig(1_000, BadSettlementBroker)
    assert isinstance(rig.broker, BadSettlementBroker)
    rig.broker.fault = fault
    rig.send("bad", *map(str, range(20)))
    rig.broker.advance(1)
    rig.start(make_handler(nothing))
    rig.until_gone(*map(str, range(20)))
    rig.broker.until(lambda: rig.broker.queue.counts().totals["reclaimed"] >= 1)  # renewed no more
    rig.send("later")
    rig.until_gone("later")
    rig.stop()
    assert "Message 'bad' (k): its finish is refused" in caplog.text


class UnfinishableBroker(WatchedBroker):
    """Takes no finish."""

    def apply(self, settlements: Sequence[Transition]) -> list[bool | CancelRequest]:
        if any(settlement.action is SettleAction.FINISH for settlement in settlements):
            raise BrokerRefused("no finish is taken")
        return super().apply(settlements)


def test_a_finish_that_is_refused_for_good_is_a_failure_that_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settling_module, "REFUSED_PAUSE_S", 0.4)
    rig = Rig(1_000, UnfinishableBroker)  # its tries take two leases
    starts: list[int] = []
    rig.send("a")
    rig.broker.advance(1)
    rig.start(make_handler(lambda message: starts.append(message.attempt), max_attempts=2))
    rig.broker.until(lambda: rig.see("a").failures == 1)
    rig.broker.advance(20_000)  # twice the pause after the first
    rig.until_state("a", State.FAILED)
    rig.stop()
    assert starts == [1, 2]
    assert rig.see("a").error == "its finish is refused: BrokerRefused: no finish is taken"
    assert rig.broker.queue.counts().totals["reclaimed"] == 0
    assert caplog.text.count("Its attempt counts as failed") == 2


def test_a_finish_that_is_refused_for_good_counts_no_failure_of_a_lease_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settling_module, "REFUSED_TRIES", 1)
    rig = Rig(broker_class=UnfinishableBroker)
    rig.send("a")
    rig.broker.advance(1)
    claim = partial(rig.broker.queue.claim, [ClaimRequest("default", "k", 1)], worker="w")
    (claimed,) = claim(lease_ms=1_000).messages
    rig.broker.advance(1_000)
    rig.broker.queue.maintain(lease_ms=1_000)
    claim(lease_ms=60_000)
    lease = Lease(claimed, make_handler(nothing), 0.0, held_until=0.0, clock_ms=0.0)
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    settler.add(lease, settlement(claimed, SettleAction.FINISH))
    settler.start()
    settler.close(PATIENCE_S)
    assert "its finish is refused (BrokerRefused: no finish is taken). Its lease is lost." in caplog.text
    assert "counts as failed" not in caplog.text
    assert rig.see("a").failures == 0


class Raising(logging.Filter):
    """A site's logging filter with a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ZeroDivisionError


def test_a_logging_filter_that_raises_ends_no_thread_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_delayq")  # so that each line meets it
    broken = Raising()
    rig = Rig(1_000, SettleFailingBroker)
    assert isinstance(rig.broker, SettleFailingBroker)
    rig.broker.failures, rig.broker.batches = [BrokerUnavailable("away"), BrokerRefused("full")], []
    logger = logging.getLogger("django_delayq")
    logger.addFilter(broken)
    try:
        worker = rig.start(make_handler(nothing))
        rig.send("a")
        rig.until_gone("a")
        rig.send("b")
        rig.until_gone("b")
        rig.stop()
        assert rig.ended_well == {worker.name: True}
    finally:
        logger.removeFilter(broken)


@pytest.mark.parametrize(("crashes", "counted"), [(0, SettleAction.CRASH), (2, SettleAction.BURY)])
def test_the_crash_that_buries_a_message_counts_as_a_bury(crashes: int, counted: SettleAction) -> None:
    rig = Rig()
    rig.send("a")
    rig.broker.advance(1)
    (claimed,) = rig.broker.queue.claim([ClaimRequest("default", "k", 1)], lease_ms=60_000, worker="w").messages
    claimed.crashes = crashes
    outage_log = OutageLog()
    settler = Settler(rig.broker, Leases(rig.broker, 60_000, outage_log), outage_log)
    lease = Lease(claimed, make_handler(nothing), 0.0, math.inf, 0.0)
    settler.add(lease, settlement(claimed, SettleAction.CRASH, error="died"))
    settler.start()
    settler.close(PATIENCE_S)
    assert settler.counts == {counted: 1}
