"""Every attempt leaves a trace: the last in the columns of its row, the earlier ones in the history."""

from typing import Any

from django_delayq import (
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_message,
)
from django_delayq.brokers.base import Alarm, Claimed, SettleAction
from django_delayq.core.history import Ended, read
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.support.timestamps import from_ms
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, claim


def end(broker: DatabaseBackend, claimed: Claimed, verb: SettleAction, **fields: Any) -> None:
    assert broker.queue.apply([settlement(claimed, verb, **fields)]) == [True]


def lapse(database: str) -> None:
    ReadyMessage.objects.using(database).update(lease_until=5)


def claim_again(broker: DatabaseBackend, database: str, worker: str) -> list[Claimed]:
    """Claim what lapsed. Its alarm would be there again once the broker's lease lapses too; another comes before."""
    pk = ReadyMessage.objects.using(database).get().pk
    broker.queue.timer.schedule([Alarm("default", "k", str(pk))])
    return claim(broker, worker)


def outcomes(row: ReadyMessage | FinishMessage | ErrorMessage) -> list[Ended]:
    return [each.outcome for each in read(row.history)]


def test_a_first_attempt_that_finishes_is_in_its_row_alone(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker, "w1")
    started = claimed.claimed_ms + 1
    end(broker, claimed, SettleAction.FINISH, started_ms=started, ended_ms=started + 2)
    row = FinishMessage.objects.using(database).get()
    assert (row.worker, row.history) == ("w1", "[]")
    assert (row.started_at, row.ended_at) <= (from_ms(started), from_ms(started + 2))
    assert row.started_at is not None
    assert row.started_at <= row.ended_at


def test_a_worker_ahead_of_the_clock_ends_nothing_in_the_future(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker)
    ahead = claimed.due_ms + 3_600_000
    end(broker, claimed, SettleAction.FINISH, started_ms=ahead, ended_ms=ahead)
    row = FinishMessage.objects.using(database).get()
    assert row.started_at == row.ended_at
    assert row.ended_at < from_ms(ahead)


def test_a_worker_behind_the_clock_ends_nothing_before_it_was_claimed(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker)
    claimed_at = ReadyMessage.objects.using(database).get().started_at
    behind = claimed.due_ms - 3_600_000
    end(broker, claimed, SettleAction.FINISH, started_ms=behind, ended_ms=behind)
    assert FinishMessage.objects.using(database).get().ended_at == claimed_at


def test_failures_and_snoozes_are_kept_with_worker_times_and_traceback(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker, "w1")
    started = claimed.due_ms
    end(
        broker, claimed, SettleAction.RETRY, error="E: no\0", detail="Trace\0", started_ms=started, ended_ms=started + 1
    )
    (claimed,) = claim(broker, "w2")
    end(broker, claimed, SettleAction.SNOOZE)
    (claimed,) = claim(broker, "w3")
    end(broker, claimed, SettleAction.FINISH)
    row = FinishMessage.objects.using(database).get()
    failed, snoozed = read(row.history)
    assert (failed.attempt, failed.worker, failed.outcome) == (1, "w1", Ended.FAILED)
    assert (failed.started, failed.error, failed.traceback) == (started, "E: no\\x00", "Trace\\x00")
    assert started <= failed.ended <= started + 1
    assert (snoozed.attempt, snoozed.worker, snoozed.outcome) == (2, "w2", Ended.SNOOZED)
    assert row.worker == "w3"


def test_a_lapsed_lease_is_an_attempt_that_was_lost_by_its_worker(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker, "dead")
    claimed_at = ReadyMessage.objects.using(database).get().started_at
    lapse(database)
    (claimed,) = claim_again(broker, database, "w2")
    assert claimed.crashes == 1
    end(broker, claimed, SettleAction.FINISH)
    row = FinishMessage.objects.using(database).get()
    (lost,) = read(row.history)
    assert (lost.attempt, lost.worker, lost.outcome, lost.ended) == (1, "dead", Ended.LOST, 5)
    assert lost.started is not None
    assert from_ms(lost.started) == claimed_at
    assert (row.worker, row.crashes) == ("w2", 1)


def test_an_interrupted_attempt_counts_no_crash_and_is_kept(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker, "w1")
    end(broker, claimed, SettleAction.INTERRUPT)
    lapse(database)
    (claimed,) = claim_again(broker, database, "w2")
    assert claimed.crashes == 0
    row = ReadyMessage.objects.using(database).get()
    (interrupted,) = read(row.history)
    assert (interrupted.worker, interrupted.outcome) == ("w1", Ended.INTERRUPTED)


def test_a_handler_that_ends_after_its_interruption_is_the_last_attempt(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker, "w1")
    end(broker, claimed, SettleAction.INTERRUPT)
    end(broker, claimed, SettleAction.FINISH)
    row = FinishMessage.objects.using(database).get()
    assert (row.worker, row.history) == ("w1", "[]")


def test_three_deaths_are_two_in_the_history_and_the_last_in_the_row(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    for _ in range(2):
        (claimed,) = claim(broker, "w")
        end(broker, claimed, SettleAction.CRASH, error="signal 9")
    (claimed,) = broker.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w").messages
    end(broker, claimed, SettleAction.CRASH, error="signal 9")
    row = ErrorMessage.objects.using(database).get()
    assert outcomes(row) == [Ended.CRASHED, Ended.CRASHED]
    assert (row.crashes, row.error) == (3, "killed its worker 3 times: signal 9")
    assert row.started_at is not None


def test_a_buried_message_keeps_its_fingerprint_and_a_rescued_one_its_past(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker, "w1")
    end(broker, claimed, SettleAction.RETRY, error="E: 1", detail="T1")
    (claimed,) = claim(broker, "w2")
    end(
        broker,
        claimed,
        SettleAction.BURY,
        error="E: 2",
        detail="T2",
        failed=True,
        fingerprint="E in shop.f",
        started_ms=7,
    )
    row = ErrorMessage.objects.using(database).get()
    assert (row.fingerprint, row.started_at, outcomes(row)) == ("E in shop.f", from_ms(7), [Ended.FAILED])
    assert broker.queue.rescue(["a"]) == [True]
    again = ReadyMessage.objects.using(database).get()
    _, buried = read(again.history)
    assert (buried.attempt, buried.started, buried.worker) == (2, 7, "w2")
    assert (buried.outcome, buried.error, buried.traceback) == (Ended.BURIED, "E: 2", "T2")
    assert (again.worker, again.started_at) == ("", None)


def test_what_never_started_is_buried_without_a_start(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker)
    end(broker, claimed, SettleAction.BURY, error="expired")
    assert ErrorMessage.objects.using(database).get().started_at is None


def test_what_is_given_back_leaves_no_trace(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1)
    (claimed,) = claim(broker)
    end(broker, claimed, SettleAction.RELEASE)
    row = ReadyMessage.objects.using(database).get()
    assert (row.worker, row.started_at, row.history) == ("", None, "[]")


def test_a_replaced_message_begins_anew(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    end(broker, claimed, SettleAction.RETRY, error="E")
    send_delay_message("k", 2, id="a", on_conflict="replace")
    row = ReadyMessage.objects.using(database).get()
    assert (row.history, row.failures) == ("[]", 0)


def test_a_cancelled_message_keeps_its_past(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    end(broker, claimed, SettleAction.RETRY, error="E", delay_ms=60_000)
    assert cancel_delay_messages("a") == 1
    row = FinishMessage.objects.using(database).get()
    assert (outcomes(row), row.started_at) == ([Ended.FAILED], None)


def test_a_reschedule_of_a_lapsed_message_waits_until_its_crash_is_counted(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_message("k", 1, id="a")
    (late,) = claim(broker, "late")
    lapse(database)
    assert reschedule_delay_messages("a", delay=0) == 0
    broker.queue.maintain(lease_ms=LEASE_MS)
    assert reschedule_delay_messages("a", delay=0) == 1
    assert broker.queue.apply([settlement(late, SettleAction.FINISH)]) == [False]
    info = get_delay_message("a")
    assert info is not None
    (claimed,) = claim(broker, "w2")
    assert claimed.crashes == 1
    assert outcomes(ReadyMessage.objects.using(database).get()) == [Ended.LOST]


def test_a_reschedule_of_a_lapsed_message_never_starts_it_a_second_time(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a", at_most_once=True)
    claim(broker)
    lapse(database)
    assert reschedule_delay_messages("a", delay=0) == 0
    broker.queue.maintain(lease_ms=LEASE_MS)
    assert ErrorMessage.objects.using(database).get().crashes == 1
