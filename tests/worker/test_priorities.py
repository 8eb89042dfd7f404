"""Priorities: of the messages of a queue that are due, those of a higher priority start first, whatever their keys."""

import threading
from collections import Counter
from random import Random
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import BATCH, Header, NewMessage, Pause, pages
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.core.lanes import lane_of
from django_delayq.worker import maintenance, prefetch
from django_delayq.worker.options import Options, served_queues
from django_delayq.worker.plan import claim_order
from django_delayq.worker.prefetch import MAX_PER_SLOT
from django_delayq.worker.worker import Worker
from tests.worker.rig import PATIENCE_S, Rig, make_handler

COUNT = 500


def send(rig: Rig, priority: int, count: int = COUNT, *, queue: str = "default", key: str = "k") -> None:
    lane = lane_of(queue, priority)
    for ids in pages([f"{key}-{lane}-{n}" for n in range(count)], BATCH):
        rig.send(*ids, queue=lane, key=key)


def overtook(got: list[Any], one: Any) -> int:
    """Return how many others ran before the last of these."""
    last = len(got) - got[::-1].index(one)
    return last - got.count(one)


@pytest.mark.parametrize("keys", [("k", "k", "k"), ("low", "middle", "high")], ids=["one key", "a key each"])
def test_of_what_is_due_a_higher_priority_runs_first(rig: Rig, keys: tuple[str, str, str]) -> None:
    got: list[int] = []
    for priority, key in zip((-20, 0, 7), keys, strict=True):
        send(rig, priority, key=key)
    handlers = [make_handler(lambda message: got.append(message.priority), key) for key in dict.fromkeys(keys)]
    rig.drain(*handlers, threads=1, max_threads=1)
    assert Counter(got) == dict.fromkeys((7, 0, -20), COUNT)
    assert overtook(got, 7) <= MAX_PER_SLOT
    assert overtook(got, 0) - COUNT <= 2 * MAX_PER_SLOT


@pytest.mark.parametrize("keys", [("k", "k"), ("low", "high")], ids=["one key", "a key each"])
def test_of_slow_messages_no_lower_one_starts_before_a_higher_one_that_was_due(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, str]
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # as if each message took longer: none is fetched ahead
    got: list[int] = []
    for priority, key in zip((0, 5), keys, strict=True):
        send(rig, priority, 20, key=key)
    handlers = [make_handler(lambda message: got.append(message.priority), key) for key in dict.fromkeys(keys)]
    rig.drain(*handlers, threads=1, max_threads=1)
    assert got == [5] * 20 + [0] * 20


def test_it_is_so_in_a_redis_that_carries_the_messages(
    redis_delayq: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)
    got: list[int] = []
    broker = RedisBroker(get_alias())
    for priority in (-9, 0, 9):
        header = Header(lane_of("default", priority), f"k{priority}")
        broker.queue.enqueue([NewMessage(f"{priority} {n}", header, b"null", at_ms=0) for n in range(10)])
    handlers = {f"k{n}": make_handler(lambda message: got.append(message.priority), f"k{n}") for n in (-9, 0, 9)}
    Worker(get_alias(), broker, handlers, Options(threads=1, max_threads=1, max_messages=30)).run()
    broker.close()
    assert got == [9] * 10 + [0] * 10 + [-9] * 10


def test_a_worker_learns_of_a_priority_with_its_first_message(rig: Rig, gate: threading.Event) -> None:
    got: list[tuple[str, int]] = []

    def note(message: Message[Any]) -> None:
        got.append((message.queue, message.priority))
        if len(got) == 1:
            gate.wait(PATIENCE_S)

    send(rig, 0)
    rig.start(make_handler(note), threads=1, max_threads=1)
    rig.broker.until(lambda: got)
    rig.send("urgent", queue="default^100")
    gate.set()
    rig.until_gone("urgent")
    rig.stop()
    assert got.index(("default", 100)) <= 2 * MAX_PER_SLOT


def test_an_idle_worker_runs_the_first_message_of_a_priority_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "HEARTBEAT_EVERY_S", 3_600)  # nothing else tells of it
    rig.start(make_handler(lambda message: None))
    rig.broker.until(lambda: rig.broker.claims)
    rig.send("first", queue="default^-3")
    rig.until_gone("first")
    rig.stop()


def test_a_flood_of_one_queues_high_priority_leaves_another_queue_its_share(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # claims are small: hundreds of choices
    got: list[str] = []
    send(rig, 9, queue="default", key="a")
    send(rig, 0, queue="mail", key="b")
    handlers = [make_handler(lambda message: got.append(message.queue), key, queue=queue)
                for key, queue in (("a", "default"), ("b", "mail"))]  # fmt: skip
    rig.drain(*handlers, threads=1, max_threads=1)
    assert 0.2 < got[:COUNT].count("mail") / COUNT < 0.8


def test_queues_in_an_order_keep_it_and_each_has_its_lanes_beside_it() -> None:
    lanes = {"a^-1", "b^5", "b^10", "elsewhere^1"}
    assert claim_order(served_queues("a,b"), Random(), lanes) == ["a", "a^-1", "b^10", "b^5", "b"]
    assert claim_order(served_queues("b^5,a,b"), Random(), lanes) == ["b^5", "a", "a^-1", "b^10", "b"]


def test_a_pause_of_a_queue_is_one_of_all_its_priorities(rig: Rig) -> None:
    rig.broker.pause(Pause("default", None, "x"))
    rig.send("a")
    rig.send("b", queue="default^5")
    rig.drain(make_handler(lambda message: None))
    assert rig.broker.counts().totals["finished"] == 0
    rig.broker.resume("default", None)
    rig.broker.pause(Pause("default^5", None, "x"))
    rig.drain(make_handler(lambda message: None))
    assert rig.broker.get("a") is None
    assert rig.broker.get("b") is not None


def test_a_worker_remembers_no_lanes_of_the_queues_of_others(rig: Rig) -> None:
    lanes = maintenance.Lanes(rig.broker, ["mail"])
    lanes.add({"mail^5", "stranger^5"})
    assert lanes.known == {"mail^5"}
