"""`delayq status` shows every figure, and no more than is true."""

import pytest

from django_delayq.brokers.base import Backend, ExecutorInfo, WorkerInfo
from tests.commands.support import Clock, bury, claim, delayq, delayq_json, send, serve

DAY_MS = 86_400_000


def test_counts_each_state_and_each_queue_and_key(carrying: Backend) -> None:
    bury(carrying, "e")
    send(carrying, "r1", "r2", "r3")
    claim(carrying)
    send(carrying, "p", queue="mail", key="order.remind", delay_ms=DAY_MS)
    seen = delayq_json("status")
    assert seen["states"] == {"pending": 1, "ready": 2, "running": 1, "error": 1}
    sets = [(each["queue"], each["key"], each["pending"], each["ready"]) for each in seen["waiting"]]
    assert sets == [("default", "order.close", 0, 2), ("mail", "order.remind", 1, 0)]
    assert seen["totals"]["sent"] == 5


def test_a_key_is_parked_until_a_live_worker_asks_for_it_in_its_queue(broker: Backend) -> None:
    send(broker, "a")
    send(broker, "b", queue="mail")
    assert [each["parked"] for each in delayq_json("status")["waiting"]] == [True, True]
    serve(broker, "order.close")
    seen = delayq_json("status")
    assert [each["parked"] for each in seen["waiting"]] == [False, True]
    assert [worker["name"] for worker in seen["workers"]] == ["host:1"]
    assert "parked keys: 1" in delayq("status")


def test_a_worker_tells_how_many_messages_it_runs_at_once(broker: Backend) -> None:
    executors = [ExecutorInfo(32, {"order.close": 4}), ExecutorInfo(100, {"order.remind": 100})]
    broker.presence.heartbeat(
        WorkerInfo("host:1", ["default"], ["order.close", "order.remind"], 0, 0, executors=executors)
    )
    (worker,) = delayq_json("status")["workers"]
    assert worker["executors"] == [
        {"most": 32, "keys": {"order.close": 4}},
        {"most": 100, "keys": {"order.remind": 100}},
    ]


def test_lag_and_next_due_are_those_of_the_oldest_ready_message(clocked_broker: Backend, clock: Clock) -> None:
    send(clocked_broker, "a", delay_ms=1_000)
    send(clocked_broker, "b", key="order.remind", delay_ms=2_000)
    assert delayq_json("status")["lag_ms"] == 0
    clock.now_ms += 91_000
    seen = delayq_json("status")
    assert seen["lag_ms"] == 90_000
    assert [each["lag_ms"] for each in seen["waiting"]] == [90_000, 89_000]
    assert seen["next_due_ms"] == clock.now_ms - 90_000
    assert "lag: 1m30s" in delayq("status")


def test_instants_are_iso_8601_in_utc_and_epoch_milliseconds(clocked_broker: Backend) -> None:
    send(clocked_broker, "a", delay_ms=1_234)
    seen = delayq_json("status")
    assert seen["next_due_at"] == "2027-01-15T08:00:01.234Z"
    assert seen["next_due_ms"] == 1_800_000_001_234


@pytest.mark.parametrize(("off_ms", "words"), [(DAY_MS, "ahead of"), (-DAY_MS, "behind")])
def test_a_clock_that_differs_from_the_brokers_is_told(
    clocked_broker: Backend, clock: Clock, off_ms: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: (clock.now_ms - off_ms) * 1_000_000)
    assert delayq_json("status")["clock_skew_ms"] == off_ms
    assert f"the broker's clock is 1d {words} this machine's" in delayq("status")


def test_clocks_that_agree_show_no_skew(broker: Backend) -> None:
    assert delayq_json("status")["clock_skew_ms"] == 0


def test_says_what_is_missing_when_nothing_waits_and_nobody_works(broker: Backend) -> None:
    shown = delayq("status")
    assert "Nothing waits." in shown
    assert "workers: none is live; start one" in shown
    assert "next due: -" in shown


def test_begins_with_whether_a_worker_lives_what_is_due_and_what_failed(clocked_broker: Backend, clock: Clock) -> None:
    bury(clocked_broker, "e")
    send(clocked_broker, "a")
    send(clocked_broker, "b", key="order.remind")
    send(clocked_broker, "c", queue="mail")
    delayq("pause", "mail", "--reason", "x")
    clock.now_ms += 90_000
    serve(clocked_broker, "order.close")
    _server, workers, due, failed, *rest = delayq("status").splitlines()
    assert workers == "workers: 1 live, running 0"
    assert due == "due now: 3, the first for 1m30s, 2 parked, 1 paused"
    assert failed == "failed: 1, in the last hour 1; `manage.py delayq errors` lists them"
    assert "pending 0, ready 3, running 0" in rest, "what failed is not told twice"


def test_says_what_a_crash_of_the_broker_can_lose(broker: Backend) -> None:
    assert delayq_json("status")["server"]["durability"] == broker.report().durability != ""
    assert f"durability: {broker.report().durability}" in delayq("status")


def test_the_json_has_one_shape_whatever_there_is(broker: Backend) -> None:
    send(broker, "a")
    serve(broker, "order.close")
    seen = delayq_json("status")
    assert list(seen) == [
        *("alias", "now_at", "now_ms", "server", "broker_away", "states", "capped", "in_part", "suspects"),
        "retried",
        *("errors_last_hour", "totals", "next_due_at", "next_due_ms", "lag_ms", "clock_skew_ms"),
        "broker_skew_ms",
        *(
            "last_hour",
            "last_day",
            "last_day_by_key",
            "forecast",
            "untimed",
            "schedules",
            "waiting",
            "pauses",
            "workers",
        ),
    ]
    assert list(seen["server"]) == ["server", "durability", "warnings", "problems"]
    assert list(seen["waiting"][0]) == [
        *("queue", "priority", "key", "pending", "ready", "pending_capped", "ready_capped"),
        *("next_due_at", "next_due_ms", "lag_ms", "parked", "paused"),
    ]
    assert list(seen["workers"][0]) == [
        *("name", "queues", "keys", "running", "executors", "runs", "started_at", "started_ms", "seen_at", "seen_ms"),
    ]
