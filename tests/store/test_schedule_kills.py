"""Schedules whose workers are killed at any moment: each occurrence is put and ends once, and none is missed."""

import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from time import monotonic, sleep
from typing import Any

import pytest

from django_delayq import Every, list_delay_schedules, pause_delay_schedules, schedule_delay_message
from django_delayq.core.occurrences import occurrence_of
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.scale import scaled
from tests.worker.processes import Site, WorkerProcess

KILLS = scaled(4)
WORKERS = 3
ROUND, CAUGHT_UP = 20, timedelta(seconds=2)
"""After how many kills the workers are left alone, until nothing is overdue by more than this."""
PATIENCE_S = 120
STEPS = {"after1": 1, "after2": 2, "after3": 3, "allow1": 1, "allow2": 2}
"""The schedules, each with its seconds."""


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_each_occurrence_runs_and_none_twice_whenever_workers_are_killed(
    broker: DatabaseBackend, site: Site, database: str, arguments: tuple[str, ...]
) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    workers = [site.worker(*arguments) for _ in range(WORKERS)]
    for name, seconds in STEPS.items():
        overlap: Any = "allow" if name.startswith("allow") else "after"
        schedule_delay_message("record", "x", name=name, every=Every(seconds=seconds), catch_up="all", overlap=overlap)
    for number in range(KILLS):
        if number % ROUND == 0:  # with over a thousand missed, the first of them are left out
            _wait_for(workers, lambda: not _overdue(database, datetime.now(UTC) - CAUGHT_UP))
        victim = workers.pop(0)
        victim.until_says("Queues:")
        sleep(chance.uniform(0, 0.5))  # what it is at then is what is tested
        victim.kill()
        workers.append(site.worker(*arguments))
    now = datetime.now(UTC)
    _wait_for(workers, lambda: all(_ended(database, name)[-1:] > [now] for name in STEPS))
    # With "allow" an earlier occurrence may end after later ones: a pause would cancel it
    _wait_for(workers, lambda: not _overdue(database, now))
    pause_delay_schedules(*STEPS, reason="the test is over")
    _wait_for(workers, lambda: not ReadyMessage.objects.using(database).exists())
    for worker in workers:
        worker.until_says("Queues:")  # from then on it takes signals
        assert worker.stop() == 0
    for name, seconds in STEPS.items():
        all_ended = _ended(database, name)
        assert len(set(all_ended)) == len(all_ended), (name, all_ended)
        ended = [at for at in all_ended if at <= now]
        assert {later - earlier for earlier, later in pairwise(ended)} <= {timedelta(seconds=seconds)}, (name, ended)
    assert [info.error for info in list_delay_schedules()] == [""] * len(STEPS)


def _overdue(database: str, since: datetime) -> bool:
    return ReadyMessage.objects.using(database).filter(due_at__lte=since).exists()


def _ended(database: str, name: str) -> list[datetime]:
    """Return the occurrences of a schedule that have finished, in order; each as often as it did."""
    rows = FinishMessage.objects.using(database).filter(message_id__startswith=f"{name}@", outcome="finished")
    found = [occurrence_of(id) for id in rows.values_list("message_id", flat=True)]
    return sorted(at for _, at in filter(None, found))


def _wait_for(workers: list[WorkerProcess], is_so: Callable[[], bool]) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < until, "\n=====\n".join([worker.text[-6000:] for worker in workers])
        sleep(0.1)
