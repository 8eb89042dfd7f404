"""Workers that are killed at any moment: `atomic` handlers take effect once, `at_most_once` ones never start twice."""

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
from django.db import connections

from django_delayq import Send, send_delay_messages
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.scale import scaled
from tests.worker.processes import Site, WorkerProcess

KILLS = scaled(4)
A_KILL = 40
"""Messages sent before each kill."""
PATIENCE_S = 120
WORKERS = 3
STARTED = "Queues:"


@pytest.fixture
def account(database: str) -> str:
    """A database with an account on which there is nothing."""
    with connections[database].cursor() as cursor:
        cursor.execute("CREATE TABLE account (balance bigint NOT NULL)")
        cursor.execute("INSERT INTO account VALUES (0)")
    return database


def balance_of(database: str) -> int:
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT balance FROM account")
        return int(cursor.fetchone()[0])


def kill_at_random(site: Site, send: Send, database: str, *arguments: str) -> int:
    """Send messages and kill the workers that run them, then let one run the rest. Gives how many were sent."""
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    workers = [site.worker(*arguments) for _ in range(WORKERS)]
    for kill in range(KILLS):
        numbers = range(kill * A_KILL, (kill + 1) * A_KILL)
        send_delay_messages(replace(send, data=n, id=f"{n}") for n in numbers)
        victim = workers.pop(0)
        victim.until_says(STARTED)
        sleep(chance.uniform(0, 0.5))  # what it is at then is what is tested
        victim.kill()
        workers.append(site.worker(*arguments))
    _wait_until_all_ended(database, workers)
    for worker in workers:
        worker.until_says(STARTED)
        assert worker.stop() == 0
    return KILLS * A_KILL


def _wait_until_all_ended(database: str, workers: list[WorkerProcess]) -> None:
    until = monotonic() + PATIENCE_S
    while ReadyMessage.objects.using(database).exists():
        assert monotonic() < until, "\n=====\n".join([worker.text[-6000:] for worker in workers])
        sleep(0.1)


@pytest.mark.alters_tables
@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_an_account_is_right_to_the_last_message_whenever_workers_are_killed(
    broker: DatabaseBackend, site: Site, account: str, arguments: tuple[str, ...]
) -> None:
    sent = kill_at_random(site, Send("credit"), account, *arguments)
    assert FinishMessage.objects.using(account).count() == sent
    assert balance_of(account) == sent
    assert site.totals()["finished"] == sent


def test_what_is_at_most_once_never_starts_twice_and_says_so_where_it_was_abandoned(
    broker: DatabaseBackend, site: Site, database: str, tmp_path: Path
) -> None:
    sent = kill_at_random(site, Send("once", at_most_once=True), database)
    started = Counter((tmp_path / "record").read_text().split())
    assert set(started.values()) == {1}
    finished = set(FinishMessage.objects.using(database).values_list("message_id", flat=True))
    abandoned = ErrorMessage.objects.using(database)
    assert finished <= set(started)
    assert len(finished) + abandoned.count() == sent
    assert all("must not start twice" in row.error for row in abandoned)
    assert {row.message_id for row in abandoned} >= set(started) - finished
