"""An id that is there already: what each on_conflict makes of it, wherever its message is."""

import pytest

from django_delayq.brokers.base import Header, NewMessage, OnConflict, SettleAction
from django_delayq.core.errors import DuplicateMessage
from django_delayq.core.message import State
from tests.brokers.rig import Rig, ids

MODES: list[OnConflict] = ["keep", "replace", "earliest", "latest", "raise"]
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("mode", "waits", "sent", "due"),
    [
        ("keep", HOUR, 2 * HOUR, HOUR),
        ("replace", HOUR, 2 * HOUR, 2 * HOUR),
        ("replace", 2 * HOUR, HOUR, HOUR),
        ("earliest", HOUR, 2 * HOUR, HOUR),
        ("earliest", 2 * HOUR, HOUR, HOUR),
        ("latest", HOUR, 2 * HOUR, 2 * HOUR),
        ("latest", 2 * HOUR, HOUR, 2 * HOUR),
    ],
)
def test_which_due_time_wins(rig: Rig, mode: OnConflict, waits: int, sent: int, due: int) -> None:
    (first,) = rig.send("a", delay_ms=waits)
    (second,) = rig.send("a", delay_ms=sent, on_conflict=mode)
    assert (second.created, second.running) == (False, False)
    assert second.due_ms == rig.get("a").due_ms == rig.get("a").header.scheduled_ms
    assert round((second.due_ms - first.due_ms + waits) / HOUR) == due / HOUR
    assert rig.total("sent") == 1


def test_earliest_and_latest_change_the_due_time_only(rig: Rig) -> None:
    for mode in ("earliest", "latest"):
        id = f"by {mode}"
        rig.send(id, delay_ms=HOUR, body=b"1", tag="old")
        rig.send(id, delay_ms=HOUR // 2 if mode == "earliest" else 2 * HOUR, body=b"2", tag="new", on_conflict=mode)
        assert (rig.get(id).body, rig.get(id).header.tag) == (b"1", "old")


def test_replace_takes_new_data_options_and_due_time(rig: Rig) -> None:
    rig.send("a", body=b"1", tag="old", expires_ms=5)
    rig.send("a", delay_ms=HOUR, body=b"2", max_attempts=3, on_conflict="replace")
    info = rig.get("a")
    assert (info.state, info.body) == (State.PENDING, b"2")
    assert (info.header.tag, info.header.expires_ms, info.header.max_attempts) == (None, None, 3)


@pytest.mark.parametrize(("queue", "key"), [("q", "new"), ("new", "k"), ("new", "new")])
def test_replace_moves_to_another_queue_and_key(rig: Rig, queue: str, key: str) -> None:
    rig.send("a")
    rig.send("a", queue=queue, key=key, on_conflict="replace")
    assert rig.claim() == []
    assert ids(rig.claim(queue=queue, key=key)) == ["a"]


def test_replace_moves_many_ids_from_many_sets(rig: Rig) -> None:
    for n in range(40):
        rig.send(f"{n:02}", key=f"from{n}", delay_ms=HOUR)
    many = [f"{n:02}" for n in range(40)]
    placed = rig.send(*many, on_conflict="replace")
    assert [answer.created for answer in placed] == [False] * 40
    assert sorted(ids(rig.claim())) == many


def test_a_conflict_with_another_set_leaves_the_message_there(rig: Rig) -> None:
    rig.send("a", key="first", delay_ms=HOUR)
    for mode in ("keep", "earliest", "latest"):
        rig.send("a", key="second", on_conflict=mode)
    assert rig.claim(key="second") == []
    assert ids(rig.claim(key="first")) == ["a"]


def test_replace_starts_failures_and_crashes_anew(rig: Rig) -> None:
    rig.send("a")
    rig.settle(rig.claim_one(), SettleAction.RETRY, error="once")
    rig.advance(1)
    rig.crash(times=1)
    assert (rig.get("a").failures, rig.get("a").crashes) == (1, 1)
    rig.send("a", on_conflict="replace")
    info = rig.get("a")
    assert (info.failures, info.crashes, info.error) == (0, 0, "")


def test_replace_clears_a_suspect(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    rig.send("a", on_conflict="replace")
    assert not rig.get("a").suspect
    assert rig.claim_suspect() == []
    assert ids(rig.claim()) == ["a"]


@pytest.mark.parametrize("mode", ["keep", "earliest"])
def test_a_suspect_stays_one_otherwise(rig: Rig, mode: OnConflict) -> None:
    rig.send("a")
    rig.crash(times=2)
    (placed,) = rig.send("a", delay_ms=HOUR, on_conflict=mode)
    assert not placed.created
    assert rig.claim() == []
    assert ids(rig.claim_suspect()) == ["a"]


def test_latest_delays_a_suspect(rig: Rig) -> None:
    rig.send("a")
    rig.crash(times=2)
    rig.send("a", delay_ms=HOUR, on_conflict="latest")
    assert rig.claim_suspect() == []
    rig.advance(HOUR)
    assert ids(rig.claim_suspect()) == ["a"]


@pytest.mark.parametrize("mode", MODES[:-1])
def test_nothing_changes_a_running_message(rig: Rig, mode: OnConflict) -> None:
    rig.send("a", body=b"1")
    claimed = rig.claim_one()
    before = rig.get("a")
    (placed,) = rig.send("a", delay_ms=HOUR, body=b"2", key="other", on_conflict=mode)
    assert (placed.created, placed.running, placed.due_ms) == (False, True, claimed.due_ms)
    assert rig.get("a") == before
    assert rig.settle(claimed, SettleAction.FINISH)


@pytest.mark.parametrize("mode", MODES)
def test_a_buried_message_is_no_conflict(rig: Rig, mode: OnConflict) -> None:
    rig.bury("a")
    (placed,) = rig.send("a", on_conflict=mode)
    assert placed.created
    assert rig.get("a").state is State.READY
    assert ids(rig.broker.queue.failed(10)) == ["a"]


def test_raise_names_the_ids_and_takes_the_others(rig: Rig) -> None:
    rig.send("waits", delay_ms=HOUR)
    rig.send("runs")
    rig.claim_one()
    batch = [NewMessage(id, Header("q", "k"), b"1", at_ms=0) for id in ("new", "waits", "runs", "new2")]
    with pytest.raises(DuplicateMessage, match=r"waits.*runs") as raised:
        rig.broker.queue.enqueue(batch, "raise")
    assert "new" not in str(raised.value)
    assert sorted(ids(rig.claim())) == ["new", "new2"]


def test_raise_is_silent_without_a_conflict(rig: Rig) -> None:
    assert [answer.created for answer in rig.send("a", "b", on_conflict="raise")] == [True, True]


@pytest.mark.parametrize("mode", MODES[:-1])
def test_a_conflict_within_one_batch_is_one_with_what_stands_before_it(rig: Rig, mode: OnConflict) -> None:
    puts = [
        NewMessage("a", Header("q", "k"), b"1", delay_ms=2 * HOUR),
        NewMessage("a", Header("q", "k"), b"2", delay_ms=HOUR),
        NewMessage("a", Header("q", "k"), b"3", delay_ms=3 * HOUR),
    ]
    placed = rig.broker.queue.enqueue(puts, mode)
    assert [answer.created for answer in placed] == [True, False, False]
    hours, body = {"keep": (2, b"1"), "replace": (3, b"3"), "earliest": (1, b"1"), "latest": (3, b"1")}[mode]
    assert round((rig.get("a").due_ms - rig.get("a").header.sent_ms) / HOUR) == hours
    assert rig.get("a").body == body
