"""A day of schedules that passes in a minute, with kills, restarts of the database, and a clock that is put."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from pytest_django import DjangoDbBlocker, Settings

from django_delayq import Cron, Every, RRule, list_delay_schedules, pause_delay_schedules, schedule_delay_message
from django_delayq.brokers import get_backend
from django_delayq.core.occurrences import occurrence_of
from django_delayq.core.recurrence import Overlap, Rule, to_come
from django_delayq.models import FinishMessage, ReadyMessage
from tests import databases
from tests.database.conftest import ALONE
from tests.scale import scaled
from tests.servers import PostgresServer
from tests.store.skewed import FastClock
from tests.worker.processes import Site, WorkerProcess, site_with

BEGINS = datetime(2026, 10, 24, 21, tzinfo=UTC)
START = BEGINS + timedelta(hours=1)
"""Three hours before the clocks of Rome go back."""
HOURS = min(scaled(4), 24)
RATE = 1440
BACK = timedelta(minutes=20)
"""How far the clock is put back or ahead at most."""
WORKERS = 3
PATIENCE_S = 300
"""With such a clock, what is put late waits for the next look at overdue rows, a second each: 24 minutes of the day."""
RULES: dict[str, Rule] = {
    "quarters": Cron("*/15 * * * *", zone="Europe/Rome"),
    "night": Cron("30 2,3,4 * * *", zone="Europe/Rome"),
    "hours": Every(hours=1),
    "allowed": Every(minutes=20),
    "rrule": RRule(
        "FREQ=DAILY;BYHOUR=0,1,2,3,4,5,9;BYMINUTE=10,50", zone="Europe/Rome", start=BEGINS.replace(tzinfo=None)
    ),
}


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[FastClock]:
    """The clock of the database."""
    clock = FastClock(tmp_path / "clock")
    clock.start(BEGINS, rate=1)
    connection_created.connect(clock.use)
    yield clock
    connection_created.disconnect(clock.use)


@pytest.fixture
def server(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    """One that a test may restart."""
    return start_postgres()


@pytest.fixture
def database(server: PostgresServer, clock: FastClock, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with django_db_blocker.unblock(), databases.database_on(server) as database:
        yield database


@pytest.fixture
def site(settings: Settings, database: str, database_env: dict[str, str], clock: FastClock) -> Iterator[Site]:
    alias = {"BROKER": ALONE, "STORE": {}, "OPTIONS": {"unknown_keys": "allow", "lease": "1d"}}
    settings.DELAYQ = {"default": alias | {"DATABASE": database}}
    env = {**database_env, "DELAYQ_TEST_CLOCK": str(clock.path), "DELAYQ_TEST_RECORD": str(clock.path.with_name("ran"))}
    with site_with(alias, get_backend(), env, Path("/tmp")) as site:
        yield site


def test_each_occurrence_of_a_day_that_passes_in_a_minute_ends_once(
    site: Site, server: PostgresServer, database: str, clock: FastClock
) -> None:
    if "DELAYQ_SCALE" not in os.environ:
        pytest.skip("it takes over a minute: run it with DELAYQ_SCALE=1")
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    for name, rule in RULES.items():
        overlap: Overlap = "allow" if name == "allowed" else "after"
        schedule_delay_message("record", name, name=name, every=rule, start=START, catch_up="all", overlap=overlap)
    clock.start(BEGINS, RATE)
    workers = [site.worker() for _ in range(WORKERS)]
    ends, restarts = START + timedelta(hours=HOURS), [START + timedelta(hours=HOURS) * part for part in (0.3, 0.6)]
    while clock.now() < ends:
        victim = workers.pop(0)
        victim.until_says("Queues:")
        sleep(chance.uniform(0, 0.5))  # what it is at then is what is tested
        victim.kill()
        clock.jump(chance.uniform(-1, 1) * BACK)
        if restarts and clock.now() > restarts[0]:
            del restarts[0]
            server.restart()
            connections[database].close()
        workers.append(site.worker())
    _wait_for(workers, lambda: all(_ended(database, name).keys() >= _expected(name, ends) for name in RULES))
    pause_delay_schedules(*RULES, reason="the day is over")
    _wait_for(workers, lambda: not ReadyMessage.objects.using(database).exists())
    for worker in workers:
        worker.until_says("Queues:")  # from then on it takes signals
        assert worker.stop() == 0
    for name in RULES:
        ended = _ended(database, name)
        assert {at: times for at, times in ended.items() if at <= ends or times > 1} == dict.fromkeys(
            _expected(name, ends), 1
        ), name
    assert [info.error for info in list_delay_schedules()] == [""] * len(RULES)


def _expected(name: str, until: datetime) -> set[datetime]:
    """Return the occurrences of a schedule up to an instant."""
    return set(to_come(RULES[name], BEGINS, START, until, None))


def _ended(database: str, name: str) -> Counter[datetime]:
    """Return how often each occurrence of a schedule has finished."""
    rows = FinishMessage.objects.using(database).filter(message_id__startswith=f"{name}@", outcome="finished")
    found = [occurrence_of(id) for id in rows.values_list("message_id", flat=True)]
    return Counter(at for _, at in filter(None, found))


def _wait_for(workers: list[WorkerProcess], is_so: Callable[[], bool]) -> None:
    until = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < until, "\n=====\n".join([worker.text[-6000:] for worker in workers])
        sleep(0.1)
