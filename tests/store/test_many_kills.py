"""An atomic handler of many that is killed at each of its steps: all of its effects and ends, or none; never twice."""

from collections import Counter
from time import monotonic, sleep

import pytest
from django.db import connections

from django_delayq import Send, send_delay_messages
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.worker.processes import Site, WorkerProcess

PATIENCE_S = 60
LEAST_STEPS = 7
"""Three rows of the handler's, two statements that end the messages, the commit, and what comes after it."""
ONCE = Counter({"0": 1, "1": 1, "2": 2})
"""How often each message takes effect: the last one is tried again."""


@pytest.fixture
def credits(database: str) -> str:
    """A database in which the handler adds a row for each message."""
    with connections[database].cursor() as cursor:
        cursor.execute("CREATE TABLE credits (message varchar(20) NOT NULL)")
    return database


def effects_of(step: int, database: str) -> Counter[str]:
    """Return how often each message of a step has taken effect."""
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT message FROM credits WHERE message LIKE %s", [f"{step}:%"])
        return Counter(message.partition(":")[2] for (message,) in cursor.fetchall())


def finished_of(step: int, database: str) -> list[str]:
    ended = FinishMessage.objects.using(database).filter(message_id__startswith=f"{step}:", outcome="finished")
    return sorted(id.partition(":")[2] for id in ended.values_list("message_id", flat=True))


def worker_that_dies_at(step: int, site: Site, database: str) -> WorkerProcess:
    """Start a worker that is killed at a step, and wait until it has run what the one before it has left."""
    site.env["DELAYQ_TEST_DIES_AT"] = str(step)
    worker = site.worker()
    until = monotonic() + PATIENCE_S
    while ReadyMessage.objects.using(database).exists():
        assert monotonic() < until, worker.text
        sleep(0.05)
    return worker


@pytest.mark.alters_tables
def test_a_kill_at_any_step_leaves_all_or_nothing_and_nothing_is_doubled_or_lost(
    broker: DatabaseBackend, site: Site, credits: str
) -> None:
    step, is_committed = 0, False
    while not is_committed:
        step += 1
        dying = worker_that_dies_at(step, site, credits)
        send_delay_messages(Send("credit many", step, id=f"{step}:{number}") for number in range(3))
        assert dying.wait() != 0
        is_committed = bool(finished_of(step, credits))
        assert finished_of(step, credits) == (["0", "1"] if is_committed else [])
        assert effects_of(step, credits) == (Counter("012") if is_committed else Counter())
        assert ReadyMessage.objects.using(credits).count() == (1 if is_committed else 3)
    assert worker_that_dies_at(0, site, credits).stop() == 0
    assert step >= LEAST_STEPS
    for each in range(1, step + 1):
        assert effects_of(each, credits) == ONCE
        assert finished_of(each, credits) == ["0", "1", "2"]
    assert site.totals()["finished"] == 3 * step
