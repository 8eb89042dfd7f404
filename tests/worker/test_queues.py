"""The queues of a worker: one comes before another, or is chosen by weight."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import ClaimRequest, Claims, Header, NewMessage
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.claim import MOST
from django_delayq.conf import Alias, get_alias
from django_delayq.worker import maintenance
from django_delayq.worker.options import Options, ServedQueue, served_queues
from django_delayq.worker.plan import claim_order
from django_delayq.worker.prefetch import TIME_SLICE_S
from django_delayq.worker.worker import Worker
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler


def noting(got: list[str]) -> Callable[[Message[Any]], None]:
    return lambda message: got.append(message.queue)


def test_queues_are_read_with_and_without_a_weight() -> None:
    queues = served_queues("critical, default:3,bulk:1")
    assert queues == (ServedQueue("critical"), ServedQueue("default", 3), ServedQueue("bulk", 1))
    assert ",".join(map(str, queues)) == "critical,default:3,bulk:1"
    assert served_queues("bulk:000001") == (ServedQueue("bulk", 1),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (",", "',' names no queue"),
        ("a,,b", "'a,,b' has a comma without a queue; leave the comma out, or name the queue"),
        ("a, ", "'a, ' has a comma without a queue"),
        ("bulk:0", "'bulk:0' gives the queue 'bulk' the weight '0'; give a whole number from 1 to 1000"),
        ("bulk:1001", "the weight '1001'"),
        ("bulk:00010000", "the weight '00010000'"),
        (f"bulk:{'9' * 5_000}", "the weight '999"),
        ("bulk:x", "the weight 'x'"),
        ("bulk:-1", "the weight '-1'"),
        ("bulk:1.5", "the weight '1.5'"),
        ("bulk:", "the weight ''"),
        ("bulk:²", "the weight '²'"),
        ("a:b:1", "the weight 'b:1'"),
        (":3", "queue='' is empty"),
        ("a,b,a:2", "'a,b,a:2' names the queue 'a' more than once"),
    ],
)
def test_what_is_no_queue_or_no_weight_is_refused_and_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        served_queues(text)


def orders(text: str, count: int) -> list[str]:
    """The orders of so many claims, of a seed."""
    random = Random(1)
    return ["".join(claim_order(served_queues(text), random)) for _ in range(count)]


def test_queues_without_a_weight_keep_their_order() -> None:
    assert set(orders("a,b,c", 100)) == {"abc"}


def test_of_queues_with_weights_each_comes_first_as_often_as_its_weight_says() -> None:
    firsts = Counter(order[0] for order in orders("d:3,b:1", 4_000))
    assert 2_900 < firsts["d"] < 3_100
    assert firsts["b"] == 4_000 - firsts["d"]


def test_those_that_follow_the_first_are_chosen_by_their_weights_too() -> None:
    after_d = Counter(order[1] for order in orders("d:100,b:3,c:1", 4_000) if order[0] == "d")
    assert 0.7 < after_d["b"] / after_d.total() < 0.8


def test_queues_with_weights_come_where_they_stand() -> None:
    assert set(orders("a,d:3,b:1,z", 100)) == {"adbz", "abdz"}
    assert set(orders("d:3,a,b:1,c:1", 100)) == {"dabc", "dacb"}  # only neighbours share


def test_the_same_seed_gives_the_same_orders() -> None:
    assert orders("d:3,b:1", 100) == orders("d:3,b:1", 100)


def one_by_one(text: str, count: int) -> str:
    """Return whose messages run, one a claim, where each queue has so many."""
    random, left, ran = Random(1), {queue.name: count for queue in served_queues(text)}, ""
    while any(left.values()):
        name = next(name for name in claim_order(served_queues(text), random) if left[name])
        left[name] -= 1
        ran += name[0]
    return ran


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker chooses as `one_by_one` does."""
    monkeypatch.setattr("django_delayq.worker.worker.Random", lambda: Random(1))


def test_no_order_was_asked_for_where_no_queue_was() -> None:
    assert claim_order((), Random(1)) == []


# The worker, with one slot: then what runs next is what was claimed next.


def sends_another(rig: Rig, gate: threading.Event, queue: str = "default") -> Callable[[Message[Any]], None]:
    """A handler whose backlog has no end until the gate is open."""

    def handler(message: Message[Any]) -> None:
        if not gate.is_set():
            rig.send(f"{message.id[:9]}-{message.token}", key="fast", queue=queue)

    return handler


def drained(rig: Rig, queues: str, *handlers: Handler[Any, Any], **options: Any) -> None:
    rig.drain(*handlers, queues=served_queues(queues), **{"threads": 1, "max_threads": 1} | options)


def slow_then_noted(got: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Message[Any]], None]:
    """A handler of whose messages none is claimed ahead."""
    monkeypatch.setattr("django_delayq.worker.prefetch.MAX_PER_SLOT", 1)
    return noting(got)


def test_an_earlier_queue_is_emptied_before_a_later_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    rig.send(*(f"b{n}" for n in range(5)), queue="bulk")
    rig.send(*(f"c{n}" for n in range(5)), queue="critical")
    drained(rig, "critical,bulk", make_handler(slow_then_noted(got, monkeypatch)))
    assert got == ["critical"] * 5 + ["bulk"] * 5


def test_an_earlier_queue_comes_first_also_where_each_has_its_own_handler(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []
    rig.send(*(f"b{n}" for n in range(5)), key="b", queue="bulk")
    rig.send(*(f"c{n}" for n in range(5)), key="c", queue="critical")
    note = slow_then_noted(got, monkeypatch)
    drained(rig, "critical,bulk", make_handler(note, "b"), make_handler(note, "c"))
    assert got == ["critical"] * 5 + ["bulk"] * 5


@pytest.mark.usefixtures("seeded")
def test_weights_share_what_is_run_while_all_have_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    for queue in ("bulk", "default", "critical"):
        rig.send(*(f"{queue}-{n}" for n in range(12)), queue=queue)
    drained(rig, "critical,default:3,bulk:1", make_handler(slow_then_noted(got, monkeypatch)))
    assert "".join(queue[0] for queue in got) == one_by_one("critical,default:3,bulk:1", 12)


def test_slots_that_an_earlier_queue_has_no_work_for_are_free_for_a_later_one(rig: Rig, gate: threading.Event) -> None:
    rig.send("slow-1", "slow-2", key="slow", queue="critical")
    rig.send(*(f"b{n}" for n in range(20)), key="b", queue="bulk")
    rig.start(
        make_handler(lambda message: gate.wait(PATIENCE_S), "slow", concurrency=1),
        make_handler(noting([]), "b"),
        queues=served_queues("critical,bulk"),
        max_threads=2,
    )
    rig.until_gone(*(f"b{n}" for n in range(20)))


def test_what_becomes_due_in_all_queues_at_once_goes_by_their_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    note = slow_then_noted(got, monkeypatch)
    rig.start(make_handler(note), queues=served_queues("critical,bulk"), threads=1, max_threads=1)
    rig.broker.until(lambda: rig.broker.claims >= 2)  # both queues were asked: it knows that nothing is left behind
    at_ms = rig.broker.queue.counts().now_ms + 50
    queues = ["bulk"] * 3 + ["critical"] * 3
    rig.broker.queue.enqueue(
        [NewMessage(f"{n}", Header(queue, "k"), b"null", at_ms=at_ms) for n, queue in enumerate(queues)]
    )
    rig.until_gone(*map(str, range(6)))
    assert got == ["critical"] * 3 + ["bulk"] * 3


class RecordingBroker(WatchedBroker):
    """Notes which queues and keys each claim asks for."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias)
        self.asked: list[str] = []
        self.keys: list[list[str]] = []

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        self.asked.append("".join(sorted({want.queue for want in wants})))
        self.keys.append([want.key for want in wants])
        return super().claim(wants, lease_ms=lease_ms, worker=worker)


def test_queues_cost_an_idle_worker_no_calls_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "EVERY_S", 0.01)
    broker = (rig := Rig(broker_class=RecordingBroker)).broker
    assert isinstance(broker, RecordingBroker)
    rig.start(make_handler(noting([])), queues=served_queues("a,b,c:2,d:1"))
    broker.until(lambda: broker.claims >= 8)
    rig.stop()
    assert broker.asked[:8] == ["abcd"] * 8


def test_who_wants_little_is_claimed_for_first() -> None:
    broker = (rig := Rig(broker_class=RecordingBroker)).broker
    assert isinstance(broker, RecordingBroker)
    handlers = [make_handler(noting([]), key, concurrency=most) for key, most in [("b", 9), ("a", 1), ("c", 5)]]
    rig.start(*handlers)
    broker.until(lambda: broker.claims)
    rig.stop()
    assert broker.keys[0] == ["a", "c", "b"]


def test_who_was_given_something_last_is_claimed_for_last() -> None:
    broker = (rig := Rig(broker_class=RecordingBroker)).broker
    assert isinstance(broker, RecordingBroker)
    slow = make_handler(
        lambda message: time.sleep(2 * TIME_SLICE_S), "a", concurrency=1
    )  # else it wants many, and is last
    rig.start(slow, make_handler(noting([]), "b", concurrency=9), make_handler(noting([]), "c", concurrency=5))
    broker.until(lambda: broker.keys and broker.keys[-1] == ["a", "c", "b"])
    rig.send("1", key="a")
    rig.until_gone("1")
    broker.until(lambda: broker.keys[-1] == ["c", "b", "a"])
    rig.stop()


def test_a_busy_queue_keeps_no_slot_from_a_later_one_that_its_concurrency_leaves(
    rig: Rig, gate: threading.Event
) -> None:
    rig.send(*(f"first-{n}" for n in range(200)), key="fast", queue="critical")
    rig.start(
        make_handler(sends_another(rig, gate, "critical"), "fast", concurrency=1),
        make_handler(noting([]), "other"),
        max_threads=2,
        queues=served_queues("critical,default"),
    )
    rig.broker.until(lambda: rig.broker.queue.counts().totals["finished"] >= 200)
    rig.send("a", "b", "c", key="other")
    rig.until_gone("a", "b", "c")


@pytest.mark.usefixtures("seeded")
def test_redis_gives_queues_in_order_and_by_weight(
    redis_delayq: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[str] = []
    broker = RedisBroker(get_alias())
    at_ms = broker.queue.counts().now_ms - 1_000  # due already, all at one instant
    broker.queue.enqueue(
        [
            NewMessage(f"{queue}-{n}", Header(queue, "k"), b"null", at_ms=at_ms)
            for queue in ("bulk", "critical", "default")
            for n in range(6)
        ]
    )
    options = Options(queues=served_queues("critical,default:3,bulk:1"), threads=1, max_threads=1, drain=True)
    Worker(get_alias(), broker, {"k": make_handler(slow_then_noted(got, monkeypatch))}, options).run()
    broker.close()
    assert "".join(queue[0] for queue in got) == one_by_one("critical,default:3,bulk:1", 6)


def test_an_earlier_queue_comes_first_where_one_claim_can_not_give_all(redis_delayq: dict[str, Any]) -> None:
    got: list[str] = []

    async def note(message: Message[Any]) -> None:
        got.append(message.queue)

    broker = RedisBroker(get_alias())
    at_ms = broker.queue.counts().now_ms + 300  # when the worker is idle, and asks for both in one call
    headers = [Header("bulk", "b"), Header("critical", "c")]
    broker.queue.enqueue(
        [NewMessage(f"{header.key}{n}", header, b"null", at_ms=at_ms) for header in headers for n in range(MOST)]
    )
    handlers = {header.key: make_handler(note, header.key) for header in headers}
    options = Options(queues=served_queues("critical,bulk"), max_messages=2 * MOST)
    Worker(get_alias(), broker, handlers, options).run()
    broker.close()
    assert got == ["critical"] * MOST + ["bulk"] * MOST
