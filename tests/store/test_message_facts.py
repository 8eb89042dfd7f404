"""`delayq explain` with a store tells the whole history of an id, wherever its rows are."""

import re
from typing import Any

import pytest
from django.core.management.base import CommandError

from django_delayq import cancel_delay_messages, send_delay_message
from django_delayq.brokers.base import Claimed, SettleAction, WorkerInfo
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import settlement
from tests.commands.support import delayq, delayq_json
from tests.docs.tables import codes, tables
from tests.store.support import claim


def end(broker: DatabaseBackend, claimed: Claimed, verb: SettleAction, **fields: Any) -> None:
    assert broker.queue.apply([settlement(claimed, verb, **fields)]) == [True]


def fail_once(broker: DatabaseBackend) -> None:
    """A message that failed and is ready again."""
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker, "w1")
    end(
        broker,
        claimed,
        SettleAction.RETRY,
        error="ValueError: no",
        detail="Traceback\n  line\n",
        started_ms=claimed.due_ms,
    )


def test_a_waiting_message_tells_its_attempts_its_row_and_its_alarm(broker: DatabaseBackend) -> None:
    broker.presence.heartbeat(WorkerInfo("w1", ["default"], ["k"], 0, 0))
    fail_once(broker)
    shown = delayq("explain", "a")
    assert "attempts: 1\n  1 failed " in shown
    assert ", w1: ValueError: no\n    Traceback\n      line\n" in shown
    assert "the only one of this id" in shown
    assert "alarm: rings " in shown
    assert "next: The first worker with a free slot runs it." in shown


def test_a_running_message_says_since_when_and_that_its_alarm_is_claimed(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker, "w1")
    shown = delayq("explain", "a")
    assert "held by: w1" in shown
    assert "runs since: " in shown
    assert "alarm: claimed" in shown
    assert "attempts: none is over" in shown


def test_a_far_message_has_no_alarm_yet(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="2h")
    assert "alarm: none; it gets one some seconds before it is due" in delayq("explain", "a")


def test_a_finished_message_tells_every_attempt(broker: DatabaseBackend) -> None:
    fail_once(broker)
    (claimed,) = claim(broker, "w2")
    end(broker, claimed, SettleAction.FINISH)
    facts = delayq_json("explain", "a")["facts"]
    assert [(each["attempt"], each["outcome"], each["worker"]) for each in facts["attempts"]] == [
        (1, "failed", "w1"),
        (2, "finished", "w2"),
    ]
    assert facts["ended_ms"] == facts["attempts"][-1]["ended_ms"]
    shown = delayq("explain", "a")
    assert shown.startswith("a: finished\n")
    assert "alarm: none\n" in shown
    assert "next: Nothing: it is over." in shown


def test_a_cancelled_message_is_told_of(broker: DatabaseBackend) -> None:
    fail_once(broker)
    assert cancel_delay_messages("a") == 1
    shown = delayq("explain", "a")
    assert shown.startswith("a: cancelled\n")
    assert re.search(r"^was due: \S+$", shown, re.MULTILINE), "it is not due any more"
    assert "attempts: 1\n" in shown
    with pytest.raises(CommandError, match=r"Not cancelled: 'a' \(it is cancelled\), 'b' \(no such message\)"):
        delayq("cancel", "a", "b")


def test_a_buried_message_tells_its_fingerprint_and_its_last_attempt_once(broker: DatabaseBackend) -> None:
    fail_once(broker)
    (claimed,) = claim(broker, "w2")
    end(
        broker,
        claimed,
        SettleAction.BURY,
        error="KeyError: 'x'",
        detail="Last",
        failed=True,
        fingerprint="KeyError in shop.f",
    )
    shown = delayq("explain", "a")
    assert "fingerprint: KeyError in shop.f" in shown
    assert shown.count("    Last\n") == 1
    assert "attempts: 2\n" in shown
    assert "next: Nothing until it is rescued, purged, or pruned: delayq prune --errors-before.\n" in shown


def test_of_several_rows_of_one_id_the_newest_is_told_and_the_others_are_counted(broker: DatabaseBackend) -> None:
    for verb in (SettleAction.BURY, SettleAction.FINISH):
        send_delay_message("k", 1, id="a")
        (claimed,) = claim(broker)
        end(broker, claimed, verb, error="")
    assert delayq_json("explain", "a")["state"] == "finished"
    assert "the newest of 2 of this id" in delayq("explain", "a")
    send_delay_message("k", 1, id="a", delay="1h")
    seen = delayq_json("explain", "a")
    assert (seen["state"], seen["facts"]["rows"]) == ("pending", 3)


@pytest.mark.usefixtures("gives_up_soon")
def test_the_row_tells_also_while_the_broker_is_away(stored_delayq: dict[str, Any], settings: Any) -> None:
    settings.DELAYQ = {"default": {**stored_delayq, "LOCATION": "unix:///nowhere/redis.sock"}}
    send_delay_message("k", 1, id="a")
    assert "alarm: not known, the broker is away\n" in delayq("explain", "a")
    assert delayq_json("explain", "a")["facts"]["alarms"] is None


def test_an_id_that_has_no_row_is_named(broker: DatabaseBackend) -> None:
    with pytest.raises(CommandError, match="No table has a message 'nobody': it was pruned or purged, or never sent"):
        delayq("explain", "nobody")


EACH_OF_ALARMS = (
    "explain, each of alarms (null if the broker is away, or is one that can't be asked: RabbitMQ, or the database"
    " alone)"
)


def test_the_facts_have_the_keys_that_the_reference_names(broker: DatabaseBackend) -> None:
    (table,) = tables("reference/commands.md", "JSON")
    told = {what.replace("`", ""): codes(keys) for what, keys in table}
    fail_once(broker)
    facts = delayq_json("explain", "a")["facts"]
    assert list(facts) == told["explain, facts (null without a store)"]
    assert [list(each) for each in facts["alarms"]] == [told[EACH_OF_ALARMS]]
    assert [list(each) for each in facts["attempts"]] == [told["explain, each of attempts"]]
