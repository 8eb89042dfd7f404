"""Queues whose handlers share slots: an earlier one comes first, or they are chosen by weight, over thousands."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import BATCH, ClaimRequest, Claims, Header, NewMessage, Pause, pages
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.worker import prefetch
from django_delayq.worker.options import Options, served_queues
from django_delayq.worker.plan import BufferState
from django_delayq.worker.prefetch import MAX_PER_SLOT
from django_delayq.worker.worker import Worker
from tests.worker.processes import Site
from tests.worker.rig import PATIENCE_S, Rig, WatchedBroker, make_handler

COUNT = 2_000


def send(rig: Rig, count: int, *queues: str) -> None:
    """Messages of a key for each queue; what comes first is sent last."""
    for queue in reversed(queues):
        for ids in pages([f"{queue}-{n:04}" for n in range(count)], BATCH):
            rig.send(*ids, key=queue, queue=queue)


def ran(rig: Rig, text: str, slots: int, **of_first: Any) -> list[str]:
    """The queues in the order in which their messages ran, all of which were due."""
    got: list[str] = []
    first, *later = (queue.name for queue in served_queues(text))

    def note(message: Message[Any]) -> None:
        got.append(message.queue)

    handlers = [make_handler(note, first, **of_first), *(make_handler(note, key) for key in later)]
    rig.drain(*handlers, queues=served_queues(text), threads=slots, max_threads=slots)
    return got


def overtook(got: list[str], queue: str, slots: int = 1) -> int:
    """How many messages of other queues ran before those of this one, but for the last of these: others may run while a
    slot is not given its turn that holds them."""
    places = [place for place, each in enumerate(got) if each == queue]
    counted = len(places) - (slots - 1) * MAX_PER_SLOT
    return places[counted - 1] + 1 - counted


@pytest.mark.parametrize("slots", [1, 4])
def test_an_earlier_queue_is_emptied_first_also_where_each_has_a_handler_of_its_own(rig: Rig, slots: int) -> None:
    send(rig, COUNT, "critical", "bulk")
    got = ran(rig, "critical,bulk", slots)
    assert len(got) == 2 * COUNT
    assert overtook(got, "critical", slots) <= slots * MAX_PER_SLOT


@pytest.mark.parametrize("of_first", [{"concurrency": 1}, {"at_most_once": True}])
def test_an_earlier_queue_comes_first_also_where_its_buffer_takes_few_at_a_time(
    rig: Rig, of_first: dict[str, Any]
) -> None:
    send(rig, 500, "critical", "bulk")
    got = ran(rig, "critical,bulk", 1, **of_first)
    assert len(got) == 1_000
    assert overtook(got, "critical") <= MAX_PER_SLOT


def test_handlers_share_by_the_weights_of_their_queues(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # claims are small: hundreds of choices
    send(rig, COUNT, "critical", "default", "bulk")
    got = ran(rig, "critical,default:3,bulk:1", 4)
    assert len(got) == 3 * COUNT
    assert overtook(got, "critical", 4) <= 4 * MAX_PER_SLOT
    while_all_had_work = got[: len(got) - got[::-1].index("default")]
    assert COUNT // 6 < while_all_had_work.count("bulk") < COUNT // 2  # about a third of it


@pytest.mark.parametrize("text", ["critical,bulk", "empty,critical,also-empty,bulk", "critical,empty,also-empty,bulk"])
def test_messages_of_an_earlier_queue_that_come_meanwhile_wait_for_what_was_claimed_and_no_more(
    rig: Rig, gate: threading.Event, text: str
) -> None:
    got: list[str] = []

    def note(message: Message[Any]) -> None:
        if len(got) == COUNT:
            gate.wait(PATIENCE_S)
        got.append(message.queue)

    send(rig, 2 * COUNT, "bulk")
    rig.start(
        make_handler(note, "critical"),
        make_handler(note, "bulk"),
        queues=served_queues(text),
        threads=1,
        max_threads=1,
    )
    rig.broker.until(lambda: len(got) == COUNT)
    send(rig, COUNT, "critical")
    gate.set()
    rig.broker.until(lambda: len(got) == 3 * COUNT)
    assert overtook(got[COUNT:], "critical") <= 2 * MAX_PER_SLOT


def test_of_queues_that_were_empty_together_the_first_comes_first(rig: Rig, gate: threading.Event) -> None:
    got: list[str] = []

    def note(message: Message[Any]) -> None:
        if len(got) == COUNT:
            gate.wait(PATIENCE_S)
        got.append(message.queue)

    send(rig, 2 * COUNT, "bulk")
    handlers = [make_handler(note, key) for key in ("first", "second", "bulk")]
    rig.start(*handlers, queues=served_queues("first,empty,second,bulk"), threads=1, max_threads=1)
    rig.broker.until(lambda: len(got) == COUNT)
    send(rig, COUNT, "first", "second")
    gate.set()
    rig.broker.until(lambda: len(got) == 4 * COUNT)
    assert overtook(got[COUNT:], "first") <= 2 * MAX_PER_SLOT
    assert overtook(got[COUNT:], "second") - COUNT <= 2 * MAX_PER_SLOT


class CountingBroker(WatchedBroker):
    """Counts the claims that gave something new, of how many pairs, and what these and those before them asked for.

    A message that no slot started within a second is released, and claimed again: that is not new.
    """

    fruitful = 0
    fruitful_pairs = 0
    asked = 0
    asked_in_vain = 0
    seen: frozenset[str] = frozenset()

    def claim(self, wants: Sequence[ClaimRequest], *, lease_ms: int, worker: str) -> Claims:
        claims = super().claim(wants, lease_ms=lease_ms, worker=worker)
        new = {each.id for each in claims.messages} - self.seen
        self.seen |= new
        self.fruitful += bool(new)
        self.fruitful_pairs += len({(each.header.queue, each.header.key) for each in claims.messages if each.header})
        self.asked_in_vain += len(wants)
        if new:
            self.asked, self.asked_in_vain = self.asked + self.asked_in_vain, 0
        return claims


def test_queues_that_are_empty_are_asked_together(gate: threading.Event) -> None:
    broker = (rig := Rig(broker_class=CountingBroker)).broker
    assert isinstance(broker, CountingBroker)
    queues = [*(f"empty-{n}" for n in range(50)), "bulk"]
    send(rig, COUNT, "bulk")
    rig.drain(make_handler(lambda message: None, "bulk"), queues=served_queues(",".join(queues)), threads=1)
    assert broker.claims <= len(queues) + 3 * broker.fruitful


def test_paused_queues_in_which_much_is_due_cost_no_claims() -> None:
    broker = (rig := Rig(broker_class=CountingBroker)).broker
    assert isinstance(broker, CountingBroker)
    paused = [f"paused-{n}" for n in range(50)]
    for queue in paused:
        rig.send(queue, key="bulk", queue=queue)
        broker.pause(Pause(queue, None, "x"))
    send(rig, COUNT, "bulk")
    queues = served_queues(",".join([*paused, "bulk"]))
    rig.drain(make_handler(lambda message: None, "bulk"), queues=queues, threads=1)
    assert broker.counts().totals["finished"] == COUNT
    assert broker.claims <= 5 + 3 * broker.fruitful


def test_of_a_hundred_queues_and_handlers_only_those_are_asked_that_have_something_due() -> None:
    broker = (rig := Rig(broker_class=CountingBroker)).broker
    assert isinstance(broker, CountingBroker)
    names = [f"n{n}" for n in range(100)]
    send(rig, 20, *names)
    rig.drain(*(make_handler(lambda message: None, name) for name in names), queues=served_queues(",".join(names)))
    assert broker.counts().totals["finished"] == 2_000
    assert broker.asked <= 2 * broker.fruitful_pairs  # it was about 100 times as many


def test_a_turn_claims_once_whatever_waits_in_how_many_queues(rig: Rig) -> None:
    queues = [f"q{n}" for n in range(5)]
    handlers = [make_handler(lambda message: None, f"k{n}") for n in range(5)]
    worker = rig.make(*handlers, queues=served_queues(",".join(queues)))
    for handler in handlers:
        for queue in queues:
            rig.send(*(f"{queue}-{handler.key}-{n}" for n in range(20)), queue=queue, key=handler.key)
    rig.broker.advance(1)
    for turn in range(1, 6):
        worker._dispatcher.claim()
        assert rig.broker.claims <= turn
    for executor in worker._executors:
        executor.close(PATIENCE_S)
    assert rig.broker.claims > 0


def test_what_handlers_leave_to_each_other_is_worked_out_once_for_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [0]
    fetch_size = BufferState.fetch_size

    def counted(state: BufferState, slots: int) -> int:
        looks[0] += 1
        return fetch_size(state, slots)

    monkeypatch.setattr(BufferState, "fetch_size", counted)
    queues = [f"q{n}" for n in range(30)]
    handlers = [make_handler(lambda message: None, f"k{n}") for n in range(30)]
    worker = rig.make(*handlers, queues=served_queues(",".join(queues)))
    for queue, key in zip(queues, (handler.key for handler in handlers), strict=True):
        rig.send(queue, queue=queue, key=key)
    rig.broker.advance(1)
    worker._dispatcher.claim()
    for executor in worker._executors:
        executor.close(PATIENCE_S)
    assert 0 < looks[0] <= 2 * len(handlers) * rig.broker.claims


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_queues_of_one_handler_keep_their_order_where_slots_are_free_and_a_claim_can_not_give_all(
    redis_delayq: dict[str, Any], is_async: bool
) -> None:
    got: list[str] = []

    def note(message: Message[Any]) -> None:
        got.append(message.queue)

    async def anote(message: Message[Any]) -> None:
        note(message)

    broker = RedisBroker(get_alias())
    at_ms = broker.queue.counts().now_ms - 1  # due already
    queues = ("bulk", "default", "critical")
    for queue in queues:
        for ids in pages([f"{queue}-{n:04}" for n in range(COUNT)], BATCH):
            broker.queue.enqueue([NewMessage(id, Header(queue, "k"), b"null", at_ms=at_ms) for id in ids])
    idle = {key: make_handler(note, key) for key in ("idle", "idle, too")}  # their threads are slots that are free
    options = Options(queues=served_queues("critical,default,bulk"), drain=True)
    Worker(get_alias(), broker, idle | {"k": make_handler(anote if is_async else note)}, options).run()
    broker.close()
    assert len(got) == 3 * COUNT
    assert overtook(got, "critical", 4) <= 4 * MAX_PER_SLOT
    assert overtook(got, "default", 4) - COUNT <= 4 * MAX_PER_SLOT


def test_child_processes_too_empty_an_earlier_queue_first(site: Site, tmp_path: Path) -> None:
    site.env["DELAYQ_TEST_RECORD"] = str(tmp_path / "record")
    for queue, key in (("bulk", "record"), ("critical", "record, too")):
        for ids in pages([f"{queue}-{n}" for n in range(COUNT)], BATCH):
            site.send(*ids, key=key, queue=queue, data=queue)
    worker = site.worker("--queues", "critical,bulk", "--processes", "2", "--drain")
    assert worker.wait() == 0
    got = (tmp_path / "record").read_text().splitlines()
    assert len(got) == 2 * COUNT
    assert overtook(got, "critical", 2) <= 2 * MAX_PER_SLOT
