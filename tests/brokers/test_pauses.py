"""Pauses: kept by the broker on its clock, and told to every sleeper. It is the workers who obey."""

import re
import threading

import pytest

from django_delayq.brokers.base import Pause, WorkerInfo
from tests.brokers.conftest import ALL, name
from tests.brokers.rig import LEASE_MS, Rig

HOUR = 3_600_000
LONG_S = 60.0  # far longer than a test may take

NAMES = [("mail", None), (None, "order.close"), ("mail", "order.close"), ("mail", "a:b:c"), ("ü", "☕")]


def now_ms(rig: Rig) -> int:
    return rig.now_us() // 1_000


@pytest.mark.parametrize(("queue", "key"), NAMES)
def test_a_pause_is_given_as_it_was_made_with_the_brokers_time(rig: Rig, queue: str | None, key: str | None) -> None:
    until_ms = now_ms(rig) + HOUR
    before_ms = now_ms(rig)
    rig.broker.presence.pause(Pause(queue, key, "the provider: down", until_ms))
    (pause,) = rig.broker.presence.pauses()
    assert (pause.queue, pause.key, pause.reason, pause.until_ms) == (queue, key, "the provider: down", until_ms)
    assert before_ms <= pause.paused_ms <= now_ms(rig)


def test_a_queue_a_key_and_both_are_three_pauses(rig: Rig) -> None:
    for queue, key in reversed(NAMES[:3]):
        rig.broker.presence.pause(Pause(queue, key, "x"))
    assert [(pause.queue, pause.key) for pause in rig.broker.presence.pauses()] == [
        (None, "order.close"),
        ("mail", None),
        ("mail", "order.close"),
    ]
    assert rig.broker.presence.resume("mail", None)
    assert [pause.names for pause in rig.broker.presence.pauses()] == [
        "key 'order.close'",
        "key 'order.close' in queue 'mail'",
    ]


def test_pauses_come_by_queue_and_then_by_key(rig: Rig) -> None:
    in_order = [("a", "k"), ("a-", None), ("a-", "k")]
    for queue, key in reversed(in_order):
        rig.broker.presence.pause(Pause(queue, key, "x"))
    assert [(pause.queue, pause.key) for pause in rig.broker.presence.pauses()] == in_order


def test_pausing_again_takes_the_new_reason_and_end(rig: Rig) -> None:
    rig.broker.presence.pause(Pause("mail", None, "old", now_ms(rig) + HOUR))
    rig.broker.presence.pause(Pause("mail", None, "new"))
    assert [(pause.reason, pause.until_ms) for pause in rig.broker.presence.pauses()] == [("new", None)]


def test_resume_tells_whether_it_was_paused(rig: Rig) -> None:
    assert not rig.broker.presence.resume("mail", None)
    rig.broker.presence.pause(Pause("mail", None, "x"))
    assert not rig.broker.presence.resume("mail", "order.close")
    assert not rig.broker.presence.resume(None, "mail")
    assert rig.broker.presence.resume("mail", None)
    assert not rig.broker.presence.resume("mail", None)
    assert rig.broker.presence.pauses() == []


def test_a_pause_ends_by_itself_at_its_time_and_not_before(rig: Rig) -> None:
    rig.broker.presence.pause(Pause("mail", None, "x", now_ms(rig) + HOUR))
    rig.broker.presence.pause(Pause("text", None, "y"))
    rig.advance(HOUR - 60_000)
    assert [pause.queue for pause in rig.broker.presence.pauses()] == ["mail", "text"]
    rig.advance(60_000)
    assert [pause.queue for pause in rig.broker.presence.pauses()] == ["text"]
    assert not rig.broker.presence.resume("mail", None)


def test_a_heartbeat_drops_no_pause_in_force_and_is_answered_with_them(rig: Rig) -> None:
    rig.broker.presence.pause(Pause("mail", None, "x"))
    rig.broker.presence.pause(Pause("text", None, "y", now_ms(rig) + HOUR))
    rig.advance(HOUR // 2)
    answer = rig.broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    assert [pause.queue for pause in rig.broker.presence.pauses()] == ["mail", "text"]
    assert answer.pauses == (None if rig.tells_of_all_pauses else rig.broker.presence.pauses())
    assert answer.workers is None or [worker.name for worker in answer.workers] == ["w"]
    assert [worker.name for worker in rig.broker.presence.workers()] == ["w"]


@pytest.mark.parametrize("rig", ALL, ids=name, indirect=True)
def test_a_pause_and_a_resume_each_end_the_wait_and_are_heard(rig: Rig) -> None:
    rig.broker.queue.claim([], lease_ms=LEASE_MS, worker="sleeper")
    rig.broker.queue.wait(0)  # where a new connection just woke it
    for change in (
        lambda: rig.broker.presence.pause(Pause("mail", None, "x")),
        lambda: rig.broker.presence.resume("mail", None),
    ):
        heard = rig.broker.presence.pause_version
        waiter = threading.Thread(target=rig.broker.queue.wait, args=(LONG_S,), daemon=True)
        waiter.start()
        change()
        waiter.join(LONG_S / 2)
        assert not waiter.is_alive()
        assert rig.broker.presence.pause_version > heard


def test_a_claim_without_wants_gives_nothing_and_sleeps_for_no_message(rig: Rig) -> None:
    rig.send("a")
    claims = rig.broker.queue.claim([], lease_ms=LEASE_MS, worker="w")
    assert (claims.messages, claims.next_due_ms, claims.more_available) == ([], None, False)
    assert [claimed.id for claimed in rig.claim()] == ["a"]


@pytest.mark.parametrize(
    ("queue", "key", "reason", "wrong"),
    [
        (None, None, "x", "nothing to pause"),
        ("a:b", None, "x", "contains a colon"),
        ("", None, "x", "queue='' is empty"),
        (None, "", "x", "key='' is empty"),
        ("mail", None, "", "reason='' is empty"),
        ("mail", None, "a\x1fb", "reason='a\\x1fb' contains"),
    ],
)
def test_a_pause_of_what_can_not_be_is_refused(queue: str | None, key: str | None, reason: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        Pause(queue, key, reason)
