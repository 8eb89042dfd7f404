"""Queues whose handlers share hands: an earlier one comes first, or they share by weight, over thousands."""

import threading
from pathlib import Path
from typing import Any

import pytest

from django_delayq import Message
from django_delayq.brokers.base import BATCH, pages
from django_delayq.limits import Limits
from django_delayq.worker.lanes import MOST_PER_HAND
from django_delayq.worker.queues import served_queues
from tests.worker.processes import Site
from tests.worker.rig import PATIENCE_S, Rig, make_handler

COUNT = 2_000


def send(rig: Rig, count: int, *queues: str) -> None:
    """Messages of a key for each queue; what comes first is sent last."""
    for queue in reversed(queues):
        for ids in pages([f"{queue}-{n:04}" for n in range(count)], BATCH):
            rig.send(*ids, key=queue, queue=queue)


def ran(rig: Rig, text: str, hands: int, **of_first: Any) -> list[str]:
    """The queues in the order in which their messages ran, all of which were due."""
    got: list[str] = []
    first, *later = (queue.name for queue in served_queues(text))

    def note(message: Message[Any]) -> None:
        got.append(message.queue)

    handlers = [make_handler(note, first, **of_first), *(make_handler(note, key) for key in later)]
    rig.drain(*handlers, queues=served_queues(text), threads=hands, max_threads=hands)
    return got


def overtook(got: list[str], queue: str) -> int:
    """How many messages of other queues ran before the last of this one."""
    last = len(got) - got[::-1].index(queue)
    return sum(other != queue for other in got[:last])


@pytest.mark.parametrize("hands", [1, 4])
def test_an_earlier_queue_is_emptied_first_also_where_each_has_a_handler_of_its_own(rig: Rig, hands: int) -> None:
    send(rig, COUNT, "critical", "bulk")
    got = ran(rig, "critical,bulk", hands)
    assert len(got) == 2 * COUNT
    assert overtook(got, "critical") <= hands * MOST_PER_HAND


@pytest.mark.parametrize(
    "of_first", [{"concurrency": 1}, {"limits": Limits(max_concurrency=1)}, {"at_most_once": True}]
)
def test_an_earlier_queue_comes_first_also_where_its_lane_takes_few_at_a_time(
    rig: Rig, of_first: dict[str, Any]
) -> None:
    send(rig, 500, "critical", "bulk")
    got = ran(rig, "critical,bulk", 1, **of_first)
    assert len(got) == 1_000
    assert overtook(got, "critical") <= MOST_PER_HAND


def test_handlers_share_by_the_weights_of_their_queues(rig: Rig) -> None:
    send(rig, COUNT, "critical", "default", "bulk")
    got = ran(rig, "critical,default:3,bulk:1", 4)
    assert len(got) == 3 * COUNT
    assert overtook(got, "critical") <= 4 * MOST_PER_HAND
    while_all_had_work = got[: len(got) - got[::-1].index("default")]
    assert COUNT // 4 < while_all_had_work.count("bulk") < COUNT // 2  # a third of it


def test_messages_of_an_earlier_queue_that_come_meanwhile_wait_for_what_was_claimed_and_no_more(
    rig: Rig, gate: threading.Event
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
        queues=served_queues("critical,bulk"),
        threads=1,
        max_threads=1,
    )
    rig.broker.until(lambda: len(got) == COUNT)
    send(rig, COUNT, "critical")
    gate.set()
    rig.broker.until(lambda: len(got) == 3 * COUNT)
    assert overtook(got[COUNT:], "critical") <= 2 * MOST_PER_HAND


def test_child_processes_too_empty_an_earlier_queue_first(site: Site, tmp_path: Path) -> None:
    site.env["DELAYQ_TEST_RECORD"] = str(tmp_path / "record")
    for queue, key in (("bulk", "record"), ("critical", "record, too")):
        for ids in pages([f"{queue}-{n}" for n in range(COUNT)], BATCH):
            site.send(*ids, key=key, queue=queue, data=queue)
    worker = site.worker("--queues", "critical,bulk", "--processes", "2", "--drain")
    assert worker.wait() == 0
    got = (tmp_path / "record").read_text().splitlines()
    assert len(got) == 2 * COUNT
    assert overtook(got, "critical") <= 2 * MOST_PER_HAND
