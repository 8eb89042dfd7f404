"""Sequences whose workers are killed at any moment: each step ends once, in order, and none starts after a stop."""

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from pathlib import Path
from time import sleep, time

import pytest

from django_delayq import Sequence, Step
from django_delayq.api import sequences as api
from django_delayq.core.steps import step_of
from django_delayq.models import FinishMessage, ReadyMessage, SequenceRow
from django_delayq.store import DatabaseBackend
from tests.scale import scaled
from tests.store.emptied import until_empty
from tests.worker.processes import Site

KILLS = scaled(4)
SEQUENCES = 30
STEPS = 6
WORKERS = 2

Lease = tuple[str, int | None]
"""The id of a step, and the token under which a worker holds it."""


@pytest.mark.parametrize("key", ["stamp", "stamp atomically"])
@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_each_step_ends_once_and_none_starts_after_a_stop_whenever_workers_are_killed(
    broker: DatabaseBackend,
    site: Site,
    database: str,
    arguments: tuple[str, ...],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "by_alias", {})
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    walk = Sequence("walk", [Step(key, f"{after}ms") for after in range(0, 180 * STEPS, 180)])
    workers = [site.worker(*arguments) for _ in range(WORKERS)]
    for number in range(SEQUENCES):
        walk.start("x", id=str(number), tag=f"of:{number}")
    stopped: dict[str, float] = {}
    leased: set[Lease] = set()  # at a stop: their workers may have looked before it whether the steps may start
    for _ in range(KILLS):
        victim = workers.pop(0)
        victim.until_says("Queues:")
        sleep(chance.uniform(0, 0.5))  # what it is at then is what is tested
        victim.kill()
        workers.append(site.worker(*arguments))
        for id in map(str, chance.sample(range(SEQUENCES), 3)):
            if walk.stop(id) if chance.random() < 0.5 else walk.stop(tag=f"of:{id}"):
                leased |= _leased(database, id)
                stopped[id] = time()
    until_empty(workers, database, ReadyMessage)
    for worker in workers:
        worker.until_says("Queues:")  # from then on it takes signals
        assert worker.stop() == 0
    finished = FinishMessage.objects.using(database).filter(outcome="finished").order_by("ended_at", "pk")
    walked = _by_sequence(finished.values_list("message_id", flat=True))
    stamps = [line.split() for line in Path(site.env["DELAYQ_TEST_RECORD"]).read_text().splitlines()]
    for one in map(str, range(SEQUENCES)):
        assert walked[one] == list(range(1, len(walked[one]) + 1))
        if one not in stopped:
            assert len(walked[one]) == STEPS
    ran_later = {(id, int(token)) for id, token, at in stamps if float(at) > stopped.get(_sequence_of(id), inf)}
    assert ran_later <= leased
    left = SequenceRow.objects.using(database).filter(stopped_at__isnull=True)
    assert not left.exists()


def _leased(database: str, sequence: str) -> set[Lease]:
    """Return the leases of the steps of a sequence."""
    held = ReadyMessage.objects.using(database).filter(token__isnull=False).values_list("message_id", "token")
    return {(id, token) for id, token in held if _sequence_of(id) == sequence}


def _sequence_of(message_id: str) -> str:
    found = step_of(message_id)
    assert found is not None
    return found.id


def _by_sequence(message_ids: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the steps of each sequence, in the order of the ids."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for id in message_ids:
        found = step_of(id)
        assert found is not None
        numbers[found.id].append(found.number)
    return numbers
